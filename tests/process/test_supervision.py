"""Supervision of killed processes: detection, errors that clients get, and cleanup."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import radixrt
from radixrt.engine.engine_folder import remove_stale_folders
from radixrt.errors import EngineError
from tests.process.chaos.faults import COMPILER, processes
from tests.process.helpers import generate, gone, program_with_engine, socket_folders, wait_requests, workers
from tests.server_process import LIMIT_S, ServerProcess, wait_for


@pytest.fixture
def tiny_server(long_model: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server with a grace time of 1.5 s, or of as many seconds as a test's parameter says."""
    server = ServerProcess(
        "--model", str(long_model), "--dtype", "float32", "--kv-cache-tokens", "70000", "--num-threads", "1",
        "--served-model-name", "tiny", "--grace-s", getattr(request, "param", "1.5"),
    ).wait_ready()  # fmt: skip
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()


def draining(server: ServerProcess) -> bool:
    """Return True if the server takes no more requests, or is gone already."""
    try:
        return httpx.get(f"{server.url}/ready", timeout=LIMIT_S).status_code == 503
    except httpx.TransportError:
        return True


@pytest.mark.parametrize("tiny_server", ["600"], indirect=True)
def test_sigterm_drains_and_leaves_nothing(tiny_server: ServerProcess) -> None:
    folders = socket_folders()
    before = workers(tiny_server)
    body = {"text": "hello", "sampling_params": {"temperature": 0, "max_tokens": 1000, "ignore_eos": True}}
    with httpx.stream("POST", f"{tiny_server.url}/generate", json={**body, "stream": True}, timeout=LIMIT_S) as answer:
        lines = answer.iter_lines()
        next(lines)
        tiny_server.process.terminate()
        assert wait_for(lambda: draining(tiny_server))
        with contextlib.suppress(httpx.TransportError):  # the drain may be over already, and nobody listens
            assert generate(tiny_server).status_code == 503, "a new request during the drain"
        events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["meta_info"]["completion_tokens"] == 1000
    assert tiny_server.process.wait(LIMIT_S) == 0
    assert all(gone(p.pid) for p in before.values())
    assert len(socket_folders()) < len(folders)


def test_requests_that_outlast_the_grace_time_are_ended(tiny_server: ServerProcess) -> None:
    answers: list[httpx.Response] = []
    forever = {"temperature": 0, "max_tokens": 60000, "ignore_eos": True}
    thread = threading.Thread(target=lambda: answers.append(generate(tiny_server, sampling_params=forever)))
    thread.start()
    wait_requests(tiny_server, 1)
    tiny_server.process.terminate()
    tiny_server.process.wait(LIMIT_S)
    thread.join(LIMIT_S)
    assert len(answers) == 1


def test_sigint_leaves_nothing(tiny_server: ServerProcess) -> None:
    before = workers(tiny_server)
    folders = socket_folders()
    tiny_server.process.send_signal(signal.SIGINT)
    tiny_server.wait()
    assert wait_for(lambda: all(gone(process.pid) for process in before.values()))
    assert len(socket_folders()) < len(folders)


def test_a_killed_main_leaves_no_process_not_even_a_stopped_one(tiny_server: ServerProcess) -> None:
    schema = {"json_schema": json.dumps({"type": "object"}), "temperature": 0, "max_tokens": 4}
    assert generate(tiny_server, sampling_params=schema).status_code == 200
    found = processes(tiny_server.process.pid)
    assert found[COMPILER]
    everything = [process for each in found.values() for process in each]
    folders = socket_folders()
    own = f"/proc/{tiny_server.process.pid}/fd/"
    assert any(os.readlink(folder / "masks").startswith(own) for folder in folders if (folder / "masks").is_symlink())
    for process in (*found[COMPILER], *found["scheduler"]):
        process.send_signal(signal.SIGSTOP)
    tiny_server.process.kill()
    tiny_server.wait()
    assert wait_for(lambda: all(gone(process.pid) for process in everything))
    assert len(socket_folders()) == len(folders)
    remove_stale_folders()  # as the next engine does
    assert len(socket_folders()) < len(folders)


def test_a_broken_model_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    server = ServerProcess("--model", str(tmp_path))
    assert server.wait() == 2
    assert any("radixrt:" in line and str(tmp_path) in line for line in server.lines), server.lines
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize("then", ["", "sys.stdin.read()"], ids=["ends", "is terminated"])
def test_no_worker_outlives_a_program_that_closed_no_engine(long_model: Path, then: str) -> None:
    folders = socket_folders()
    program, pids = program_with_engine(long_model, then)
    assert len(pids) == 3
    if then:
        program.terminate()  # the program has no handler of its own
    program.communicate(timeout=LIMIT_S)
    assert wait_for(lambda: all(gone(pid) for pid in pids.values()))
    if not then:
        assert socket_folders() <= folders


@pytest.fixture(scope="module")
def engine(long_model: Path) -> Iterator[radixrt.Engine]:
    """An engine whose failures are final; the last test causes one."""
    options = {"kv_cache_tokens": 8192, "num_threads": 1, "max_restarts": 0}
    with radixrt.Engine(str(long_model), dtype="float32", show_progress=False, **options) as engine:
        yield engine


def test_garbage_on_a_socket_is_dropped(engine: radixrt.Engine) -> None:
    import zmq

    folder = engine._launcher.folder  # type: ignore[union-attr]
    assert os.stat(folder).st_mode & 0o777 == 0o700
    context = zmq.Context()
    for name in ("tokenizer.0", "scheduler.0", "runner-0.0", "answers.0", "main.0"):
        socket = context.socket(zmq.PUSH)
        socket.connect(f"ipc://{folder}/{name}")
        for frame in (b"", b"\x00", b"\x93\xa4nope", b"\xff" * 1000):
            socket.send(frame)
        socket.close(linger=500)
    context.term()
    assert engine.generate("hello", {"max_tokens": 3, "temperature": 0}).usage.completion_tokens > 0
    engine.check_invariants()


def test_the_offline_engine_reports_a_killed_runner_once_the_restarts_are_spent(engine: radixrt.Engine) -> None:
    os.kill(engine.pids["ModelRunner"], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"ModelRunner process .* signal 9"):
        engine.generate("hello", {"max_tokens": 4000, "ignore_eos": True})
    with pytest.raises(EngineError, match=r"ModelRunner process .* signal 9"):
        engine.generate("hello")
