"""Orders and reports of tiers in the scheduler's loop: when orders leave, and what reports wake."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.channel import LocalChannel
from radixrt.executor.base import Executor
from radixrt.messages.kv_moves import KVIn, KVOpen, KVOut
from radixrt.messages.request import Request
from radixrt.messages.runner import DebugReq, ForwardStep, FromRunner, GrammarMask, PartOrder, RunnerReady
from radixrt.messages.scheduler import RunnerRestarted, SchedulerReady
from radixrt.messages.wire import pack_i32
from radixrt.parts.tiers import scheduler as tiers
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.loop import SchedulerLoop
from tests.parts.tiers.fake_mover import decode_order
from tests.parts.tiers.harness import TieredHarness
from tests.parts.tiers.test_scheduler import PROMPT
from tests.scheduler.fake_runner import VOCAB, expected_output
from tests.scheduler.test_loop import Outbox


class Ranks(Executor):
    """Ranks that execute a message when they are asked for answers, and do a unit of work of a move as well.

    Attributes:
        sent: what was sent, in order: "step", or the name of the order.
        works: moves go on.
    """

    runs_ahead = True
    is_restartable = True

    def __init__(self, h: TieredHarness) -> None:
        self._h = h
        self.sent: list[str] = []
        self.works = True
        self._restarted = False

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        raise NotImplementedError

    def submit(self, step: ForwardStep) -> None:
        self.sent.append("step")
        self._h.sent.append(step)

    def order(self, order: PartOrder) -> None:
        self.sent.append(type(decode_order(order.data)).__name__)
        self._h.sent.append(order)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        h = self._h
        if h.sent:
            h.execute()
        if self.works:
            for mover, move in h.moves:
                mover.step(move)
        h.poll()
        return next((answers.popleft() for answers in h.answers if answers), None)

    def restart(self, epoch: int) -> None:
        self._h.runner = self._h.runner.successor()
        self._h.clear_links()
        self.sent.append("restart")
        self._restarted = True

    def poll_ready(self) -> RunnerReady | None:
        ready, self._restarted = self._restarted, False
        return RunnerReady(0, self._h.scheduler.kv.allocator.num_slots, VOCAB, "cpu", "float32") if ready else None

    def send_mask(self, mask: GrammarMask) -> None:
        raise NotImplementedError

    def ask(self, question: DebugReq) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class Loop:
    def __init__(self) -> None:
        self.h = TieredHarness()
        self.ranks = Ranks(self.h)
        self.inbox: LocalChannel[Any] = LocalChannel()
        self.outbox = Outbox([])
        self.expected: dict[str, list[int]] = {}
        self.loop = SchedulerLoop(
            self.h.scheduler, self.ranks, self.inbox, self.outbox, max_inflight=2, check_invariants=True
        )
        self.loop.announce(SchedulerReady(64, 4, "cpu", "float32"))

    def add(self, rid: str, prompt: list[int], max_tokens: int = 3) -> None:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
        self.inbox.send(Request.generate(rid, pack_i32(prompt), sampling))
        self.expected[rid], _ = expected_output(prompt, sampling, self.h.max_len)
        self.h.may_compute("", prompt + self.expected[rid])

    def run(self, turns: int = 60) -> None:
        for _ in range(turns):
            self.loop.run_once(wait=False)

    def copy(self) -> None:
        """Bring PROMPT to the host tier, and out of the pool."""
        self.add("first", PROMPT, 1)
        self.run()
        assert self.h.tiers.host.num_tokens == 192
        self.h.cache.evict(self.h.cache.evictable_size)
        self.ranks.sent.clear()

    def assert_output(self, rid: str) -> None:
        assert self.outbox.tokens[rid] == self.expected[rid]
        self.h.check_idle()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(tiers, "IDLE_S", 0.0)
    return Loop()


def test_the_memory_is_opened_before_the_first_step_and_an_idle_scheduler_copies(at: Loop) -> None:
    at.add("a", PROMPT)
    at.run()
    assert at.ranks.sent[:2] == [KVOpen.__name__, "step"]
    assert KVOut.__name__ in at.ranks.sent
    assert at.h.tiers.host.num_tokens == 192
    at.assert_output("a")


def test_a_request_waits_for_reports_although_no_step_is_in_flight(at: Loop) -> None:
    at.copy()
    at.ranks.works = False
    at.add("a", PROMPT)
    at.run()
    assert set(at.ranks.sent) == {KVIn.__name__}
    assert at.loop.inflight == 0
    at.ranks.works = True
    at.run()
    assert "step" in at.ranks.sent
    at.assert_output("a")


def test_restarted_ranks_get_the_memory_before_anything_else(at: Loop) -> None:
    at.copy()
    at.ranks.works = False
    at.add("a", PROMPT)
    at.run(3)
    assert KVIn.__name__ in at.ranks.sent
    at.inbox.send(RunnerRestarted(1, "it was told to"))
    at.ranks.works = True
    at.run()
    sent = at.ranks.sent[at.ranks.sent.index("restart") + 1 :]
    assert sent.index(KVOpen.__name__) < sent.index(KVIn.__name__) < sent.index("step")
    at.assert_output("a")
