"""Rules of a model that is divided into pipeline stages: the rows of a step, and the prompt tokens of its chunks.

As many steps are in flight as there are stages, so that each stage computes another one. Sampled ids come back through
the scheduler: a row is in one step in flight at most, and its next step carries its id (`ForwardStep.input_ids`).
Prompts need no such rule: their tokens are known, and a prompt's next chunk enters the first stage while the one before
it is in the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.scheduler.pacing import HasTimes, Pacing, StepBudget
from radixrt.scheduler.req import Req

MIN_CHUNK_TOKENS = 64
"""Chunks are a multiple of so many tokens, unless a prompt ends."""
MIN_STEPS = 8
"""Number of steps with prompts before which nothing is known about their time."""


class TimedBudget(StepBudget):
    """Prompt tokens that one step may still get, bounded by their predicted time.

    Args:
        tokens: maximum number of tokens.
        seconds: the longest time of the step's chunks, predicted by `times`; the first chunk has MIN_CHUNK_TOKENS at
            least, whatever they take.
    """

    def __init__(self, tokens: int, seconds: float, times: StepTimes) -> None:
        super().__init__(tokens)
        self._seconds, self._times = seconds, times
        self._is_new = True

    def tokens_behind(self, start: int) -> int:
        token, pair = self._times.token + self._times.pair * start, self._times.pair
        # The positive root of pair / 2 * n^2 + token * n = seconds, in a form that bears a pair of almost 0.
        fitting = int(2 * self._seconds / (token + math.sqrt(token * token + 2 * pair * max(self._seconds, 0.0))))
        fitting -= fitting % MIN_CHUNK_TOKENS
        if self._is_new:
            fitting = max(fitting, MIN_CHUNK_TOKENS)
        return min(self._tokens, fitting)

    def spend(self, start: int, tokens: int) -> None:
        super().spend(start, tokens)
        self._is_new = False
        self._seconds -= tokens * (self._times.token + self._times.pair * (start + tokens / 2))
        if self.tokens_behind(0) <= 0:
            self._tokens = 0


class StagePacing(Pacing):
    """Rows of the next step, and how long its chunks may take, so that all stages have equal steps.

    Attention grows with the tokens before a chunk, so chunks of equal time have fewer and fewer tokens. With m equal
    steps of a burst of prompts that takes a stage W seconds, and a fixed time F of each step, s stages take
    (m + s - 1) * (W / m + F): most of the time where m is small is that in which stages wait for the first chunk or
    have done the last one. So m is sqrt((s - 1) * W / F), and a step takes sqrt(W * F / (s - 1)). During a burst the
    time never falls, though W does: steps that become shorter save nothing.
    """

    gives_ids = True

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self._seconds = 0.0

    def rows(self, growing: list[Req]) -> list[Req]:
        """Return the decode rows that no step in flight computes, the longest unserved first.

        A step gets an equal share of all rows at most: the rest is left to the steps of the other stages.
        """
        free = sorted((req for req in growing if not req.num_pending), key=lambda req: req.last_step)
        return free[: -(-len(growing) // self.stages)]

    def budget(self, max_tokens: int, step_time: HasTimes, prompts: Iterable[tuple[int, int]]) -> StepBudget:
        times = step_time.times
        if times.extend_steps < MIN_STEPS:
            return StepBudget(max_tokens)
        work = sum(tokens * (times.token + times.pair * (start + tokens / 2)) for start, tokens in prompts)
        if not work:
            self._seconds = 0.0
        longest = max_tokens * (times.token + times.pair * max_tokens / 2)
        wanted = math.sqrt(work * (times.step + times.extend) / (self.stages - 1))
        self._seconds = max(self._seconds, min(wanted, longest))
        return TimedBudget(max_tokens, self._seconds, times)
