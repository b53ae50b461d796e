"""Requests and their grammars: caches, shared compilations, worker processes, and bad constraints.

Deadlines are those of a clock that only the test moves, so that no verdict depends on the speed of the machine.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from radixrt.constrained.compile import client as compile_client
from radixrt.constrained.compile import grammar_manager
from radixrt.constrained.compile.grammar_manager import FAILURE_S, GrammarManager, ReadyGrammar
from radixrt.constrained.compile.protocol import WorkerSettings
from radixrt.constrained.masks.reasoning import ReasoningGrammar
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from radixrt.messages.scheduler import TokenizedReq
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from tests.constrained.conftest import EOS_IDS, VOCAB_SIZE

MakeManager = Callable[..., GrammarManager]


def request(rid: str, *, timeout_s: float | None = None, **sampling: Any) -> TokenizedReq:
    return TokenizedReq(rid, pack_i32([1, 2, 3]), SamplingParams(**sampling), timeout_s=timeout_s)


LIMIT_S = 600.0
"""Ends a test in which an event does not come; no verdict about how fast anything is."""
COMPILE_S = 500.0
"""Compile timeout in seconds of the test's clock, below the default timeout of a request; no real job takes as long."""


@dataclass
class Clock:
    """A monotonic clock that only the test moves."""

    now: float = field(default_factory=lambda: float(int(time.monotonic())))


