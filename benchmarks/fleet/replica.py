"""`SimulatedReplica`: the real scheduler and radix cache of one replica, on a simulated device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.fleet.device import Device
from radixrt.config import SchedulerConfig
from radixrt.messages.cache_events import CacheAck, FromWatched, WatchCacheReq
from radixrt.messages.request import Request
from radixrt.messages.scheduler import AbortReq, ReleaseReq, TokenBatch
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.simulated import NoisyTimes, SimulatedRunner, StepRows, make_scheduler
from radixrt.parts.watch.scheduler import CacheStream
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch

END_TOKEN = 0


class Answer(NamedTuple):
    """Result of a step.

    Attributes:
        tokens: output of the requests; None if there is none.
        first: ids of the requests that got their first token.
    """

    tokens: TokenBatch | None
    first: list[str]


class SimulatedReplica(SimulatedRunner):
    """One replica. Its caller owns the clock: `submit` after each message and answer, `reply` at `ends_at`.

    Args:
        outputs: tokens that each open request samples, by id.
        seed: of the noise of step times.

    Attributes:
        fetched: tokens at the begin of a request's prompt that come from another replica, by id: those that are not
            cached when it begins take slots, and no time of the device.
    """

    def __init__(self, device: Device, outputs: Mapping[str, list[int]], seed: int) -> None:
        config = SchedulerConfig(
            max_running_requests=device.max_running_requests, chunked_prefill_size=device.chunked_prefill_size,
            max_queued_requests=1_000_000, max_queue_wait_s=math.inf, request_timeout_s=1e9,
            max_gap_ms=device.max_gap_ms,
        )  # fmt: skip
        scheduler = make_scheduler(
            config, device.num_slots, context_length=device.context_length, eos_ids=[END_TOKEN], vocab_size=32
        )
        super().__init__(scheduler, self._seconds, self._sample)
        self.stream = CacheStream(scheduler.core)
        self.fetched: dict[str, int] = {}
        self._times = NoisyTimes(device.times, noise=device.noise, seed=seed)
        self._outputs = outputs
        self._first: list[str] = []  # ids of the requests whose first token the last answer has

    def receive(self, message: Request | AbortReq | ReleaseReq | WatchCacheReq | CacheAck, now: float) -> None:
        if isinstance(message, Request):
            self.scheduler.intake.add(message, now)
        elif isinstance(message, (WatchCacheReq, CacheAck)):
            self.stream.handle(message)
        elif isinstance(message, AbortReq):
            self.scheduler.abort(message.rid, now)
        else:
            self.scheduler.part(Programs).release(message.program, message.branch)

    def events(self, now: float) -> list[FromWatched]:
        """Messages of the cache's stream after a turn of the loop."""
        return self.stream.turn(now) if self.stream.is_on else []

    def reply(self, now: float) -> Answer:
        """Commit the oldest step in flight."""
        self._first = []
        self.answer(now)
        return Answer(self.scheduler.take_deltas(), self._first)

    def _seconds(self, batch: ScheduleBatch) -> float:
        if self.fetched:
            self._discount(batch)
        return self._times.seconds(batch.shape)

    def _discount(self, batch: ScheduleBatch) -> None:
        """Take what was fetched out of the work of a step, to which the scheduler fits its model as well."""
        fetched, rows = 0, StepRows.of(batch.step)
        for req, length, new in zip(batch.requests, rows.seq_lens.tolist(), rows.extend_lens.tolist(), strict=True):
            until = self.fetched.get(req.rid, 0)
            fetched += max(min(until, length) - (length - new), 0)
            if until <= length:
                self.fetched.pop(req.rid, None)
        if fetched:
            vars(batch)["shape"] = batch.shape._replace(tokens=max(batch.shape.tokens - fetched, 0))

    def _sample(self, req: Req) -> int:
        if not req.num_output:
            self._first.append(req.rid)
        return self._outputs[req.rid][req.num_output]
