"""Worker processes that compile constraints: their start, their number, their end, and jobs shared and repeated."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile import client as compile_client
from radixrt.constrained.compile import compiler, grammar_manager
from radixrt.constrained.compile.cache import TemplateCache
from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.constrained.compile.fork_server import Worker
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.compile.protocol import READY, CompileResult, WorkerSettings, frame
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, StructuredOptions
from radixrt.os_process import is_alive, read_stat
from tests.constrained.compile.managers import (
    COMPILE_S,
    LIMIT_S,
    Clock,
    MakeManager,
    client_of,
    drain,
    request,
    until_workers_are_ready,
    wait_until,
)
from tests.constrained.conftest import EOS_IDS, VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("two_cores")


def test_workers_compile_and_requests_with_one_constraint_wait_together(with_worker: MakeManager, clock: Clock) -> None:
    manager = with_worker()
    for i in range(3):
        manager.submit(request(f"same{i}", regex="[a-z]{3}"), clock.now)
    manager.submit(request("bad", regex="[z-a]"), clock.now)
    manager.submit(request("gone", regex="[a-z]{4}"), clock.now)
    assert manager.num_pending == 5
    assert manager.abort("gone")
    assert not manager.abort("gone")
    assert not manager.abort("unknown")
    ready = drain(manager, clock, 4)
    assert all(ready[f"same{i}"].grammar is not None for i in range(3))
    assert ready["bad"].error is not None
    stats = manager.stats()
    assert stats.hits == 2
    assert manager.num_pending == 0
    manager.submit(request("again", regex="[a-z]{3}"), clock.now)
    info = drain(manager, clock)["again"].info
    assert info is not None
    assert info.cached


def test_the_vocabulary_is_never_walked_by_the_garbage_collector(
    vocabulary: Vocabulary, with_worker: MakeManager, clock: Clock
) -> None:
    gc.unfreeze()
    assert any(one is vocabulary for one in gc.get_objects())
    manager = with_worker()
    wait_until(lambda: manager.poll(clock.now) == [] and manager._backends is not None, "nothing was loaded")
    assert not any(one is vocabulary for one in gc.get_objects())
    gc.unfreeze()


READY_WORKER = """
import json, sys
from radixrt.constrained.compile.protocol import CompileJob, WorkerSettings
from radixrt.constrained.compile.worker import CompileWorker
from radixrt.constraint import Constraint
worker = CompileWorker(WorkerSettings(sys.argv[1], 49152, [0, 2]))
loaded = set(sys.modules)
for kind, source in json.loads(sys.argv[2]):
    result = worker._compile(CompileJob(1, Constraint(kind=kind, source=source), 60.0))
    assert result.error is None, result.error
