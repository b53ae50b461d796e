"""How requests come to their grammars: caches, waiting together, worker processes, and bad constraints."""

from __future__ import annotations

import itertools
import os
import select
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radixrt.constrained.compile import client as compile_client
from radixrt.constrained.compile import grammar_manager
from radixrt.constrained.compile.grammar_manager import FAILURE_S, GrammarManager, ReadyGrammar
from radixrt.constrained.compile.loader import Loader
from radixrt.constrained.compile.protocol import WorkerSettings
from radixrt.constrained.reasoning import ReasoningGrammar
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


def drain(manager: GrammarManager, count: int = 1, timeout_s: float = 30.0) -> dict[str, ReadyGrammar]:
    """Poll until so many requests are ready, as the scheduler does; by request id."""
    ready: dict[str, ReadyGrammar] = {}
    deadline = time.monotonic() + timeout_s
    while len(ready) < count:
        ready |= {each.message.rid: each for each in manager.poll(time.monotonic())}
        if len(ready) < count:
            assert time.monotonic() < deadline, f"only {sorted(ready)} are ready"
            select.select(manager.sockets(), [], [], 0.05)
    return ready


@pytest.fixture
def inline(vocabulary: Vocabulary) -> GrammarManager:
    return GrammarManager(lambda: vocabulary, inline=True)


@pytest.fixture
def with_worker(vocabulary: Vocabulary, model_folder: Path, tmp_path: Path) -> Iterator[MakeManager]:
    made: list[GrammarManager] = []

    def make(**options: Any) -> GrammarManager:
        settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS), str(tmp_path / "cache"))
        made.append(GrammarManager(lambda: vocabulary, worker=settings, **{"inline": False, **options}))
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
    assert inline.stats().compiles == 4
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


def test_what_is_known_is_there_at_once(inline: GrammarManager) -> None:
    for i in range(3):
        inline.submit(request(f"r{i}", choices=["a", "b"]), float(i))
    ready = inline.poll(3.0)
    assert [each.info.cached for each in ready if each.info] == [False, True, True]
    grammars = [each.grammar for each in ready if each.grammar]
    assert len(set(map(id, grammars))) == 3
    stats = inline.stats()
    assert (stats.compiles, stats.hits, stats.cache_entries) == (1, 2, 1)
    times = []
    for i in range(100):
        started = time.perf_counter()
        inline.submit(request(f"s{i}", choices=["a", "b"]), 4.0)
        inline.poll(4.0)
        times.append(time.perf_counter() - started)
    assert statistics.median(times) < 0.002  # the machine may have other work at times


def test_the_cache_is_bounded(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, cache_bytes=300_000)
    for i in range(20):
        manager.submit(request(f"r{i}", choices=["a", f"b{i}"]), 0.0)
    assert all(each.error is None for each in manager.poll(0.0))
    stats = manager.stats()
    assert 1 <= stats.cache_entries < 20
    assert stats.cache_bytes <= 300_000
    manager.submit(request("old", choices=["a", "b0"]), 0.0)
    assert manager.stats().compiles == 21


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


def test_reasoning_comes_first_where_it_is_asked_for(inline: GrammarManager) -> None:
    options = StructuredOptions(reasoning_end="</think>", reasoning_budget=50)
    inline.submit(request("r", choices=["a", "b"], structured=options), 0.0)
    inline.submit(request("s", choices=["a", "b"]), 0.0)
    first, second = inline.poll(0.0)
    assert isinstance(first.grammar, ReasoningGrammar)
    assert not isinstance(second.grammar, ReasoningGrammar)
    assert second.info is not None
    assert second.info.cached  # the reasoning is no part of what is compiled


def test_workers_compile_and_requests_with_one_constraint_wait_together(with_worker: MakeManager) -> None:
    manager = with_worker()
    now = time.monotonic()
    for i in range(3):
        manager.submit(request(f"same{i}", regex="[a-z]{3}"), now)
    manager.submit(request("bad", regex="[z-a]"), now)
    manager.submit(request("gone", regex="[a-z]{4}"), now)
    assert manager.num_pending == 5
    assert manager.abort("gone")
    assert not manager.abort("gone")
    assert not manager.abort("unknown")
    ready = drain(manager, 4)
    assert all(ready[f"same{i}"].grammar is not None for i in range(3))
    assert ready["bad"].error is not None
    stats = manager.stats()
    assert stats.hits == 2
    assert manager.num_pending == 0
    manager.submit(request("again", regex="[a-z]{3}"), time.monotonic())
    info = drain(manager)["again"].info
    assert info is not None
    assert info.cached


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, with_worker: MakeManager) -> MakeManager:
    monkeypatch.setattr(compile_client, "WORKER_MODULE", "tests.constrained.hostile_worker")
    return with_worker


