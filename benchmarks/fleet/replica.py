"""`SimulatedReplica`: the real scheduler and radix cache of one replica, on a simulated device."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.fleet.device import Device
from radixrt.config import SchedulerConfig
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.messages.cache_events import CacheAck, FromWatched, WatchCacheReq
from radixrt.messages.runner import StepOutput
from radixrt.messages.scheduler import AbortReq, ReleaseReq, TokenBatch, TokenizedReq
from radixrt.messages.scheduler_stats import LoadStats, SchedulerStats
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.scheduler.cache_stream import CacheStream
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler

END_TOKEN = 0
MAX_INFLIGHT = 2


class Answer(NamedTuple):
    """Result of a step.

    Attributes:
        tokens: output of the requests; None if there is none.
        first: ids of the requests that got their first token.
    """

    tokens: TokenBatch | None
    first: list[str]


class SimulatedReplica:
    """One replica. Its caller owns the clock: `submit` after each message and answer, `answer` at `ends_at`.

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
        )  # fmt: skip
        allocator = TokenToKVPoolAllocator(device.num_slots, 1)
        rows = ReqToTokenPool(config.max_running_requests, min(device.context_length, device.num_slots))
        self.cache = RadixCache(allocator, "lru")
        self.scheduler = Scheduler(
            config, KVManager(self.cache, allocator, rows), context_length=device.context_length,
            eos_ids=[END_TOKEN], vocab_size=32,
        )  # fmt: skip
        self.stream = CacheStream(self.scheduler)
        self.fetched: dict[str, int] = {}
        self.steps = 0
        self.busy_s = 0.0
        self._device = device
        self._outputs = outputs
        self._rng = random.Random(seed)
        self._inflight: deque[tuple[ScheduleBatch, float]] = deque()
        self._free_at = 0.0  # when the device has computed what was submitted

    @property
    def ends_at(self) -> float:
        """Time at which the oldest step in flight ends; infinite without one."""
        return self._inflight[0][1] if self._inflight else float("inf")

    def receive(self, message: TokenizedReq | AbortReq | ReleaseReq | WatchCacheReq | CacheAck, now: float) -> None:
        if isinstance(message, TokenizedReq):
            self.scheduler.intake.add(message, now)
        elif isinstance(message, (WatchCacheReq, CacheAck)):
            self.stream.handle(message)
        elif isinstance(message, AbortReq):
            self.scheduler.abort(message.rid, now)
        else:
            self.scheduler.programs.release(message.program, message.branch)

    def events(self, now: float) -> list[FromWatched]:
        """Messages of the cache's stream after a turn of the loop."""
        return self.stream.turn(now) if self.stream.is_on else []

    def stats(self) -> SchedulerStats:
        """Load, as the scheduler's loop reports it, without its predictions."""
        core, kv = self.scheduler, self.scheduler.kv
        return SchedulerStats(
            waiting=len(core.waiting), running=len(core.active), slots_total=kv.allocator.num_slots,
            slots_free=kv.allocator.available(), slots_evictable=kv.cache.evictable_size,
            slots_protected=kv.cache.protected_size, prompt_tokens=0, cached_tokens=0, generated_tokens=0,
            evicted_tokens=0, retractions=0, finished=0, extend_steps=0, decode_steps=0, schedule_s=0.0, runner_s=0.0,
            commit_s=0.0, load=LoadStats(step_times=core.step_time.times),
        )  # fmt: skip

    def submit(self, now: float) -> bool:
        """Submit steps up to the depth of the pipeline; returns whether there were any."""
        submitted = False
        while len(self._inflight) < MAX_INFLIGHT:
            batch = self.scheduler.next_batch(now)
            if batch is None:
                break
            if self.fetched:
                self._discount(batch)
            seconds = self._device.times.seconds(*batch.shape)
            if self._device.noise:
                seconds *= self._rng.lognormvariate(0, self._device.noise)
            self._free_at = max(now, self._free_at) + seconds
            self.busy_s += seconds
            self._inflight.append((batch, self._free_at))
            self.steps += 1
            submitted = True
        return submitted

    def _discount(self, batch: ScheduleBatch) -> None:
        """Take what was fetched out of the work of a step, to which the scheduler fits its model as well."""
        fetched = 0
        news = unpack_i32(batch.step.extend_lens).tolist()
        for req, length, new in zip(batch.requests, unpack_i32(batch.step.seq_lens).tolist(), news):
            until = self.fetched.get(req.rid, 0)
            fetched += max(min(until, length) - (length - new), 0)
            if until <= length:
                self.fetched.pop(req.rid, None)
        if fetched:
            vars(batch)["shape"] = batch.shape._replace(tokens=max(batch.shape.tokens - fetched, 0))

    def answer(self, now: float) -> Answer:
        """Commit the oldest step in flight."""
        batch, _ = self._inflight.popleft()
        outputs = self._outputs
        first = [req.rid for req in batch.sampled if req.known_len == req.prompt_len] if batch.step.extend_lens else []
        sampled = [
            END_TOKEN if req.finish is not None else outputs[req.rid][req.known_len - req.prompt_len]
            for req in batch.sampled
        ]
        self.scheduler.commit(batch, StepOutput(batch.step_id, pack_i32(sampled)), now)
        return Answer(self.scheduler.take_deltas(), first)