print(json.dumps(sorted(set(sys.modules) - loaded)))
"""


def test_a_worker_that_is_ready_has_loaded_what_compiling_needs(model_folder: Path) -> None:
    ordinary = [
        ("json_schema", '{"type": "object", "properties": {"size": {"type": "integer", "maximum": 7}}}'),
        ("regex", "(yes|no)[0-9]+"),
        ("ebnf", 'root ::= "a" root | "b"'),
        ("choices", '["red", "green"]'),
    ]
    said = subprocess.run(
        [sys.executable, "-c", READY_WORKER, str(model_folder), json.dumps(ordinary)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert json.loads(said) == []


@pytest.mark.parametrize("starting", [True, False])
def test_stopped_worker_is_continued(starting: bool, hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("first", choices=["warm", "up"]), clock.now)
    client = client_of(manager)
    if not starting:
        drain(manager, clock)
    assert client._server is not None
    for pid in (client._server.process.pid, *client.pids):
        os.kill(pid, signal.SIGSTOP)
    manager.submit(request("own", regex="[ab]+"), clock.now)
    ready = drain(manager, clock, 1 + starting)
    assert ready["own"].grammar is not None


def test_job_of_a_killed_worker_is_tried_once_more(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("first", choices=["warm", "up"]), clock.now)
    drain(manager, clock)
    victim = client_of(manager).pids[0]
    os.kill(victim, signal.SIGSTOP)
    manager.submit(request("own", regex="[ab]+"), clock.now)
    manager.submit(request("next", choices=["a", "b"]), clock.now)
    os.kill(victim, signal.SIGKILL)
    ready = drain(manager, clock, 2)
    assert ready["next"].grammar is not None
    assert ready["own"].grammar is not None
    assert victim not in client_of(manager).pids


def test_jobs_of_a_killed_server_are_compiled_by_the_workers_of_another(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    client = client_of(manager)
    server, workers = client._server, [read_stat(pid) for pid in client.pids]
    assert server is not None
    manager.submit(request("bomb", regex="hang"), clock.now)
    for _ in range(2):  # an end of the server is nothing that the constraint has done
        assert client._server is not None
        client._server.process.kill()
        manager.submit(request("own", regex="[ab]+"), clock.now)
        assert drain(manager, clock)["own"].grammar is not None
        manager._templates = TemplateCache(10**6)
        assert client._server is not server
    gone = [each for each in workers if each is not None]
    wait_until(lambda: not any(is_alive(pid, each.start_time) for pid, each in zip(client.pids, gone)), "they live")
    assert manager.num_pending == 1
    assert not any(job.was_interrupted for job in client._waiting.values())


@pytest.mark.parametrize(("cores", "ahead", "most"), [(4, 1, 2), (8, 2, 2), (16, 4, 4), (128, 4, 4)])
def test_workers_by_cores(cores: int, ahead: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests may bring many constraints, and a second worker that starts only then comes too late."""
    monkeypatch.setattr(compile_client, "available_cores", lambda: cores)
    client = compile_client.CompileClient(WorkerSettings("none", VOCAB_SIZE, list(EOS_IDS)))
    try:
        assert (client._spares, client._max_workers) == (ahead, most)
    finally:
        client.close()


def test_workers_that_do_not_start_are_no_reason_to_wait(
    monkeypatch: pytest.MonkeyPatch, with_worker: MakeManager, clock: Clock
) -> None:
    monkeypatch.setattr(compile_client, "WORKER_MODULE", "tests.constrained.compile.no_such_module")
    manager = with_worker()
    manager.submit(request("r", choices=["a", "b"]), clock.now)
    error = drain(manager, clock)["r"].error
    assert error is not None
    assert error.status == 503


@pytest.mark.parametrize(
    ("folder", "reason", "status", "attempts"),
    [
        ("aborts", "it ended at once", 503, 3),
        ("raises", "KeyError: 'a defect'", 503, 3),
        ("ends", "it ended at once", 503, 3),
        ("no-tokenizer", "no-tokenizer is not a folder", 501, 1),
    ],
)
def test_workers_that_cannot_start_are_not_started_for_ever(
    folder: str, reason: str, status: int, attempts: int, vocabulary: Vocabulary, model_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: Clock,
) -> None:  # fmt: skip
    monkeypatch.setattr(compile_client, "WORKER_MODULE", "tests.constrained.compile.hostile_worker")
    started: list[object] = []
    popen = subprocess.Popen
    monkeypatch.setattr(compile_client.subprocess, "Popen", lambda *a, **o: started.append(a) or popen(*a, **o))
    source = tmp_path / folder
    if folder == "ends":
        source.symlink_to(model_folder)
    settings = WorkerSettings(str(source), VOCAB_SIZE, list(EOS_IDS))
    manager = GrammarManager(lambda: vocabulary, worker=settings, inline=False, compile_timeout_s=COMPILE_S)
    try:

        def is_over() -> bool:
            assert manager.poll(clock.now) == []
            client = client_of(manager)
            return "does not start" in caplog.text and not client.pids and client._server is None

        wait_until(is_over, "starts go on")
        for i in range(3):
            manager.submit(request(f"r{i}", choices=["a", str(i)]), clock.now)
        for ready in drain(manager, clock, 3).values():
            assert ready.error is not None
            assert reason in ready.error.message
            assert (ready.error.param, ready.error.status) == ("choices", status)
        assert attempts <= len(started) <= attempts + 1  # the second worker may be on its way
        assert len([line for line in caplog.messages if "does not start" in line]) == 1
    finally:
        manager.close()


