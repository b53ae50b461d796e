"""Pacing of a model with pipeline stages: the decode rows of a step, and the number of its prompt tokens.

As many steps are in flight as there are stages, so that each stage computes a different step. Sampled ids return
through the scheduler: a decode row is in at most one step in flight, and the row's next step carries the sampled id
(`ForwardStep.input_ids`). The tokens of prompts are known, so the next chunk of a prompt can enter the first stage
while the previous chunk is in the second stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from radixrt.scheduler.pacing import HasTimes, Pacing, StepBudget, TimedBudget
from radixrt.scheduler.req import Req

MIN_STEPS = 8
"""Number of steps with prompts that the model of their time needs, before bursts are divided by it."""


class StagePacing(Pacing):
    """Gives consecutive steps equal shares of the decode rows, and chunks that take equal times.

    The time of attention grows with the tokens before a chunk, so chunks of equal time have fewer and fewer tokens. Let
    W be the seconds that a burst of prompts takes in one stage, F the fixed seconds of each step, and m the number of
    steps. Then s stages take (m + s - 1) * (W / m + F). For small m, stages wait long for the first chunk, and idle
    long after the last chunk. The minimum is at m = sqrt((s - 1) * W / F), with W / m = sqrt(W * F / (s - 1)) seconds
    of chunks per step. During a burst the time of a step never decreases although W does: shorter steps save nothing.
    """

    gives_ids = True

    def __init__(self, stages: int, max_gap_s: float = math.inf) -> None:
        super().__init__(max_gap_s)
        self.stages = stages
        self._seconds = 0.0

    def rows(self, growing: list[Req]) -> list[Req]:
        """Return decode rows that are in no step in flight; rows that have waited longest come first.

        A step gets at most an equal share of all rows, so that rows are left for the steps of the other stages.
        """
        self._decoding = growing
        free = sorted((req for req in growing if not req.num_pending), key=lambda req: req.last_step)
        chosen = free[: -(-len(growing) // self.stages)]
        self._has_rows = bool(chosen)
        return chosen

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
        seconds = min(self._seconds, self._seconds_beside_rows(times)) if self._bounds_gaps else self._seconds
        return TimedBudget(max_tokens, seconds, times)