def num_compiled(manager: GrammarManager) -> int:
    times = manager.stats().compile_times
    assert times is not None
    return sum(times.counts)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def drain(manager: GrammarManager, clock: Clock, count: int = 1) -> dict[str, ReadyGrammar]:
    """Poll until so many requests are ready, as the scheduler does; by request id."""
    ready: dict[str, ReadyGrammar] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(ready) < count:
        ready |= {each.message.rid: each for each in manager.poll(clock.now)}
        if len(ready) < count:
            assert time.monotonic() < deadline, f"only {sorted(ready)} are ready"
            select.select(manager.sockets(), [], [], 0.05)
    return ready


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of workers is that of a small machine, wherever the tests run."""
    monkeypatch.setattr(compile_client, "available_cores", lambda: 2)


@pytest.fixture
def inline(vocabulary: Vocabulary) -> GrammarManager:
    return GrammarManager(lambda: vocabulary, inline=True)


@pytest.fixture
def with_worker(vocabulary: Vocabulary, model_folder: Path, tmp_path: Path) -> Iterator[MakeManager]:
    made: list[GrammarManager] = []

    def make(**options: Any) -> GrammarManager:
        settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS), str(tmp_path / "cache"))
        made.append(
            GrammarManager(
                lambda: vocabulary, worker=settings, **{"inline": False, "compile_timeout_s": COMPILE_S, **options}
            )
        )
        return made[-1]

    yield make
    for manager in made:
        manager.close()


def test_each_kind_of_constraint(inline: GrammarManager, vocabulary: Vocabulary) -> None:
    kinds: list[dict[str, Any]] = [
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
        {"regex": "[a-c]{2}"},
        {"ebnf": 'root ::= "x" root "y" | "xy"'},
        {"choices": ["one", "two"]},
    ]
    shortest = ['{"a":0}', "aa", "xy", ("one", "two")]
    for i, kind in enumerate(kinds):
        inline.submit(request(f"r{i}", **kind), 0.0)
    for i, ready in enumerate(inline.poll(0.0)):
        assert ready.message.rid == f"r{i}"
        assert ready.error is None
        assert ready.grammar is not None
        text = vocabulary.decode(ready.grammar.closing()).decode()
        assert text == shortest[i] or text in shortest[i]
        assert ready.info is not None
        assert ready.info.backend == "llguidance"
        assert not ready.info.cached
    assert num_compiled(inline) == 4
    assert inline.num_pending == 0


def test_a_stop_token_that_would_cut_the_answer_is_refused(inline: GrammarManager, vocabulary: Vocabulary) -> None:
    think, file = (vocabulary.control_tokens[name] for name in ("<issue_start>", "<file_sep>"))
    options = StructuredOptions(reasoning_end="<issue_start>")
    cases = {
        "text": request("text", regex="a+", stop_token_ids=tuple(vocabulary.encode("a"))),
        "marker": request("marker", regex="a+", stop_token_ids=(think,), structured=options),
        "other": request("other", regex="a+", stop_token_ids=(file,), structured=options),
    }
    for message in cases.values():
        inline.submit(message, 0.0)
    ready = {each.message.rid: each for each in inline.poll(0.0)}
    for rid in ("text", "marker"):
        error = ready[rid].error
        assert error is not None
        assert (error.param, error.status) == ("stop_token_ids", 400)
    assert ready["other"].grammar is not None


def test_what_is_known_is_there_at_once(inline: GrammarManager, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        inline.submit(request(f"r{i}", choices=["a", "b"]), float(i))
    ready = inline.poll(3.0)
    assert [each.info.cached for each in ready if each.info] == [False, True, True]
    grammars = [each.grammar for each in ready if each.grammar]
    assert len(set(map(id, grammars))) == 3
    stats = inline.stats()
    assert (num_compiled(inline), stats.hits, stats.cache_entries) == (1, 2, 1)
    monkeypatch.setattr(grammar_manager, "compile_constraint", None)  # nothing is compiled or loaded again
    monkeypatch.setattr(grammar_manager, "load", None)
    for i in range(100):
        inline.submit(request(f"s{i}", choices=["a", "b"]), 4.0)
        (known,) = inline.poll(4.0)
        assert known.grammar is not None
    assert inline.stats().hits == 102


def test_the_cache_is_bounded(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, cache_bytes=300_000)
    for i in range(20):
        manager.submit(request(f"r{i}", choices=["a", f"b{i}"]), 0.0)
    assert all(each.error is None for each in manager.poll(0.0))
    stats = manager.stats()
    assert 1 <= stats.cache_entries < 20
    assert stats.cache_bytes <= 300_000
    manager.submit(request("old", choices=["a", "b0"]), 0.0)
    assert num_compiled(manager) == 21


def test_a_bad_constraint_ends_its_request_and_is_remembered_for_a_while(inline: GrammarManager) -> None:
    for now in (0.0, FAILURE_S / 2, FAILURE_S + 1):
        inline.submit(request("bad", regex="(a"), now)
        (ready,) = inline.poll(now)
        assert ready.grammar is None
        assert ready.error is not None
        assert (ready.error.param, ready.error.status) == ("regex", 400)
    assert inline.stats().refusals == {"regex": 3}


def test_the_keyword_at_fault_is_counted(inline: GrammarManager) -> None:
    schema = '{"type": "array", "uniqueItems": true, "items": {"type": "string"}}'
    inline.submit(request("bad", json_schema=schema), 0.0)
    (ready,) = inline.poll(0.0)
    assert ready.error is not None
    assert "uniqueItems" in ready.error.message
    assert inline.stats().refusals == {"uniqueItems": 1}


def test_the_engines_choice_of_backend_yields_to_the_requests(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, backend="xgrammar")
    manager.submit(request("ours", choices=["a", "b"]), 0.0)
    manager.submit(request("theirs", choices=["a", "b"], structured=StructuredOptions(backend="llguidance")), 0.0)
    assert [each.info.backend for each in manager.poll(0.0) if each.info] == ["xgrammar", "llguidance"]


CLOSING = {
    "type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": True,
}  # fmt: skip
DECLARING = {name: value for name, value in CLOSING.items() if name != "additionalProperties"}
AS_TAG = {"format": {"type": "json_schema", "json_schema": DECLARING}}
AS_OPEN_TAG = {"format": {"type": "json_schema", "json_schema": DECLARING, "closed": False}}


@pytest.mark.parametrize(
    ("fields", "closed", "is_closed"),
    [
        ({"json_schema": DECLARING}, None, True),
        ({"json_schema": DECLARING}, False, False),
        ({"json_schema": DECLARING}, True, True),
        ({"json_schema": CLOSING}, None, False),
        ({"json_schema": {"type": "object"}}, None, False),
        ({"structural_tag": AS_TAG}, None, True),
        ({"structural_tag": AS_TAG}, False, False),
        ({"structural_tag": AS_OPEN_TAG}, None, False),
    ],
)
def test_the_engines_closed_objects_yield_to_the_requests(
    vocabulary: Vocabulary, fields: dict[str, Any], closed: bool | None, is_closed: bool
) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, closed=True)
    manager.submit(request("r", **fields, structured=StructuredOptions(closed=closed)), 0.0)
    grammar = drain(manager, Clock())["r"].grammar
    assert grammar is not None
    more = all(grammar.accept(token) for token in vocabulary.encode_bytes(b'{"a":null,"b":null}'))
    assert (more, grammar.is_terminated()) == (not is_closed, not is_closed)


def test_open_and_closed_schemas_are_different_grammars(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True)
    for closed in (None, False, True):
        manager.submit(request(str(closed), json_schema=DECLARING, structured=StructuredOptions(closed=closed)), 0.0)
        drain(manager, Clock())
    assert (manager.stats().cache_entries, manager.stats().hits) == (2, 1)


def test_reasoning_comes_first_where_it_is_asked_for(inline: GrammarManager) -> None:
    options = StructuredOptions(reasoning_end="</think>", reasoning_budget=50)
    inline.submit(request("r", choices=["a", "b"], structured=options), 0.0)
    inline.submit(request("s", choices=["a", "b"]), 0.0)
    first, second = inline.poll(0.0)
    assert isinstance(first.grammar, ReasoningGrammar)
    assert not isinstance(second.grammar, ReasoningGrammar)
    assert second.info is not None
    assert second.info.cached  # the reasoning is no part of what is compiled


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
import json, os, sys
from radixrt.constrained.compile.protocol import CompileJob, WorkerSettings
from radixrt.constrained.compile.worker import CompileWorker
from radixrt.constraint import Constraint
worker = CompileWorker(WorkerSettings(sys.argv[1], 49152, [0, 2]), os.dup(1))
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


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, with_worker: MakeManager) -> MakeManager:
    monkeypatch.setattr(compile_client, "WORKER_MODULE", "tests.constrained.compile.hostile_worker")
    return with_worker


def until_workers_are_ready(manager: GrammarManager, clock: Clock) -> None:
    def are_ready() -> bool:
        assert manager.poll(clock.now) == []
        assert manager._client is not None
        workers = manager._client._workers
        return len(workers) == 2 and all(worker.ready for worker in workers)

    wait_until(are_ready, "the workers did not start")


def test_a_bomb_is_ended_and_delays_nobody(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    manager.submit(request("bomb", regex="hang"), clock.now)
    for i in range(5):
        manager.submit(request(f"r{i}", choices=["a", str(i)]), clock.now)
    ready = drain(manager, clock, 5)
    assert "bomb" not in ready
    assert all(each.grammar is not None for each in ready.values())
    clock.now += COMPILE_S
    assert manager.poll(clock.now) == []  # the worker could still give up by itself
    clock.now += compile_client.KILL_GRACE_S
    (bomb,) = manager.poll(clock.now)
    error = bomb.error
    assert error is not None
    assert (error.param, error.code, error.status) == ("regex", "compile_timeout", 400)
    assert manager.stats().timeouts == 1
    manager.submit(request("after", choices=["c", "d"]), clock.now)
    assert drain(manager, clock)["after"].grammar is not None


def test_bombs_in_both_workers_are_ended_one_after_the_other(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    for i in range(3):
        manager.submit(request(f"bomb{i}", regex=f"hang{i}"), clock.now)
    assert manager.poll(clock.now) == []
    clock.now += COMPILE_S + 1.0
    errors = [each.error for each in manager.poll(clock.now)]
    assert len(errors) == 3
    assert all(error is not None and error.code == "compile_timeout" for error in errors)
    manager.submit(request("after", choices=["c", "d"]), clock.now)
    assert drain(manager, clock)["after"].grammar is not None


def test_without_processes_what_could_hang_still_gets_one(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile(inline=True)
    asked = StructuredOptions(backend="xgrammar")
    manager.submit(request("plain", regex="[a-c]{2}"), clock.now)
    assert manager.poll(clock.now)[0].grammar is not None
    assert manager.sockets() == []
    manager.submit(request("good", regex="[a-c]{3}", structured=asked), clock.now)
    manager.submit(request("also", regex="[a-c]{4}"), clock.now)
    assert [each.message.rid for each in manager.poll(clock.now)] == ["also"]
    info = drain(manager, clock)["good"].info
    assert info is not None
    assert info.backend == "xgrammar"
    until_workers_are_ready(manager, clock)
    manager.submit(request("hang", regex="hang", structured=asked), clock.now)
    clock.now += COMPILE_S + 1.0
    (hang,) = manager.poll(clock.now)
    error = hang.error
    assert error is not None
    assert (error.param, error.code) == ("regex", "compile_timeout")
    assert len(manager.sockets()) == 2


@pytest.mark.parametrize(("effect", "status"), [("crash", 400), ("eat", 400), ("defect", 500)])
def test_whatever_a_constraint_does_to_its_worker_concerns_it_alone(
    effect: str, status: int, hostile: MakeManager, clock: Clock
) -> None:
    manager = hostile()
    manager.submit(request("bad", regex=effect), clock.now)
    for i in range(3):
        manager.submit(request(f"good{i}", choices=["a", str(i)]), clock.now)
    ready = drain(manager, clock, 4)
    error = ready.pop("bad").error
    assert error is not None
    assert (error.param, error.status) == ("regex", status)
    assert all(each.grammar is not None for each in ready.values())


def test_what_libraries_print_does_not_get_between_the_frames(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("r", regex="noise"), clock.now)
    assert drain(manager, clock)["r"].grammar is not None


@pytest.mark.parametrize("starting", [True, False])
def test_stopped_worker_is_continued(starting: bool, hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("first", choices=["warm", "up"]), clock.now)
    assert manager._client is not None
    if not starting:
        drain(manager, clock)
    for pid in manager._client.pids:
        os.kill(pid, signal.SIGSTOP)
    manager.submit(request("own", regex="[ab]+"), clock.now)
    ready = drain(manager, clock, 1 + starting)
    assert ready["own"].grammar is not None


def test_job_of_a_killed_worker_is_tried_once_more(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("first", choices=["warm", "up"]), clock.now)
    drain(manager, clock)
    assert manager._client is not None
    victim = manager._client.pids[0]
    os.kill(victim, signal.SIGSTOP)
    manager.submit(request("own", regex="[ab]+"), clock.now)
    manager.submit(request("next", choices=["a", "b"]), clock.now)
    os.kill(victim, signal.SIGKILL)
    ready = drain(manager, clock, 2)
    assert ready["next"].grammar is not None
    assert ready["own"].grammar is not None
    assert victim not in manager._client.pids


def test_a_second_worker_is_started_while_nobody_needs_the_cores(hostile: MakeManager, clock: Clock) -> None:
    """Its start takes a second of a core, which requests beside the first slow constraint would pay for."""
    manager = hostile()

    def is_ready() -> bool:
        assert manager.poll(clock.now, crowded=True) == []
        assert manager._client is not None
        return any(worker.ready for worker in manager._client._workers)

    wait_until(is_ready, "the first worker did not start")
    manager.poll(clock.now, crowded=True)
    assert manager._client is not None
    assert len(manager._client.pids) == 1
    manager.poll(clock.now)
    assert len(manager._client.pids) == 2


@pytest.mark.parametrize(("cores", "ahead", "most"), [(4, 1, 2), (8, 2, 2), (16, 4, 4), (128, 4, 4)])
def test_workers_by_cores(cores: int, ahead: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests may bring many constraints, and a second worker that starts only then comes too late."""
    monkeypatch.setattr(compile_client, "available_cores", lambda: cores)
    monkeypatch.setattr(compile_client, "child_command", lambda module: ["cat"])
    client = compile_client.CompileClient(WorkerSettings("none", VOCAB_SIZE, list(EOS_IDS)))
    try:
        client.start(0.0)
        assert len(client.pids) == ahead
        client.start(0.0)
        for _ in range(6):
            for worker in client._workers:
                worker.ready = True
            client._keep_a_spare(0.0, crowded=False)
        assert len(client.pids) == most
    finally:
        client.close()