class EndingServer:
    """A fork server whose workers end at once, but for the first one."""

    def __init__(self, *arguments: object) -> None:
        self._ends, self._others = socket.socketpair()
        self.process = subprocess.Popen(["sleep", "600"])
        self.started, self.has_served, self.failure = 0.0, True, None
        self.forked: list[Worker] = []
        self._kept: list[socket.socket] = []

    def fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.forked.append(Worker(ours))
        if len(self.forked) == 1:
            self._kept.append(theirs)
            theirs.send(frame(msgspec.msgpack.encode(CompileResult(READY, pid=self.process.pid))))
        else:
            theirs.close()
        return self.forked[-1]

    def fileno(self) -> int:
        return self._ends.fileno()

    def has_ended(self) -> bool:
        return False

    def continue_if_stopped(self) -> None: ...

    def kill(self) -> None:
        self.process.kill()
        for each in (self._ends, self._others, *self._kept):
            each.close()


def test_a_job_in_a_worker_is_refused_when_starts_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_client, "ForkServer", EndingServer)
    client = compile_client.CompileClient(WorkerSettings("nowhere", VOCAB_SIZE, list(EOS_IDS)), max_workers=1)
    constraint = Constraint(kind="regex", source="a")
    client.submit(7, constraint, 0.0, COMPILE_S)
    answers: list[CompileResult] = []
    for now in range(1, 20):
        answers += client.poll(float(now))
    client.close()
    assert [answer.id for answer in answers] == [7]
    assert answers[0].error is not None
    assert "does not start" in answers[0].error.message


def test_what_was_expensive_comes_from_disk_the_next_time(
    with_worker: MakeManager, clock: Clock, tmp_path: Path
) -> None:
    words = [f"{i:05}" * 3 for i in range(3000)]
    for attempt in range(2):
        manager = with_worker()
        manager.submit(request("r", choices=words), clock.now)
        assert drain(manager, clock)["r"].grammar is not None
        assert manager.stats().disk_hits == attempt
        written = lambda: any(len(path.name) == 64 for path in tmp_path.glob("cache/*"))  # noqa: E731
        wait_until(written, "nothing was written")  # it is written after the answer
        manager.close()


def test_workers_end_with_their_engine(with_worker: MakeManager, clock: Clock) -> None:
    manager = with_worker()
    until_workers_are_ready(manager, clock)
    client = client_of(manager)
    pid, server = client.pids[0], client._server
    assert server is not None
    start = read_stat(pid)
    assert start is not None
    server._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does when the engine's process ends
    assert server.process.wait(LIMIT_S) == 0
    wait_until(lambda: not is_alive(pid, start.start_time), "a worker lives")


def test_what_loads_slowly_is_loaded_beside_the_scheduler(with_worker: MakeManager, clock: Clock) -> None:
    manager = with_worker()
    options = StructuredOptions(backend="xgrammar")
    manager.submit(request("ours", regex="[a-z]{3}", structured=options), clock.now)
    manager.submit(request("large", choices=[f"{i:05}" * 4 for i in range(4000)]), clock.now)
    ready = drain(manager, clock, 2)
    assert all(each.error is None for each in ready.values())
    assert ready["ours"].info is not None
    assert ready["ours"].info.backend == "xgrammar"


