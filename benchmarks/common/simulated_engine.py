"""`SimulatedEngine`: requests that arrive at given times, on the real scheduler with a simulated device.

A step takes the time that a step-time model gives, with noise. Requests end after given numbers of tokens. A thousand
requests take about a second of one core.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.messages.parts import Finish
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.parts.overload.scheduler import Overload
from radixrt.parts.simulated import NoisyTimes, SimulatedRunner, make_scheduler
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch

EOS, OTHER = 0, 1
VOCAB = 1000
IDLE_S = 0.05
"""Step of the clock while requests wait and no step runs: only their deadlines can end them."""


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
    tenant: str = ""
    weight: float = 1.0


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


class SimulatedEngine(SimulatedRunner):
    """One engine; `run` plays requests to their end.

    Attributes:
        now: the simulated clock, in seconds.
        lives: every request, by id.
    """

    def __init__(self, device: SimulatedDevice, seed: int = 0, *, depth: int = 2, **options: object) -> None:
        config = SchedulerConfig(**{"max_running_requests": 64, "chunked_prefill_size": 1024, **options})  # type: ignore[arg-type]
        scheduler = make_scheduler(
            config, device.num_slots, context_length=device.context_length, eos_ids=[EOS], vocab_size=VOCAB
        )
        super().__init__(scheduler, self._seconds, self._sample, depth=depth)
        self.lives: dict[str, Life] = {}
        self._times = NoisyTimes(
            device.times, noise=device.noise, slow_share=device.slow_share, slow_factor=device.slow_factor, seed=seed
        )

    def run(self, requests: Sequence[SimulatedRequest]) -> list[Life]:
        """Play all requests, in order of arrival, until the last has ended; returns their lives."""
        first = len(self.lives)
        arrivals = deque(sorted(enumerate(requests, first), key=lambda numbered: numbered[1].at))
        while arrivals or not self.scheduler.is_idle:
            if self.advance(self.now, before=arrivals[0][1].at if arrivals else math.inf):
                pass
            elif arrivals:
                number, request = arrivals.popleft()
                self.now = max(self.now, request.at)
                self._arrive(f"r{number}", request)
            else:
                self.now += IDLE_S
            self.take()
        return list(self.lives.values())[first:]

    def _arrive(self, rid: str, request: SimulatedRequest) -> None:
        self.lives[rid] = Life(request, self.scheduler.part(Overload).load.stats(self.now, 0).predicted_wait_s)
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0)
        self.scheduler.intake.add(
            Request.generate(
                rid,
                pack_i32(request.prompt),
                sampling,
                priority=request.priority,
                timeout_s=request.timeout_s,
                tenant=request.tenant,
                weight=request.weight,
            ),
            self.now,
        )

    def _seconds(self, batch: ScheduleBatch) -> float:
        return self._times.seconds(batch.shape)

    def _sample(self, req: Req) -> int:
        life = self.lives[req.rid]
        life.tokens.append(self.now)
        return EOS if len(life.tokens) >= life.request.output else OTHER

    def take(self) -> None:
        """Record the requests that have ended."""
        taken = self.scheduler.take_deltas()
        for delta in taken.deltas if taken is not None else ():
            if delta.finish is not None:
                life = self.lives[delta.rid]
                life.finish, life.ended_at = delta.finish, self.now
                assert delta.timings is not None
                life.queue_s, life.retractions = delta.timings.queue_s, delta.timings.retractions
