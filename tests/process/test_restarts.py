"""Processes that are killed, stopped or stuck are started anew; past the budget the server ends and says why."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

import radixrt
from radixrt.engine.restarts import ExitCode
from radixrt.errors import EngineError
from tests.process.helpers import generate, gone, wait_requests, workers
from tests.server_process import LIMIT_S, ServerProcess, metrics, wait_for, wait_idle

PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
LONG = {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}
"""Runs for seconds, in which a process fails."""
SHORT = {**LONG, "max_tokens": 64}
"""Yields the first of the same tokens."""
NAMES = {"tokenizer": "tokenizer", "scheduler": "scheduler", "runner": "ModelRunner"}


def start(folder: Path, *arguments: str) -> ServerProcess:
    return ServerProcess(
        "--model", str(folder), "--dtype", "float32", "--kv-cache-tokens", "8192", "--num-threads", "1", *arguments
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(long_model: Path) -> Iterator[ServerProcess]:
    server = start(long_model, "--max-restarts", "100").wait_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def impatient_server(long_model: Path) -> Iterator[ServerProcess]:
    server = start(long_model, "--max-restarts", "100", "--hang-timeout-s", "5").wait_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> list[int]:
    ids: list[int] = generate(server, sampling_params=LONG).json()["output_ids"]
    return ids


def answers_rightly(server: ServerProcess, expected: list[int]) -> bool:
    found: list[int] = generate(server, sampling_params=SHORT).json()["output_ids"]
    return found == expected[: len(found)] and len(found) == SHORT["max_tokens"]


class Streaming(threading.Thread):
    """A streaming request; its events are complete when the thread has ended."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._url = server.url
        self.events: list[dict[str, object]] = []
        self.begun = threading.Event()

    def run(self) -> None:
        body = {"text": "hello", "sampling_params": LONG, "stream": True}
        with httpx.stream("POST", f"{self._url}/generate", json=body, timeout=LIMIT_S) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    self.begun.set()


def errors(server: ServerProcess, since: int) -> list[str]:
    """Return the errors that main has logged since line number `since`."""
    return [line for line in server.lines[since:] if "ERROR main:" in line]


def ready(server: ServerProcess) -> bool:
    return httpx.get(f"{server.url}/ready", timeout=LIMIT_S).status_code == 200


def start_times(server: ServerProcess) -> dict[str, float]:
    """Return when each process was started, by its name in the metrics."""
    pattern = re.compile(r'radixrt_process_start_time_seconds\{process="(.+)"\} (\S+)')
    return {found[1]: float(found[2]) for found in map(pattern.fullmatch, metrics(server.url)) if found}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("kind", list(NAMES))
def test_a_failed_process_is_started_anew(
    server: ServerProcess, expected: list[int], kind: str, how: signal.Signals
) -> None:
    seen = len(server.lines)
    before, started = workers(server), start_times(server)
    stream = Streaming(server)
    stream.start()
    assert stream.begun.wait(LIMIT_S)
    before[kind].send_signal(how)
    stream.join(LIMIT_S)
    assert answers_rightly(server, expected), "a new request"
    how_seen = "killed by signal 9" if how == signal.SIGKILL else "stopped by a signal"
    if kind == "runner":
        assert [token for event in stream.events for token in event["output_ids"]] == expected  # type: ignore[attr-defined]
    else:
        error = stream.events[-1]["error"]
        assert isinstance(error, dict)
        assert f"the {kind} process (pid {before[kind].pid})" in error["message"]
        assert how_seen in error["message"]
    restarted = ["runner"] if kind == "runner" else ["tokenizer", "scheduler"]
    assert [gone(before[name].pid) for name in NAMES] == [name in restarted for name in NAMES]
    assert wait_for(lambda: ready(server))
    (line,) = errors(server, seen)
    assert f"the {NAMES[kind]} process" in line
    assert how_seen in line
    assert f"restarting {' and '.join(NAMES[name] for name in restarted)}" in line
    assert line.rstrip().endswith(": 1") or ": 1;" in line, "one open request"
    now = start_times(server)
    assert {name for name in now if now[name] > started[name]} == {NAMES[name] for name in restarted}
    if "scheduler" in restarted:  # its counters began at zero
        assert wait_for(lambda: f"radixrt_generation_tokens_total {SHORT['max_tokens']}.0" in metrics(server.url))
        assert f"radixrt_inter_token_latency_seconds_count {SHORT['max_tokens'] - 1}.0" in metrics(server.url)


def test_stopped_child_of_a_killed_worker_goes_with_it(server: ServerProcess) -> None:
    scheduler = workers(server)["scheduler"]
    with subprocess.Popen(["sleep", "600"], process_group=scheduler.pid) as child:  # as a compile worker that starts
        child.send_signal(signal.SIGSTOP)
        scheduler.kill()
        assert child.wait(LIMIT_S) == -signal.SIGKILL
    assert wait_for(lambda: ready(server))


