"""`QueueForecast`: when the requests of a queue will be admitted, found by playing the queue forward in time.

Plain data and arithmetic, so that a router or an offline simulator can use it as well as the scheduler.

Requests are admitted in the order in which they are given, each as soon as a row and enough slots are free and the
prompts before it are within the token budget of steps. A running request ends after one step for each token that it is
expected to sample, and gives its row and slots back. Time passes by the number of steps, each as long as the model
says for the rows that run at that moment, plus the time of the prompts that are computed meanwhile.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

from radixrt.messages.scheduler_stats import StepTimes


class Work(NamedTuple):
    """Work of one request that has yet to be done.

    Attributes:
        prefill: number of input tokens to compute.
        length: number of input tokens, cached ones included.
        output: number of tokens that it is expected to sample; 0 if it samples nothing.
        slots: number of slots of the KV pool that it takes when it is admitted, or gives back when it ends.
    """

    prefill: float
    length: float
    output: float
    slots: float


class QueueForecast:
    """See the module's docstring. Forecasts begin with the running requests (`run`); then those of the queue follow in
    order (`admit`).

    Args:
        times: model of the seconds that a step takes.
        max_rows: maximum number of running requests.
        chunk_tokens: maximum number of prompt tokens in a step.
        free_slots: slots of the KV pool that no running request has or is expected to take.
        begin_s: seconds until the next step is decided.

    Attributes:
        clock: seconds from now at which the request given last is admitted.
    """

    def __init__(
        self, times: StepTimes, *, max_rows: int, chunk_tokens: int, free_slots: float, begin_s: float = 0.0
    ) -> None:
        self._times = times
        self._max_rows = max_rows
        self._chunk_tokens = chunk_tokens
        self._free_slots = free_slots
        self._steps = 0.0  # number of steps from now until the time `clock`
        self._prompts_until = 0.0  # step before which the prompts admitted so far are computed
        self._prompt_s = 0.0  # seconds of these prompts that `clock` does not contain yet
        self._extended_at = -1.0  # last step with a prompt chunk
        self._context = 0.0  # sum of the lengths of the running requests
        self._ends: list[tuple[float, float, float]] = []  # heap of (step, slots, length)
        self._begin_s = begin_s
        self.clock = begin_s

    @property
    def step_s(self) -> float:
        """Mean seconds of the steps until the last admission; 0 if that is at once."""
        return (self.clock - self._begin_s) / self._steps if self._steps else 0.0

    def run(self, work: Work) -> None:
        """Add a request that is running already; its `slots` are not among the free ones."""
        self._start(work)

    def admit(self, work: Work) -> float:
        """Add the next request of the queue; returns the seconds from now until it is admitted."""
        self._advance(math.floor(self._prompts_until))
        while self._ends and (len(self._ends) >= self._max_rows or work.slots > self._free_slots):
            self._advance(self._ends[0][0])
        self._free_slots -= work.slots
        self._start(work)
        return self.clock

    def with_next(self, work: Work) -> QueueForecast:
        """Return a forecast with one more request in the queue; this one stays as it is."""
        following = QueueForecast.__new__(QueueForecast)
        following.__dict__.update(self.__dict__)  # copy.copy takes five times as long
        following._ends = self._ends.copy()
        following.admit(work)
        return following

    def _start(self, work: Work) -> None:
        """Begin to compute a request in the step at which the forecast is."""
        times, steps = self._times, self._steps
        if work.prefill > 0:
            cached = work.length - work.prefill
            pairs = work.prefill * (cached + work.prefill / 2)
            chunks = work.prefill / self._chunk_tokens
            self._prompts_until = max(self._prompts_until, steps) + chunks
            self._prompt_s += times.token * work.prefill + times.pair * pairs + times.extend * chunks
            if math.floor(steps) > self._extended_at:
                self._extended_at = math.floor(steps)
                self._prompt_s += times.extend
        length = work.length + work.output / 2
        self._context += length
        end = max(self._prompts_until, steps + 1) if work.prefill > 0 else steps
        heapq.heappush(self._ends, (end + work.output, work.slots, length))

    def _advance(self, steps: float) -> None:
        """Let time pass until the given step, with all that ends before it."""
        while self._ends and self._ends[0][0] <= steps:
            self._pass(self._ends[0][0])
            _, slots, length = heapq.heappop(self._ends)
            self._free_slots += slots
            self._context -= length
        self._pass(steps)

    def _pass(self, steps: float) -> None:
        passed = steps - self._steps
        if passed <= 0:
            return
        self.clock += passed * self._times.seconds(len(self._ends), self._context)
        if self._prompt_s:
            left = self._prompts_until - self._steps
            share = self._prompt_s * min(1.0, passed / left) if left > 0 else self._prompt_s
            self.clock += share
            self._prompt_s -= share
        self._steps = steps