def test_a_slow_compilation_makes_way_for_running_requests(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    assert manager._client is not None
    pid = manager._client.pids[0]

    def is_stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    manager.submit(request("bomb", regex="hang"), clock.now)
    stopped = []
    for _ in range(200):
        manager.poll(clock.now, crowded=True)
        stopped.append(manager._client._workers[0].stopped)
        wait_until(lambda: is_stopped() is stopped[-1], "a signal did not reach the worker")
        clock.now += 0.005
    assert 0.5 < sum(stopped) / len(stopped) < 1.0
    assert any(now and not after for now, after in itertools.pairwise(stopped))
    manager.poll(clock.now)
    wait_until(lambda: not is_stopped(), "the worker was not let go on")
    clock.now += COMPILE_S
    error = drain(manager, clock)["bomb"].error
    assert error is not None
    assert error.code == "compile_timeout"


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
            assert manager._client is not None
            return "does not start" in caplog.text and not manager._client.pids

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


def test_a_request_whose_time_is_up_does_not_wait_for_its_constraint(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("late", timeout_s=0.5, regex="hang"), clock.now)
    manager.submit(request("later", timeout_s=1.0, regex="hang"), clock.now)
    assert manager.poll(clock.now) == []
    for rid in ("late", "later"):
        clock.now += 0.5
        (ready,) = manager.poll(clock.now)
        assert ready.message.rid == rid
        assert ready.error is not None
        assert ready.error.status == 408
    assert manager.num_pending == 0


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
    manager.submit(request("r", choices=["a", "b"]), clock.now)
    drain(manager, clock)
    assert manager._client is not None
    processes = [worker.process for worker in manager._client._workers]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


def test_what_loads_slowly_is_loaded_beside_the_scheduler(with_worker: MakeManager, clock: Clock) -> None:
    manager = with_worker()
    options = StructuredOptions(backend="xgrammar")
    manager.submit(request("ours", regex="[a-z]{3}", structured=options), clock.now)
    manager.submit(request("large", choices=[f"{i:05}" * 4 for i in range(4000)]), clock.now)
    ready = drain(manager, clock, 2)
    assert all(each.error is None for each in ready.values())
    assert ready["ours"].info is not None
    assert ready["ours"].info.backend == "xgrammar"


def test_a_vocabulary_that_cannot_be_constrained_is_an_error_of_each_request(model_folder: Path, clock: Clock) -> None:
    def fail() -> Vocabulary:
        raise RequestError("this model's tokens have no text")

    settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS))
    manager = GrammarManager(fail, inline=False, worker=settings)
    try:
        manager.submit(request("r", choices=["a", "b"]), clock.now)
        error = drain(manager, clock)["r"].error
        assert error is not None
        assert "no text" in error.message
    finally:
        manager.close()
    manager = GrammarManager(fail, inline=True)
    manager.submit(request("r", choices=["a", "b"]), 0.0)
    (ready,) = manager.poll(0.0)
    assert ready.error is not None


def test_a_defect_in_a_grammar_ends_its_request_alone(
    inline: GrammarManager, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def broken(*arguments: object) -> object:
        raise AttributeError("a defect")

    monkeypatch.setattr(grammar_manager, "compile_constraint", broken)
    inline.submit(request("a", regex="[ab]"), 0.0)
    error = drain(inline, clock)["a"].error
    assert error is not None
    assert "AttributeError" in error.message