def test_everything_at_once_starts_anew(server: ServerProcess, expected: list[int]) -> None:
    before = workers(server)
    for process in before.values():
        process.kill()
    assert generate(server).status_code in (200, 503)
    assert wait_for(lambda: ready(server))
    assert answers_rightly(server, expected)
    assert not {p.pid for p in before.values()} & {p.pid for p in workers(server).values()}
    wait_idle(server.url)


def test_a_server_that_was_stopped_as_a_whole_goes_on(server: ServerProcess, expected: list[int]) -> None:
    """Main is stopped together with its workers, as by a debugger or a suspended container, and nothing has failed."""
    seen = len(server.lines)
    before = workers(server)
    everything = [psutil.Process(server.process.pid), *before.values()]
    for process in everything:
        process.suspend()
    assert wait_for(lambda: all(process.status() == psutil.STATUS_STOPPED for process in everything))
    threading.Event().wait(3)
    for process in everything:
        process.resume()
    assert answers_rightly(server, expected)
    assert {p.pid for p in workers(server).values()} == {p.pid for p in before.values()}
    assert errors(server, seen) == []


def freeze_main_thread(pid: int) -> None:
    """Let the main thread of a process never run again, while its other threads do; return when the process has ended.

    ptrace(2) stops single threads. The tracer must reap the process before its parent can.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, pid, None, None) != 0:
            pytest.skip(f"this machine does not allow ptrace: {os.strerror(ctypes.get_errno())}")
    while True:
        _, status = os.waitpid(pid, WALL)
        if not os.WIFSTOPPED(status):
            return


@pytest.mark.parametrize("kind", list(NAMES))
def test_a_stuck_process_is_started_anew(impatient_server: ServerProcess, kind: str) -> None:
    server = impatient_server
    seen = len(server.lines)
    assert generate(server).status_code == 200
    freeze_main_thread(workers(server)[kind].pid)
    assert wait_for(lambda: errors(server, seen) != [])
    assert wait_for(lambda: generate(server).status_code == 200)
    (line,) = errors(server, seen)
    assert f"the {NAMES[kind]} process" in line
    assert "did not respond for" in line


def test_past_the_budget_the_server_ends_with_a_code(long_model: Path) -> None:
    server = start(long_model, "--max-restarts", "1").wait_ready()
    workers(server)["tokenizer"].kill()
    assert generate(server).status_code in (200, 503)
    assert wait_for(lambda: ready(server))
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(generate(server, sampling_params=LONG)))
    thread.start()
    wait_requests(server, 1)
    workers(server)["runner"].kill()
    thread.join(LIMIT_S)
    assert server.wait() == ExitCode.RESTARTS_SPENT
    assert answers[0].status_code == 503
    assert "ModelRunner process" in answers[0].json()["error"]["message"]
    assert any("exiting after 1 restarts within 300 s" in line for line in server.lines), server.lines
    assert any("exiting with code 3: the ModelRunner process" in line for line in server.lines), server.lines


def test_a_server_with_external_ranks_ends_with_a_code(long_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    with pytest.MonkeyPatch.context() as patch:
        servers = []
        for rank in ("1", "0"):
            for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items():
                patch.setenv(name, value)
            servers.append(start(long_model, "--executor", "external"))
    other, first = servers
    first.wait_ready()
    other.process.kill()
    other.wait()
    assert first.wait() == ExitCode.EXTERNAL_RANK
    assert any("started externally cannot restart" in line for line in first.lines), first.lines


def test_the_offline_engine_goes_on(long_model: Path) -> None:
    options = {"kv_cache_tokens": 8192, "num_threads": 1, "max_restarts": 2, "show_progress": False}
    with radixrt.Engine(str(long_model), dtype="float32", **options) as engine:
        first = engine.generate("hello", SHORT)
        stream = engine.stream("hello", LONG)
        next(stream)
        os.kill(engine.pids["ModelRunner"], signal.SIGKILL)
        assert "".join(chunk.text for chunk in stream)
        stream = engine.stream("hello", LONG)
        next(stream)
        os.kill(engine.pids["scheduler"], signal.SIGKILL)
        with pytest.raises(EngineError, match=r"scheduler process .* signal 9"):
            list(stream)
        assert engine.generate("hello", SHORT).token_ids == first.token_ids
        os.kill(engine.pids["tokenizer"], signal.SIGKILL)
        assert wait_for(lambda: engine.client.failure is not None)
        with pytest.raises(EngineError, match=r"tokenizer process .* signal 9"):
            engine.generate("hello")