def test_workers_start_when_the_engine_was_idle_or_with_the_first_constraint(
    with_worker: MakeManager, clock: Clock
) -> None:
    manager = with_worker(starts_idle=True)
    client, start = client_of(manager), clock.now
    for seconds, idle in [(0.0, True), (0.4, True), (0.6, False), (1.0, True)]:
        assert manager.poll(start + seconds, idle=idle) == []
        assert client._server is None
    manager.poll(start + 1.5, idle=True)
    assert client._server is not None
    manager.submit(request("r", regex="[a-z]{3}"), clock.now)
    assert drain(manager, clock)["r"].error is None

    manager = with_worker(starts_idle=True)
    manager.submit(request("r", regex="[a-z]{3}"), clock.now)
    assert client_of(manager)._server is not None
    assert drain(manager, clock, steps_in_flight=True)["r"].error is None


@pytest.mark.parametrize("steps_in_flight", [False, True])
def test_small_grammars_are_loaded_beside_steps_and_at_once_without(
    with_worker: MakeManager, clock: Clock, monkeypatch: pytest.MonkeyPatch, steps_in_flight: bool
) -> None:
    loaded_in: list[threading.Thread] = []
    load_really = compiler.load

    def load(compiled: CompiledConstraint, backends: Backends) -> GrammarTemplate:
        loaded_in.append(threading.current_thread())
        return load_really(compiled, backends)

    monkeypatch.setattr(compiler, "load", load)
    manager = with_worker()
    until_workers_are_ready(manager, clock)
    manager.submit(request("small", regex="[a-z]{3}"), clock.now)
    (ready,) = drain(manager, clock, steps_in_flight=steps_in_flight).values()
    assert ready.error is None
    assert [thread is threading.current_thread() for thread in loaded_in] == [not steps_in_flight]


def test_a_small_grammar_does_not_wait_for_a_large_one_that_is_loading(
    with_worker: MakeManager, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    load_really = compiler.load

    def load(compiled: CompiledConstraint, backends: Backends) -> GrammarTemplate:
        if len(compiled.source) > grammar_manager.SMALL_SOURCE:
            assert released.wait(LIMIT_S)
        return load_really(compiled, backends)

    monkeypatch.setattr(compiler, "load", load)
    manager = with_worker()
    until_workers_are_ready(manager, clock)
    manager.submit(request("large", choices=[f"{i:05}" * 4 for i in range(4000)]), clock.now)
    wait_until(lambda: manager.poll(clock.now, steps_in_flight=True) == [] and bool(manager._loading), "no load")
    manager.submit(request("small", regex="[a-z]{3}"), clock.now)
    assert list(drain(manager, clock, steps_in_flight=True)) == ["small"]
    released.set()
    assert list(drain(manager, clock, steps_in_flight=True)) == ["large"]
    assert manager._loading == {}


@pytest.mark.parametrize("is_compiled_first", [True, False])
def test_a_vocabulary_of_two_threads_loads_each_grammar_once(
    vocabulary: Vocabulary, model_folder: Path, clock: Clock, is_compiled_first: bool
) -> None:
    """Inline, a Lark grammar has a worker and the loader's thread; others are compiled in the calling thread."""
    released = threading.Event()

    def make_vocabulary() -> Vocabulary:
        assert threading.current_thread() is threading.main_thread() or released.wait(LIMIT_S)
        return vocabulary

    settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS))
    manager = GrammarManager(make_vocabulary, inline=True, worker=settings, compile_timeout_s=COMPILE_S)
    try:
        manager.submit(request("lark", ebnf='start: "a" | "b"'), clock.now)
        (lark,) = manager._compilations.values()
        ready: list[str] = []

        def poll() -> None:
            ready.extend(each.message.rid for each in manager.poll(clock.now, steps_in_flight=True))

        for name in ("compiled", "inline") if is_compiled_first else ("inline", "compiled"):
            if name == "inline":
                manager.submit(request("inline", regex="[a-z]"), clock.now)
            else:
                wait_until(lambda: (poll(), lark.compiled is not None)[1], "it was not compiled")
        released.set()
        wait_until(lambda: (poll(), len(ready) == 2)[1], "the grammars were not loaded")
        assert sorted(ready) == ["inline", "lark"]
        assert manager.num_pending == 0
        assert manager._loading == {}
    finally:
        released.set()
        manager.close()