def test_a_bomb_is_ended_and_delays_nobody(hostile: MakeManager) -> None:
    manager = hostile(compile_timeout_s=5.0)
    manager.submit(request("first", choices=["warm", "up"]), time.monotonic())
    drain(manager)
    started = time.monotonic()
    manager.submit(request("bomb", regex="hang"), started)
    for i in range(5):
        manager.submit(request(f"r{i}", choices=["a", str(i)]), started)
    ready = drain(manager, 5)
    assert "bomb" not in ready
    assert all(each.grammar is not None for each in ready.values())
    error = drain(manager)["bomb"].error
    assert 5.0 < time.monotonic() - started < 8.0
    assert error is not None
    assert (error.param, error.code, error.status) == ("regex", "compile_timeout", 400)
    assert manager.stats().timeouts == 1
    manager.submit(request("after", choices=["c", "d"]), time.monotonic())
    assert drain(manager)["after"].grammar is not None


def until_workers_are_ready(manager: GrammarManager) -> None:
    assert manager._client is not None
    deadline = time.monotonic() + 60
    while len(workers := manager._client._workers) < 2 or not all(worker.ready for worker in workers):
        assert time.monotonic() < deadline
        manager.poll(time.monotonic())
        time.sleep(0.01)


def test_bombs_in_both_workers_are_ended_one_after_the_other(hostile: MakeManager) -> None:
    manager = hostile(compile_timeout_s=3.0)
    manager.submit(request("first", choices=["warm", "up"]), time.monotonic())
    drain(manager)
    until_workers_are_ready(manager)
    started = time.monotonic()
    for i in range(3):
        manager.submit(request(f"bomb{i}", regex=f"hang{i}"), started)
    errors = [each.error for each in drain(manager, 3).values()]
    assert all(error is not None and error.code == "compile_timeout" for error in errors)
    assert time.monotonic() - started < 6.0
    until_workers_are_ready(manager)  # on a busy machine a worker starts for longer than a request may take
    manager.submit(request("after", choices=["c", "d"]), time.monotonic())
    assert drain(manager)["after"].grammar is not None


def test_without_processes_what_could_hang_still_gets_one(hostile: MakeManager) -> None:
    manager = hostile(inline=True, compile_timeout_s=2.0)
    asked = StructuredOptions(backend="xgrammar")
    manager.submit(request("plain", regex="[a-c]{2}"), time.monotonic())
    assert manager.poll(time.monotonic())[0].grammar is not None
    assert manager.sockets() == []
    started = time.monotonic()
    manager.submit(request("good", regex="[a-c]{3}", structured=asked), started)
    manager.submit(request("also", regex="[a-c]{4}"), started)
    assert [each.message.rid for each in manager.poll(time.monotonic())] == ["also"]
    assert time.monotonic() - started < 1.0
    info = drain(manager, timeout_s=60.0)["good"].info
    assert info is not None
    manager.submit(request("hang", regex="hang", structured=asked), time.monotonic())
    error = drain(manager, timeout_s=60.0)["hang"].error
    assert error is not None
    assert (error.param, error.code) == ("regex", "compile_timeout")
    assert info.backend == "xgrammar"
    assert len(manager.sockets()) == 2


@pytest.mark.parametrize(("effect", "status"), [("crash", 400), ("eat", 400), ("defect", 500)])
def test_whatever_a_constraint_does_to_its_worker_concerns_it_alone(
    effect: str, status: int, hostile: MakeManager
) -> None:
    manager = hostile()
    manager.submit(request("bad", regex=effect), time.monotonic())
    for i in range(3):
        manager.submit(request(f"good{i}", choices=["a", str(i)]), time.monotonic())
    ready = drain(manager, 4)
    error = ready.pop("bad").error
    assert error is not None
    assert (error.param, error.status) == ("regex", status)
    assert all(each.grammar is not None for each in ready.values())


def test_what_libraries_print_does_not_get_between_the_frames(hostile: MakeManager) -> None:
    manager = hostile()
    manager.submit(request("r", regex="noise"), time.monotonic())
    assert drain(manager)["r"].grammar is not None


def test_a_worker_that_is_killed_takes_only_its_own_job_along(hostile: MakeManager) -> None:
    manager = hostile()
    manager.submit(request("first", choices=["warm", "up"]), time.monotonic())
    drain(manager)
    assert manager._client is not None
    victim = manager._client.pids[0]
    manager.submit(request("bomb", regex="hang"), time.monotonic())
    manager.submit(request("next", choices=["a", "b"]), time.monotonic())
    os.kill(victim, signal.SIGKILL)
    ready = drain(manager, 2)
    assert ready["next"].grammar is not None
    assert ready["bomb"].error is not None
    assert victim not in manager._client.pids


