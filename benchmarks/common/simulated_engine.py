"""The real scheduler on a simulated device and clock: no model, no sockets, no threads, the same result every time.

A step takes the time that a step-time model gives, with noise. Requests arrive at given times and end after given
numbers of tokens. A thousand requests take about a second of one core.
"""

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.messages.parts import Finish
from radixrt.messages.runner import StepOutput
from radixrt.messages.scheduler import TokenizedReq
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import step_shape
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler

EOS, OTHER = 0, 1


@dataclass(frozen=True)
class SimulatedRequest:
    """A request and when it comes.

    Attributes:
        at: time of its arrival, in seconds.
        output: number of tokens after which it ends by itself.
        max_tokens: maximum that it asks for.
    """

    at: float
    prompt: np.ndarray
    output: int
    max_tokens: int
    priority: int = 0
    timeout_s: float | None = None


@dataclass
class Life:
    """A simulated request's life. Times are in seconds of the simulated clock.

    Attributes:
        predicted_wait_s: wait that the scheduler predicted when the request arrived.
        tokens: time of each token.
    """

    request: SimulatedRequest
    predicted_wait_s: float
    tokens: list[float] = field(default_factory=list)
    queue_s: float = 0.0
    finish: Finish | None = None
    ended_at: float = 0.0
    retractions: int = 0

    @property
    def is_refused(self) -> bool:
        return self.finish is not None and self.finish.error is not None and self.finish.error.status == 429

    @property
    def is_served(self) -> bool:
        return self.finish is not None and self.finish.error is None


@dataclass(frozen=True)
class SimulatedDevice:
    """Sizes and speed of a simulated engine.

    Attributes:
        noise: standard deviation of the logarithm of a step's time.
        slow_share, slow_factor: part of the steps that take longer, and by how much.
    """

    times: StepTimes
    num_slots: int = 100_000
    context_length: int = 16_384
    noise: float = 0.1
    slow_share: float = 0.01
    slow_factor: float = 5.0


class SimulatedEngine:
    """One engine; `run` plays requests to their end.

    Attributes:
        now: the simulated clock, in seconds.
        steps: number of steps.
        lives: every request, by id.
    """

    def __init__(self, device: SimulatedDevice, seed: int = 0, *, depth: int = 2, **options: object) -> None:
        self.config = SchedulerConfig(**{"max_running_requests": 64, "chunked_prefill_size": 1024, **options})  # type: ignore[arg-type]
        self.device = device
        allocator = TokenToKVPoolAllocator(device.num_slots, 1)
        rows = ReqToTokenPool(self.config.max_running_requests, device.context_length)
        self.scheduler = Scheduler(
            self.config, KVManager(RadixCache(allocator, "lru"), allocator, rows),
            context_length=device.context_length, eos_ids=[EOS], vocab_size=1000,
        )  # fmt: skip
        self.now = 0.0
        self.steps = 0
        self.lives: dict[str, Life] = {}
        self._rng = random.Random(seed)
        self._depth = depth
        self._inflight: deque[tuple[ScheduleBatch, float]] = deque()
        self._free_at = 0.0  # when the device has computed what was submitted

    def run(self, requests: Sequence[SimulatedRequest]) -> list[Life]:
        """Play all requests, in order of arrival, until the last has ended; returns their lives."""
        first = len(self.lives)
        arrivals = [(request.at, i) for i, request in enumerate(requests)]
        heapq.heapify(arrivals)
        while arrivals or not self.scheduler.is_idle:
            self._submit()
            answer_at = self._inflight[0][1] if self._inflight else float("inf")
            if arrivals and arrivals[0][0] <= answer_at:
                at, i = heapq.heappop(arrivals)
                self.now = max(self.now, at)
                self._arrive(f"r{first + i}", requests[i])
            elif self._inflight:
                self.now = answer_at
                self._answer()
            else:
                self.now += 0.05  # requests that wait without a step: only their deadline can end them
            self._take()
        return list(self.lives.values())[first:]

    def _arrive(self, rid: str, request: SimulatedRequest) -> None:
        self.lives[rid] = Life(request, self.scheduler.load.stats(self.now, 0).predicted_wait_s)
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0)
        self.scheduler.intake.add(
            TokenizedReq(
                rid, pack_i32(request.prompt), sampling, priority=request.priority, timeout_s=request.timeout_s
            ),
            self.now,
        )

    def _submit(self) -> None:
        while len(self._inflight) < self._depth:
            batch = self.scheduler.next_batch(self.now)
            if batch is None:
                return
            seconds = self.device.times.seconds(*step_shape(batch.step)) * self._rng.lognormvariate(
                0, self.device.noise
            )
            if self._rng.random() < self.device.slow_share:
                seconds *= self.device.slow_factor
            self._free_at = max(self.now, self._free_at) + seconds
            self._inflight.append((batch, self._free_at))
            self.steps += 1

    def _answer(self) -> None:
        batch, _ = self._inflight.popleft()
        tokens = []
        for req in batch.sampled:
            life = self.lives[req.rid]
            if req.finish is None:
                life.tokens.append(self.now)
            tokens.append(EOS if len(life.tokens) >= life.request.output else OTHER)
        self.scheduler.commit(batch, StepOutput(batch.step_id, pack_i32(tokens)), self.now)

    def _take(self) -> None:
        taken = self.scheduler.take_deltas()
        for delta in taken.deltas if taken is not None else ():
            if delta.finish is not None:
                life = self.lives[delta.rid]
                life.finish, life.ended_at = delta.finish, self.now
                assert delta.timings is not None
                life.queue_s, life.retractions = delta.timings.queue_s, delta.timings.retractions
