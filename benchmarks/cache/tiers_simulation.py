"""The real scheduler with the part `tiers` on a simulated device with simulated links, for `benchmarks.cache.tiers`.

Links have a rate and a fixed time per move. As in the ranks, a copy out of the pool is gathered behind the steps that
were submitted before its order, and a copy into the pool is scattered beside later steps, once the steps that were
submitted before its order have ended. No step waits for a move, and a move can wait for steps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import msgspec

from benchmarks.cache.tiers_traces import Call, Session
from radixrt.messages.kv_moves import TIERS, KVConnectorOutput, KVDrop, KVIn, KVLoad, KVOpen, KVOrder, KVOut, KVSave
from radixrt.messages.request import Request
from radixrt.messages.runner import PartReport
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.parts.simulated import SimulatedRunner
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler


@dataclass(frozen=True)
class Links:
    """Speed of moves. Rates are in bytes per second.

    Attributes:
        out, into: between the device and the host tier.
        save, load: between the host tier and files.
        pool: between the KV pool and staging memory on the device.
        fixed_s: fixed seconds of a move.
    """

    out: float
    into: float
    save: float
    load: float
    pool: float
    fixed_s: float


@dataclass(frozen=True)
class Shape:
    """A model on a machine.

    Attributes:
        receiving: moves into the pool at a time.
        stretch: factor of all pauses of a trace, so that slow machines get fewer requests in the same time.
    """

    times: StepTimes
    token_bytes: int
    links: Links
    receiving: int
    stretch: float = 1.0


STAGED_MOVES = 8
"""Moves into the pool whose bytes can be on the device while the steps before them run."""


class SimulatedMover:
    """The part's end in a rank, which copies nothing.

    Args:
        waits: the device waits for each copy out of the pool.

    Attributes:
        moved: bytes of finished moves by kind.
    """

    def __init__(self, shape: Shape, *, waits: bool = False) -> None:
        self._links = shape.links
        self._token_bytes = shape.token_bytes
        self._waits = waits
        self._decoder: msgspec.msgpack.Decoder[KVOrder] = msgspec.msgpack.Decoder(KVOrder)
        self._page = 0
        self._free_at = dict.fromkeys(("out", "in", "file"), 0.0)  # by link
        self._ends: list[tuple[float, int, str, int, float]] = []  # (time, move, kind, bytes, seconds on the link)
        self.moved = dict.fromkeys(("out", "in", "save", "load"), 0)

    @property
    def ends_at(self) -> float:
        """Time of the next report; infinite without one."""
        return self._ends[0][0] if self._ends else math.inf

    def execute(self, data: bytes, now: float, runner: SimulatedRunner) -> None:
        """Begin a move; the device is busy with the steps before it until `runner.free_at`."""
        order, links = self._decoder.decode(data), self._links
        if isinstance(order, KVOpen):
            self._page = order.page
        elif isinstance(order, KVDrop):
            self._ends.clear()
        elif isinstance(order, KVOut):
            num_bytes = len(order.slots) // 4 * self._token_bytes
            runner.free_at = max(now, runner.free_at) + num_bytes / links.pool
            end = self._begin("out", order.move, "out", num_bytes, links.out, runner.free_at)
            if self._waits:
                runner.free_at = end
        elif isinstance(order, KVIn):
            num_bytes = len(order.slots) // 4 * self._token_bytes
            ahead_s = STAGED_MOVES * (links.fixed_s + num_bytes / links.into)
            begin, after = max(now, runner.free_at - ahead_s), runner.free_at + num_bytes / links.pool
            self._begin("in", order.move, "in", num_bytes, links.into, begin, after)
        elif isinstance(order, KVSave):
            num_bytes = len(order.files) // 4 * self._page * self._token_bytes
            self._begin("save", order.move, "file", num_bytes, links.save, now)
        else:
            assert isinstance(order, KVLoad), "there is no other replica"
            num_bytes = len(order.files) // 4 * self._page * self._token_bytes
            self._begin("load", order.move, "file", num_bytes, links.load, now)

    def _begin(
        self, kind: str, move: int, link: str, num_bytes: int, rate: float, begin: float, after: float = 0.0
    ) -> float:
        """Let a move begin at a time, or when its link is free, and end at the time `after` or later."""
        seconds = self._links.fixed_s + num_bytes / rate
        end = self._free_at[link] = max(begin, self._free_at[link]) + seconds
        heapq.heappush(self._ends, (max(end, after), move, kind, num_bytes, seconds))
        return end

    def report(self) -> PartReport:
        """End the next move."""
        _, move, kind, num_bytes, seconds = heapq.heappop(self._ends)
        self.moved[kind] += num_bytes
        if kind in ("out", "save"):
            output = KVConnectorOutput(finished_sending=[move], seconds=[seconds])
        else:
            output = KVConnectorOutput(finished_recving=[move], seconds=[seconds])
        return PartReport(0, TIERS, msgspec.msgpack.encode(output))


class TieredRunner(SimulatedRunner):
    """A simulated runner that executes the orders of the part `tiers`."""

    def __init__(self, scheduler: Scheduler, shape: Shape, token: Callable[[Req], int], mover: SimulatedMover) -> None:
        super().__init__(scheduler, lambda batch: shape.times.seconds(*batch.shape), token)
        self.mover = mover

    def next_batch(self, now: float) -> ScheduleBatch | None:
        batch = super().next_batch(now)
        self.execute_orders(now)
        return batch

    def execute_orders(self, now: float) -> None:
        """Begin the moves that the scheduler has ordered."""
        for order in self.scheduler.orders:
            self.mover.execute(order.data, now, self)
        self.scheduler.orders.clear()

    def report(self, now: float) -> None:
        """Pass the next report of a move to the scheduler."""
        self.scheduler.reported(self.mover.report(), now)
        self.execute_orders(now)


@dataclass
class Result:
    """Figures of a simulation.

    Attributes:
        wall: seconds until the last request has ended.
        first_s: seconds of each request until its first token.
        seconds: seconds of each session, without its pauses.
        prompt, cached: prompt tokens, and the prompt tokens that were not computed.
        moved: bytes by kind of move.
        order: calls in the order of their ends.
    """

    wall: float = 0.0
    first_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    order: list[Call] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt

    @property
    def requests_per_s(self) -> float:
        return len(self.order) / self.wall

    @property
    def mean_first_s(self) -> float:
        return fmean(self.first_s)

    @property
    def mean_session_s(self) -> float:
        return fmean(self.seconds)


class Simulation:
    """One engine that serves the sessions of a trace.

    Args:
        waits: see `SimulatedMover`.
    """

    def __init__(self, scheduler: Scheduler, sessions: Sequence[Session], shape: Shape, *, waits: bool = False) -> None:
        self._scheduler = scheduler
        self._sessions = sessions
        self._shape = shape
        self._runner = TieredRunner(scheduler, shape, self._sample, SimulatedMover(shape, waits=waits))
        self._now = 0.0
        self._begun = [0.0] * len(sessions)
        self._spent = [0.0] * len(sessions)
        self._open = [0] * len(sessions)
        self._waves: list[tuple[float, int, int]] = []  # (time, session, wave)
        self._arrived: dict[str, float] = {}
        for number, session in enumerate(sessions):
            self._later(session.at * shape.stretch, number, 0)
        self.result = Result()

    def run(self) -> Result:
        """Serve all sessions."""
        runner, scheduler = self._runner, self._scheduler
        while self._waves or not scheduler.is_idle:
            runner.submit(self._now)
            arrives_at = self._waves[0][0] if self._waves else math.inf
            at = min(runner.ends_at, runner.mover.ends_at, arrives_at)
            if at == math.inf:
                self._now += 0.01  # a request waits for a time to pass
                continue
            self._now = max(self._now, at)
            if at == runner.mover.ends_at:
                runner.report(self._now)
            elif at == runner.ends_at:
                runner.answer(self._now)
            else:
                self._arrive(*heapq.heappop(self._waves)[1:])
            for turn in scheduler.parts.turn:
                turn(self._now)
            runner.execute_orders(self._now)
            self._take()
        self.result.wall, self.result.moved = self._now, runner.mover.moved
        return self.result

    def _later(self, at: float, session: int, wave: int) -> None:
        pause_s = self._sessions[session].waves[wave].pause_s * self._shape.stretch
        heapq.heappush(self._waves, (at + pause_s, session, wave))

    def _arrive(self, session: int, wave: int) -> None:
        self._begun[session] = self._now
        calls = self._sessions[session].waves[wave].calls
        self._open[session] = len(calls)
        for number, call in enumerate(calls):
            rid = f"{session}.{wave}.{number}"
            sampling = SamplingParams(max_tokens=len(call.output), temperature=0.0, ignore_eos=True)
            self._arrived[rid] = self._now
            request = Request.generate(rid, pack_i32(call.prompt), sampling, program=call.hint)
            self._scheduler.intake.add(request, self._now)

    def _call(self, rid: str) -> Call:
        session, wave, number = map(int, rid.split("."))
        return self._sessions[session].waves[wave].calls[number]

    def _sample(self, req: Req) -> int:
        if not req.num_output:
            self.result.first_s.append(self._now - self._arrived[req.rid])
        return int(self._call(req.rid).output[req.num_output])

    def _take(self) -> None:
        taken = self._scheduler.take_deltas()
        for delta in taken.deltas if taken is not None else ():
            if delta.finish is None:
                continue
            assert delta.finish.error is None, delta.finish.error
            assert delta.usage is not None
            self.result.prompt += delta.usage.prompt_tokens
            self.result.cached += delta.usage.cached_tokens
            self.result.order.append(self._call(delta.rid))
            session, wave, _ = map(int, delta.rid.split("."))
            self._open[session] -= 1
            if self._open[session]:
                continue
            self._spent[session] += self._now - self._begun[session]
            if wave + 1 < len(self._sessions[session].waves):
                self._later(self._now, session, wave + 1)
            else:
                self.result.seconds.append(self._spent[session])
