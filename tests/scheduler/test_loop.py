"""The loop around the scheduler: what goes out first."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import pytest

from radixrt.channel import LocalChannel
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.errors import EngineError
from radixrt.executor.base import Executor
from radixrt.messages.request import Request
from radixrt.messages.runner import (
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    PartReport,
    RunnerReady,
    StepFailed,
    StepOutput,
)
from radixrt.messages.scheduler import ControlReply, ControlReq, Reset, RunnerRestarted, SchedulerReady, TokenBatch
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.step_shape import StepShape
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler import loop
from radixrt.scheduler.loop import SchedulerLoop
from tests.scheduler.fake_runner import VOCAB, FakeRunner, Harness, deltas_of, expected_output
from tests.scheduler.test_scheduler import NO_JUMPS, FixedSequence


class Recorder(Executor):
    """Runs a step when it is submitted, or when its mask comes; answers when it is let. Writes down what was sent in
    which order."""

    def __init__(self, runner: FakeRunner, log: list[str], *, runs_ahead: bool) -> None:
        self._runner = runner
        self._log = log
        self._runs_ahead = runs_ahead
        self._masked: deque[ForwardStep] = deque()
        self.held: deque[StepOutput] = deque()
        self.ready: deque[StepOutput | StepFailed | PartReport] = deque()

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        raise NotImplementedError

    def submit(self, step: ForwardStep) -> None:
        self._log.append(f"step {step.step_id}")
        if step.has_mask:
            self._masked.append(step)
        else:
            self.held.append(self._runner.run(step))

    def send_mask(self, mask: GrammarMask) -> None:
        self._log.append(f"mask {mask.step_id}")
        step = self._masked.popleft()
        assert step.step_id == mask.step_id
        self.held.append(self._runner.run(step, mask))

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        if not self.ready:
            return None
        answer = self.ready.popleft()
        self._log.append("report" if isinstance(answer, PartReport) else f"answer {answer.step_id}")
        return answer

    def ask(self, question: DebugReq) -> None:
        raise NotImplementedError

    def close(self) -> None: ...

    @property
    def runs_ahead(self) -> bool:
        return self._runs_ahead


class Outbox:
    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.tokens: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.epochs: list[int] = []
        self.stats_before_ready: list[int] = []
        self.num_stats = 0

    def send(self, message: Any) -> None:
        if isinstance(message, SchedulerStats):
            self.num_stats += 1
            return
        if isinstance(message, SchedulerReady):
            self.epochs.append(message.epoch)
            self.stats_before_ready.append(self.num_stats)
            return
        assert isinstance(message, TokenBatch)
        self._log.append("tokens")
        for delta in deltas_of(message):
            self.tokens.setdefault(delta.rid, []).extend(unpack_i32(delta.token_ids).tolist())
            if delta.finish is not None:
                self.finished.add(delta.rid)

    def close(self) -> None: ...


class Loop:
    """A real loop over a fake runner."""

    def __init__(
        self, *, depth: int, runs_ahead: bool, watch_s: float = 0.0, stages: int = 1, shared_cores: bool = False
    ) -> None:
        self.log: list[str] = []
        self.harness = Harness(
            stages=stages, grammars=GrammarManager(_no_vocabulary, inline=True), shared_cores=shared_cores
        )
        self.constraints = self.harness.scheduler.part(Constraints)
        self.executor = Recorder(self.harness.runner, self.log, runs_ahead=runs_ahead)
        self.inbox: LocalChannel[Any] = LocalChannel()
        self.outbox = Outbox(self.log)
        self.loop = SchedulerLoop(
            self.harness.scheduler, self.executor, self.inbox, self.outbox,
            max_inflight=depth, check_invariants=True,
            watch_s=watch_s, shared_cores=shared_cores,
        )  # fmt: skip
        self.loop.announce(SchedulerReady(64, 4, "cpu", "float32"))

    def add(self, rid: str, prompt: list[int], **sampling: Any) -> Request:
        message = Request.generate(rid, pack_i32(prompt), SamplingParams(temperature=0.0, ignore_eos=True, **sampling))
        self.inbox.send(message)
        return message

    def answer(self) -> list[str]:
        """Answer the oldest step and turn once; what was sent in that turn."""
        self.executor.ready.append(self.executor.held.popleft())
        self.log.clear()
        self.loop.run_once(wait=False)
        return list(self.log)


def _no_vocabulary() -> Any:
    raise NotImplementedError


def test_statistics_are_there_before_the_engine_is_ready() -> None:
    assert Loop(depth=2, runs_ahead=True).outbox.stats_before_ready == [1]


def test_statistics_follow_what_parts_report_while_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STATS_INTERVAL_S", 0.0)
    at, reports = Loop(depth=2, runs_ahead=True), []
    at.harness.scheduler.parts.reported = {"mover": lambda rank, data, now: reports.append(data)}
    at.loop.run_once(wait=False)
    sent = at.outbox.num_stats
    at.executor.ready.append(PartReport(0, "mover", b"moved"))
    at.loop.run_once(wait=False)
    assert reports == [b"moved"]
    assert at.outbox.num_stats == sent + 1
    at.loop.run_once(wait=False)
    assert at.outbox.num_stats == sent + 1, "nothing is sent while nothing happens"


@pytest.mark.parametrize("depth", [1, 2])
def test_the_next_step_leaves_before_the_tokens_of_the_answer(depth: int) -> None:
    at = Loop(depth=depth, runs_ahead=True)
    at.add("a", [1, 2, 3], max_tokens=6)
    at.loop.run_once(wait=False)
    assert at.log == [f"step {i}" for i in range(depth)]
    assert at.answer() == ["answer 0", f"step {depth}", "tokens"]
    assert at.answer() == ["answer 1", f"step {depth + 1}", "tokens"]


class Noted(FixedSequence):
    """Writes down what it is asked."""

    def __init__(self, tokens: list[int], log: list[str]) -> None:
        super().__init__(tokens)
        self._log = log

    def accept(self, token: int) -> bool:
        self._log.append("accept")
        return super().accept(token)

    def settle(self) -> None:
        self._log.append("settle")


def test_of_constrained_rows_what_the_device_waits_for_leaves_first() -> None:
    at = Loop(depth=2, runs_ahead=True)
    message = Request.generate("r", pack_i32([1, 2]), SamplingParams(max_tokens=9, structured=NO_JUMPS))
    at.constraints.add(message, time.monotonic(), Noted([5, 6, 7, 8, 9, 10], at.log))
    at.loop.run_once(wait=False)
    assert at.log == ["step 0", "mask 0", "step 1"]
    assert at.answer() == ["answer 0", "accept", "mask 1", "step 2", "tokens", "settle"]
    assert at.answer() == ["answer 1", "accept", "mask 2", "step 3", "tokens", "settle"]


def test_over_pipeline_stages_a_mask_leaves_with_its_step() -> None:
    at = Loop(depth=2, runs_ahead=True, stages=2)
    for i in range(2):
        message = Request.generate(f"r{i}", pack_i32([1, 2, i]), SamplingParams(max_tokens=9, structured=NO_JUMPS))
        at.constraints.add(message, time.monotonic(), FixedSequence([5, 6, 7, 8, 9, 10]))
    at.loop.run_once(wait=False)
    assert at.log == ["step 0", "mask 0"]
    assert at.answer() == ["answer 0", "step 1", "mask 1", "step 2", "mask 2", "tokens"]
    assert at.answer() == ["answer 1", "step 3", "mask 3", "tokens"]


def test_a_grammar_that_fails_late_says_so_at_once() -> None:
    class Failing(FixedSequence):
        def settle(self) -> None:
            raise RuntimeError("too late")

    at = Loop(depth=1, runs_ahead=False)
    message = Request.generate("r", pack_i32([1, 2]), SamplingParams(max_tokens=9, structured=NO_JUMPS))
    at.constraints.add(message, time.monotonic(), Failing([5, 6, 7]))
    at.loop.run_once(wait=False)
    assert at.answer() == ["answer 0", "tokens", "tokens"]
    assert "r" in at.outbox.finished


class Waiter:
    """Stands in for a poller; something comes at the third look."""

    sockets = ("a socket",)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def poll(self, timeout_ms: int) -> list[str]:
        self.asked.append(timeout_ms)
        return ["came"] if len(self.asked) == 3 else []


@pytest.mark.parametrize("is_constrained", [False, True])
@pytest.mark.parametrize("watch_s", [0.0, 60.0])
def test_the_answer_of_a_constrained_step_is_watched_for(watch_s: float, is_constrained: bool) -> None:
    at = Loop(depth=1, runs_ahead=True, watch_s=watch_s)
    sampling = SamplingParams(max_tokens=9, structured=NO_JUMPS)
    message = Request.generate("r", pack_i32([1, 2]), sampling)
    if is_constrained:
        at.constraints.add(message, time.monotonic(), FixedSequence([5, 6, 7]))
    else:
        at.harness.scheduler.intake.add(message, time.monotonic())
    at.loop.run_once(wait=False)
    waiter = at.loop._poller = Waiter()  # type: ignore[assignment]
    at.loop.run_once(wait=True)
    assert waiter.asked == ([0, 0, 0] if is_constrained and watch_s else [loop.BUSY_WAIT_MS])


@pytest.mark.parametrize("shared_cores", [False, True])
@pytest.mark.parametrize("share", [0.0, 1e9])
def test_while_the_device_computes_the_loop_looks_ahead_until_something_comes(
    share: float, shared_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOOK_AHEAD_SHARE", share)
    at = Loop(depth=1, runs_ahead=True, shared_cores=shared_cores)
    pieces: list[int] = []
    monkeypatch.setattr(at.constraints, "look_ahead", lambda: (pieces.append(i) for i in range(9)))
    waiter = at.loop._poller = Waiter()  # type: ignore[assignment]
    at.loop.run_once(wait=True)
    assert waiter.asked == [loop.IDLE_WAIT_MS]  # no step is in flight
    at.add("r", [1, 2], max_tokens=9)
    at.loop.run_once(wait=False)
    waiter.asked.clear()
    at.loop.run_once(wait=True)
    looks = share > 0 and not shared_cores
    assert pieces == ([0, 1, 2] if looks else [])
    assert waiter.asked == ([0, 0, 0] if looks else [loop.BUSY_WAIT_MS])


def test_rows_that_may_sample_the_same_share_a_mask() -> None:
    at = Loop(depth=2, runs_ahead=True)
    shared = np.full(2, 0xFFFFFFFF, np.uint32)
    for i in range(4):
        grammar = FixedSequence([5, 6, 7, 8, 9])
        if i != 2:
            grammar.mask = lambda: shared  # type: ignore[method-assign]
        sampling = SamplingParams(max_tokens=9, structured=NO_JUMPS)
        at.constraints.add(Request.generate(f"r{i}", pack_i32([1, 2, i]), sampling), 0.0, grammar)
    batch = at.harness.scheduler.next_batch(0.0)
    assert batch is not None
    assert len(batch.masked_rows) == 4
    own = next(i for i, req in enumerate(batch.sampled) if req.rid == "r2")
    masks = at.harness.scheduler.parts.taker.masks(batch, 0.0)
    assert masks.rows == [0, 1, 2, 3]
    assert len(masks.masks) == 2
    assert [masks.masks[which] is shared for which in masks.index] == [i != own for i in range(4)]
    at.harness.scheduler.abort("r0", 0.0)
    assert len(at.harness.scheduler.parts.taker.masks(batch, 0.0).rows) == 3


class Restarted(Recorder):
    """Its ranks are ready when the test says so."""

    is_ready = False
    num_states = 0

    def restart(self, epoch: int) -> None:
        self._log.append(f"epoch {epoch}")
        self._runner = self._runner.successor()
        self.held.clear()
        self.ready.clear()
        self.is_ready = False

    def poll_ready(self) -> RunnerReady | None:
        return RunnerReady(0, 64, VOCAB, "cpu", "float32", num_states=self.num_states) if self.is_ready else None

    @property
    def is_restartable(self) -> bool:
        return True


def test_answers_from_before_the_runners_death_count_and_steps_wait_for_the_next_one() -> None:
    at = Loop(depth=2, runs_ahead=True)
    executor = at.loop._executor = at.executor = Restarted(at.harness.runner, at.log, runs_ahead=True)
    message = at.add("a", [1, 2, 3], max_tokens=6)
    at.loop.run_once(wait=False)
    executor.ready.append(executor.held.popleft())
    at.inbox.send(RunnerRestarted(1, "it was told to"))
    at.log.clear()
    at.loop.run_once(wait=False)
    assert at.log == ["answer 0", "epoch 1", "tokens"]
    at.add("b", [4, 5, 6], max_tokens=2)
    at.inbox.send(RunnerRestarted(2, "it died while it started"))
    at.log.clear()
    at.loop.run_once(wait=False)
    assert at.log == ["epoch 2"]
    executor.is_ready = True
    at.loop.run_once(wait=False)
    assert at.log == ["epoch 2", "step 2"]
    while executor.held:
        at.answer()
    assert at.outbox.finished == {"a", "b"}
    assert at.outbox.tokens["a"] == expected_output([1, 2, 3], message.sampling, at.harness.max_len)[0]
    stats = at.loop.stats()
    assert (stats.runner_restarts, stats.resumed, stats.suspects) == (1, 1, 0)
    assert at.outbox.epochs == [0, 2]


def test_a_runner_that_comes_back_with_other_states_is_refused() -> None:
    at = Loop(depth=1, runs_ahead=True)
    executor = at.loop._executor = Restarted(at.harness.runner, at.log, runs_ahead=True)
    at.inbox.send(RunnerRestarted(1, "it was told to"))
    at.loop.run_once(wait=False)
    executor.is_ready, executor.num_states = True, 7
    with pytest.raises(EngineError, match="has 7 state slots instead of 0"):
        at.loop.run_once(wait=False)


def test_a_rank_that_broke_is_waited_for_only_if_main_starts_it_anew() -> None:
    at = Loop(depth=1, runs_ahead=True)
    executor = at.loop._executor = Restarted(at.harness.runner, at.log, runs_ahead=True)
    at.add("a", [1, 2, 3], max_tokens=6)
    at.loop.run_once(wait=False)
    executor.ready.append(StepFailed(0, 1, "broken", fatal=True))
    for _ in range(3):
        assert at.loop.run_once(wait=False)
    assert at.loop.inflight == 1
    at.loop._executor = at.executor
    at.executor.ready.append(StepFailed(0, 1, "no memory", fatal=True))
    with pytest.raises(EngineError, match="step 0 broke runner 1: no memory"):
        at.loop.run_once(wait=False)


def test_where_submitting_is_computing_tokens_do_not_wait_for_it() -> None:
    at = Loop(depth=1, runs_ahead=False)
    at.add("a", [1, 2, 3], max_tokens=6)
    at.loop.run_once(wait=False)
    assert at.answer() == ["answer 0", "tokens"]
    at.loop.run_once(wait=False)
    assert at.log[-1] == "step 1"


def test_a_request_that_came_with_the_answer_joins_the_very_next_step() -> None:
    at = Loop(depth=1, runs_ahead=True)
    at.add("a", [1, 2, 3], max_tokens=6)
    at.loop.run_once(wait=False)
    at.add("b", [4, 5, 6], max_tokens=6)
    at.answer()
    assert len(unpack_i32(at.executor.held[-1].token_ids)) == 2


def test_behind_a_long_step_the_next_one_waits_for_requests_that_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LONG_STEP_TOKENS", 4)
    monkeypatch.setattr(loop, "ARRIVAL_PAUSE_S", 60.0)
    at = Loop(depth=2, runs_ahead=True)
    at.add("warm", [1, 2, 3, 4], max_tokens=1)
    at.loop.run_once(wait=False)
    at.answer()
    at.harness.scheduler.step_time.add(StepShape(0, 0, 4, 10.0), 1e6)  # the next step will take days
    at.log.clear()
    for rid in "abc":
        at.add(rid, [5, 6, 7, 8], max_tokens=3)
        at.loop.run_once(wait=False)
    assert at.log == ["step 1"]
    monkeypatch.setattr(loop, "ARRIVAL_PAUSE_S", -1.0)  # nobody comes any more
    at.loop.run_once(wait=False)
    assert at.log == ["step 1", "step 2"]
    assert len(unpack_i32(at.executor.held[-1].token_ids)) == 3
    while at.executor.held:
        at.answer()
    assert at.outbox.finished == {"warm", *"abc"}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_outputs_are_the_same_either_way(depth: int, runs_ahead: bool) -> None:
    at = Loop(depth=depth, runs_ahead=runs_ahead)
    asked = [at.add(rid, [i, i + 1, 9, 9], max_tokens=5 + i) for i, rid in enumerate("abcdef")]
    for _ in range(200):
        if at.executor.held:
            at.executor.ready.append(at.executor.held.popleft())
        at.loop.run_once(wait=False)
    for message in asked:
        prompt = message.tokens(0).tolist()
        expected, _ = expected_output(prompt, message.sampling, at.harness.max_len)
        assert at.outbox.tokens[message.rid] == expected
    assert at.outbox.finished == set("abcdef")


def test_prompts_are_dropped_for_good_only_once_no_request_of_them_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Loop(depth=1, runs_ahead=True)

    def forget() -> tuple[bool, str]:
        _, reply = at.loop._control(ControlReq("1", "forget"), 0.0)
        assert isinstance(reply, ControlReply)
        return reply.ok, reply.message

    assert forget() == (True, "")
    at.harness.add("waits", [1, 2, 3], max_tokens=2)
    assert forget() == (False, "1 requests are open and would leave it again")
    at.harness.turn()
    assert forget() == (False, "3 tokens are in use and stay, 1 requests are open and would leave it again")
    at.harness.drain()
    assert forget() == (True, "")
    waits = Request.generate("compiles", pack_i32([1, 2, 3]), SamplingParams(max_tokens=2))
    monkeypatch.setattr(at.loop._core.parts.taker, "preparing", lambda: [waits])
    assert forget() == (False, "1 requests are open and would leave it again")
    assert not at.harness.cache.total_size


@pytest.mark.parametrize("keeps_cache", [True, False])
def test_a_reset_forgets_all_requests_without_an_answer(keeps_cache: bool) -> None:
    at = Loop(depth=2, runs_ahead=True)
    at.add("cached", [5, 6, 7, 8], max_tokens=2)
    at.loop.run_once(wait=False)
    while at.executor.held:
        at.answer()
    at.add("running", [1, 2, 3], max_tokens=8)
    at.loop.run_once(wait=False)
    at.answer()
    given = len(at.outbox.tokens["running"])
    at.inbox.send(Reset(keeps_cache=keeps_cache))
    at.loop.run_once(wait=False)
    assert at.outbox.finished == {"cached"}
    assert len(at.outbox.tokens["running"]) == given
    at.add("running", [1, 2, 3], max_tokens=2)  # the same id, in the new epoch
    cache = at.harness.cache
    at.loop.run_once(wait=False)
    while at.executor.held:
        at.answer()
    assert at.outbox.finished == {"cached", "running"}
    assert len(at.outbox.tokens["running"]) == given + 2
    kept = cache.match_len(np.array([5, 6, 7, 8], np.int32))
    assert kept == (4 if keeps_cache else 0)
    assert at.harness.scheduler.counters.cache_resets["fenced"] == (0 if keeps_cache else 1)


def test_saving_ends_when_nothing_is_left_or_time_is_over_or_it_is_cut_off() -> None:
    made = Loop(depth=2, runs_ahead=True)
    answers, asked = [True, True, False], 0

    def save() -> bool:
        nonlocal asked
        asked += 1
        assert made.harness.scheduler.is_idle  # its requests were dropped
        return answers.pop(0) if answers else True

    made.harness.scheduler.parts.save = (save,)
    made.add("a", [5, 6, 7], max_tokens=3)
    made.loop.run_once(wait=False)
    made.executor.ready.extend(made.executor.held)
    made.executor.held.clear()
    made.loop.save(60.0)
    assert asked == 3
    made.loop.save(0.05)
    assert asked > 3
    before = asked
    made.loop.save(60.0, lambda: asked > before + 10)
    assert asked == before + 11
    assert not made.outbox.finished
