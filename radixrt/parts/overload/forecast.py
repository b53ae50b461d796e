"""`QueueForecast`: predicts when the requests of a queue will be admitted, by simulating the queue.

The class is arithmetic on plain data, so that a router or an offline simulator can use the forecast too.

Requests are admitted in the given order, each as soon as a row and enough slots are free and the steps' token budget
has room after the earlier prompts. A running request takes one step per expected output token; then the request's row
and slots are free. The time of a step is the time that the step-time model predicts for the running rows, plus the time
of the prompts that the step computes.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

from radixrt.messages.scheduler_stats import StepTimes


class Work(NamedTuple):
    """Remaining work of a request.

    Attributes:
        prefill: number of input tokens to compute.
        length: number of input tokens, cached tokens included.
        output: expected number of output tokens; 0 for a request without sampling.
        slots: number of slots of the KV pool that the request takes at admission or, if it runs already, frees at its
            end.
        rows: number of sequences of these tokens; several for a request without sampling.
        group_pairs: sum over the tokens to compute of the number of positions that the token attends to, for several
            sequences; those of one sequence follow from `prefill` and `length`.
        inputs_s: predicted seconds of work on other inputs than tokens.
    """

    prefill: float
    length: float
    output: float
    slots: float
    rows: int = 1
    group_pairs: float = 0.0
    inputs_s: float = 0.0

    @property
    def pairs(self) -> float:
        """Sum over the tokens to compute of the number of positions that the token attends to."""
        return self.group_pairs or self.prefill * (self.length - self.prefill / 2)


class QueueForecast:
    """See the module's docstring. Call `run` for each running request first, then `admit` for each waiting request in
    order.

    Args:
        times: model of the seconds that a step takes.
        max_rows: maximum number of running requests.
        chunk_tokens: maximum number of prompt tokens in a step.
        free_slots: number of slots of the KV pool that no running request holds or is expected to take.
        begin_s: seconds until the next step is decided.

    Attributes:
        clock: seconds from now until the last request passed to `admit` is admitted.
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
        """Mean seconds of the steps until the last admission; 0 without such a step."""
        return (self.clock - self._begin_s) / self._steps if self._steps else 0.0

    def run(self, work: Work) -> None:
        """Add a running request, whose `slots` are not free."""
        self._start(work)

    def admit(self, work: Work) -> float:
        """Add the next request of the queue; return the seconds from now until its admission."""
        self._advance(math.floor(self._prompts_until))
        while self._ends and (len(self._ends) >= self._max_rows or work.slots > self._free_slots):
            self._advance(self._ends[0][0])
        self._free_slots -= work.slots
        self._start(work)
        return self.clock

    def with_next(self, work: Work) -> QueueForecast:
        """Return a copy of the forecast with one more request at the end of the queue."""
        following = QueueForecast.__new__(QueueForecast)
        following.__dict__.update(self.__dict__)  # copy.copy takes five times as long
        following._ends = self._ends.copy()
        following.admit(work)
        return following

    def prompt_seconds(self, work: Work) -> float:
        """Return the seconds that a request's prompt adds to the steps that compute it, without the fixed time of the
        first step with prompts."""
        chunks = self._chunks(work)
        steps = max(chunks, 1.0)
        extend = self._times.extend
        tokens_s = self._times.bounded_chunk_seconds(work.prefill / steps, work.pairs / steps) - extend
        return extend * chunks + steps * tokens_s + work.inputs_s

    def _chunks(self, work: Work) -> float:
        """Return the number of steps that a request's prompt fills, by tokens or by rows."""
        chunks = work.prefill / self._chunk_tokens
        return chunks if work.rows == 1 else max(chunks, work.rows / self._max_rows)

    def _input_steps(self, work: Work) -> float:
        """Return the number of steps that are filled by work on other inputs, each with the time of a full chunk."""
        tokens = self._chunk_tokens
        return work.inputs_s / self._times.seconds(0, 0, tokens, tokens * tokens / 2) if work.inputs_s else 0.0

    def _start(self, work: Work) -> None:
        """Let a request begin at the current step of the forecast."""
        times, steps = self._times, self._steps
        if work.prefill > 0:
            self._prompts_until = max(self._prompts_until, steps) + self._chunks(work) + self._input_steps(work)
            self._prompt_s += self.prompt_seconds(work)
            if math.floor(steps) > self._extended_at:
                self._extended_at = math.floor(steps)
                self._prompt_s += times.extend
        length = work.length + work.output / 2 if work.output else 0.0  # nothing attends to a prompt that has ended
        self._context += length
        end = max(self._prompts_until, steps + 1) if work.prefill > 0 else steps
        heapq.heappush(self._ends, (end + work.output, work.slots, length))

    def _advance(self, steps: float) -> None:
        """Advance to the given step; requests that end before the step free their rows and slots."""
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