def test_a_second_worker_is_started_while_nobody_needs_the_cores(hostile: MakeManager) -> None:
    """Its start takes a second of a core, which requests beside the first slow constraint would pay for."""
    manager = hostile()
    deadline = time.monotonic() + 60
    while manager.poll(time.monotonic(), crowded=True) or not any(w.ready for w in manager._client._workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    manager.poll(time.monotonic(), crowded=True)
    assert len(manager._client.pids) == 1
    manager.poll(time.monotonic())
    assert len(manager._client.pids) == 2


def test_a_slow_compilation_makes_way_for_running_requests(hostile: MakeManager) -> None:
    manager = hostile(compile_timeout_s=5.0)
    manager.submit(request("first", choices=["warm", "up"]), time.monotonic())
    drain(manager)
    assert manager._client is not None
    pid = manager._client.pids[0]

    def is_stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    manager.submit(request("bomb", regex="hang"), time.monotonic())
    stopped = []
    for _ in range(200):
        manager.poll(time.monotonic(), crowded=True)
        time.sleep(0.005)
        stopped.append(is_stopped())
    assert 0.5 < sum(stopped) / len(stopped) < 1.0
    assert any(now and not after for now, after in itertools.pairwise(stopped))
    manager.poll(time.monotonic())
    time.sleep(0.05)
    assert not is_stopped()
    error = drain(manager)["bomb"].error
    assert error is not None
    assert error.code == "compile_timeout"


def test_workers_that_do_not_start_are_no_reason_to_wait(
    monkeypatch: pytest.MonkeyPatch, with_worker: MakeManager
) -> None:
    monkeypatch.setattr(compile_client, "WORKER_MODULE", "tests.constrained.no_such_module")
    manager = with_worker()
    manager.submit(request("r", choices=["a", "b"]), time.monotonic())
    error = drain(manager)["r"].error
    assert error is not None
    assert error.status == 503


def test_a_request_whose_time_is_up_does_not_wait_for_its_constraint(hostile: MakeManager) -> None:
    manager = hostile(compile_timeout_s=30.0)
    manager.submit(request("late", timeout_s=0.5, regex="hang"), time.monotonic())
    manager.submit(request("later", timeout_s=1.0, regex="hang"), time.monotonic())
    for rid in ("late", "later"):
        error = drain(manager)[rid].error
        assert error is not None
        assert error.status == 408
    assert manager.num_pending == 0


def test_what_was_expensive_comes_from_disk_the_next_time(with_worker: MakeManager, tmp_path: Path) -> None:
    words = [f"{i:05}" * 3 for i in range(3000)]
    for attempt in range(2):
        manager = with_worker()
        manager.submit(request("r", choices=words), time.monotonic())
        assert drain(manager)["r"].grammar is not None
        assert manager.stats().disk_hits == attempt
        while not [path for path in tmp_path.glob("cache/*") if len(path.name) == 64]:
            time.sleep(0.01)  # it is written after the answer
        manager.close()


def test_workers_end_with_their_engine(with_worker: MakeManager) -> None:
    manager = with_worker()
    manager.submit(request("r", choices=["a", "b"]), time.monotonic())
    drain(manager)
    assert manager._client is not None
    processes = [worker.process for worker in manager._client._workers]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_what_loads_slowly_is_loaded_beside_the_scheduler(with_worker: MakeManager) -> None:
    manager = with_worker(compile_timeout_s=60.0)
    options = StructuredOptions(backend="xgrammar")
    manager.submit(request("ours", regex="[a-z]{3}", structured=options), time.monotonic())
    manager.submit(request("large", choices=[f"{i:05}" * 4 for i in range(4000)]), time.monotonic())
    ready = drain(manager, 2, timeout_s=60.0)
    assert all(each.error is None for each in ready.values())
    assert ready["ours"].info is not None
    assert ready["ours"].info.backend == "xgrammar"


def test_a_vocabulary_that_cannot_be_constrained_is_an_error_of_each_request(model_folder: Path) -> None:
    def fail() -> Vocabulary:
        raise RequestError("this model's tokens have no text")

    settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS))
    manager = GrammarManager(fail, inline=False, worker=settings)
    try:
        manager.submit(request("r", choices=["a", "b"]), time.monotonic())
        error = drain(manager)["r"].error
        assert error is not None
        assert "no text" in error.message
    finally:
        manager.close()
    manager = GrammarManager(fail, inline=True)
    manager.submit(request("r", choices=["a", "b"]), 0.0)
    (ready,) = manager.poll(0.0)
    assert ready.error is not None


def test_a_defect_in_a_grammar_ends_its_request_alone(inline: GrammarManager, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> object:
        raise AttributeError("a defect")

    monkeypatch.setattr(grammar_manager, "compile_constraint", broken)
    inline.submit(request("a", regex="[ab]"), 0.0)
    error = drain(inline)["a"].error
    assert error is not None
    assert "AttributeError" in error.message


def test_results_of_the_loader_may_come_at_any_moment() -> None:
    """Results are taken while they come: none is lost, and afterwards nothing is left to wake up for."""
    loader: Loader[int] = Loader()
    try:
        taken: list[tuple[str, int | Exception]] = []
        for i in range(2000):
            loader.submit(str(i), lambda i=i: i)  # type: ignore[misc]
            taken += loader.take()
        deadline = time.monotonic() + 20.0
        while len(taken) < 2000 and time.monotonic() < deadline:
            taken += loader.take()
        assert taken == [(str(i), i) for i in range(2000)]
        time.sleep(0.05)
        assert loader.take() == []
        assert select.select([loader.fileno()], [], [], 0)[0] == []
    finally:
        loader.close()
