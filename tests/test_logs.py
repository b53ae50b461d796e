"""Log lines carry the id of the HTTP request that their context works for."""

from __future__ import annotations

import json
import subprocess
import sys

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
