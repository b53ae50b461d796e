"""Log lines carry the id of the HTTP request that their context works for."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import subprocess
import sys

import pytest

from radixrt.logs import JsonFormatter, PipeHandler, SocketHandler

LINES = """
import asyncio, logging
from radixrt.logs import configure_logging, request_id

configure_logging("info", "main")
log = logging.getLogger("anything")

async def serve(name):
    request_id.set(name)
    await asyncio.sleep(0)
    log.info("works")
    await asyncio.to_thread(log.info, "works in a thread")

async def main():
    await asyncio.gather(serve("a"), serve("b"))

log.info("starts")
asyncio.run(main())
log.debug("not shown")
log.info("ends")
"""


def test_lines_carry_the_id_of_their_own_request() -> None:
    done = subprocess.run([sys.executable, "-c", LINES], stderr=subprocess.PIPE, text=True, check=True)
    lines = [line.partition("INFO ")[2] for line in done.stderr.splitlines()]
    assert (lines[0], lines[-1]) == ("main: starts", "main: ends")
    assert sorted(lines[1:-1]) == [
        "main: [a] works", "main: [a] works in a thread", "main: [b] works", "main: [b] works in a thread",
    ]  # fmt: skip


JSON_LINES = """
import logging, warnings
from radixrt.logs import configure_logging, request_id, trace_id

configure_logging("info", "main", format="json")
log = logging.getLogger("some.name")
log.info("a %s", 'line\\nof "text" \\udc80', extra={"fields": {"status": 200}})
request_id.set("r1")
trace_id.set("ab" * 16)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
warnings.warn("careful")
"""


def test_json_lines_are_one_object_each() -> None:
    done = subprocess.run([sys.executable, "-c", JSON_LINES], stderr=subprocess.PIPE, text=True, check=True)
    plain, failed, warned = map(json.loads, done.stderr.splitlines())
    assert set(plain) == {"time", "level", "process", "logger", "message", "status"}
    assert (plain["level"], plain["process"], plain["logger"], plain["status"]) == ("info", "main", "some.name", 200)
    assert plain["message"] == 'a line\nof "text" \udc80'
    assert (failed["request_id"], failed["trace_id"], failed["level"]) == ("r1", "ab" * 16, "error")
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")
    assert "careful" in warned["message"]


FLOOD = """
import logging, sys
from radixrt.logs import configure_logging

configure_logging("info", "main")
for i in range(20_000):
    logging.info("line %d", i)
print("is not stopped", flush=True)
sys.stdin.readline()
logging.info("the last")
"""


def test_a_log_that_nobody_reads_stops_no_process() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FLOOD], text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "is not stopped\n"
        assert not fcntl.fcntl(process.stderr, fcntl.F_GETFL) & os.O_NONBLOCK
        kept = os.read(process.stderr.fileno(), 1 << 20).decode().splitlines()
        process.stdin.write("go\n")
        process.stdin.flush()
        dropped, last = process.stderr.read().splitlines()
    assert all(f"line {i}" in line for i, line in enumerate(kept))
    assert dropped == f"{20_000 - len(kept)} lines of the log were dropped, because nobody read it"
    assert last.endswith("the last")


def test_dropped_lines_are_told_in_json_too() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    handler = PipeHandler(writer)
    handler.setFormatter(JsonFormatter("main"))
    handler.dropped = 3
    handler.emit(logging.LogRecord("name", logging.INFO, "", 0, "text", None, None))
    dropped, last = (json.loads(line) for line in os.read(reader, 1 << 20).splitlines())
    assert dropped["message"] == "3 lines of the log were dropped, because nobody read it"
    assert (dropped["level"], last["message"]) == ("warning", "text")


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_dropped_lines_are_counted(kind: str) -> None:
    handler: PipeHandler
    if kind == "pipe":
        reader, writer = os.pipe2(os.O_NONBLOCK)
        handler = PipeHandler(writer)
    else:
        ours, theirs = socket.socketpair()
        reader, handler = ours.detach(), SocketHandler(theirs.detach())
        os.set_blocking(reader, False)
    record = logging.LogRecord("name", logging.INFO, "", 0, "x" * 1000, None, None)
    while not handler.dropped:
        handler.emit(record)
    handler.emit(record)
    assert handler.dropped == 2
    while True:
        try:
            os.read(reader, 1 << 20)
        except BlockingIOError:
            break
    handler.emit(record)
    assert os.read(reader, 1 << 20).decode().strip().splitlines()[-2:] == [
        "2 lines of the log were dropped, because nobody read it", "x" * 1000,
    ]  # fmt: skip
    assert handler.dropped == 0
