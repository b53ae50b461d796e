"""Pacing of a model with pipeline stages: the decode rows of a step, and the number of its prompt tokens.

As many steps are in flight as there are stages, so that each stage computes a different step. Sampled ids return
through the scheduler: a decode row is in at most one step in flight, and the row's next step carries the sampled id
(`ForwardStep.input_ids`). The tokens of prompts are known, so the next chunk of a prompt can enter the first stage
while the previous chunk is in the second stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.scheduler.pacing import HasTimes, Pacing, StepBudget
from radixrt.scheduler.req import Req

MIN_CHUNK_TOKENS = 64
"""Chunks have a multiple of MIN_CHUNK_TOKENS tokens, except the last chunk of a prompt."""
MIN_STEPS = 8
"""Number of steps with prompts that the model of their time needs."""


class TimedBudget(StepBudget):
    """Prompt tokens that one step may still get, bounded by their predicted time.

    Args:
        tokens: maximum number of tokens.
        seconds: longest time of the step's chunks, as predicted by `times`. The first chunk may have MIN_CHUNK_TOKENS
            tokens even if they take longer.
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
    """Gives consecutive steps equal shares of the decode rows, and chunks that take equal times.

    The time of attention grows with the tokens before a chunk, so chunks of equal time have fewer and fewer tokens. Let
    W be the seconds that a burst of prompts takes in one stage, F the fixed seconds of each step, and m the number of
    steps. Then s stages take (m + s - 1) * (W / m + F). For small m, stages wait long for the first chunk, and idle
    long after the last chunk. The minimum is at m = sqrt((s - 1) * W / F), with W / m = sqrt(W * F / (s - 1)) seconds
    of chunks per step. During a burst the time of a step never decreases although W does: shorter steps save nothing.
    """

    gives_ids = True

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self._seconds = 0.0

    def rows(self, growing: list[Req]) -> list[Req]:
        """Return decode rows that are in no step in flight; rows that have waited longest come first.

        A step gets at most an equal share of all rows, so that rows are left for the steps of the other stages.
        """
        free = sorted((req for req in growing if not req.num_pending), key=lambda req: req.last_step)
        return free[: -(-len(growing) // self.stages)]

    def no_prompts(self) -> None:
        self._seconds = 0.0  # the burst is over

    def budget(self, max_tokens: int, step_time: HasTimes, prompts: Iterable[tuple[int, int]]) -> StepBudget:
        times = step_time.times
        if times.extend_steps < MIN_STEPS:
            return StepBudget(max_tokens)
        work = sum(tokens * (times.token + times.pair * (start + tokens / 2)) for start, tokens in prompts)
        longest = max_tokens * (times.token + times.pair * max_tokens / 2)
        wanted = math.sqrt(work * (times.step + times.extend) / (self.stages - 1))
        self._seconds = max(self._seconds, min(wanted, longest))
        return TimedBudget(max_tokens, self._seconds, times)
