"""`Pacing`: chooses the decode rows and the number of prompt tokens of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.scheduler.req import Req

MIN_CHUNK_TOKENS = 64
"""Chunks that are bounded by their time have a multiple of MIN_CHUNK_TOKENS tokens, except the last chunk of a
prompt."""


class HasTimes(Protocol):
    """Model of the seconds that a step takes."""

    @property
    def times(self) -> StepTimes:
        """The model as of now."""
        ...


class StepBudget:
    """Number of prompt tokens that a step may still get.

    Args:
        tokens: maximum number of tokens.

    Attributes:
        is_new: nothing was spent.
        inputs_s: predicted seconds of the step's work on other inputs than tokens.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self.is_new = True
        self.inputs_s = 0.0

    @property
    def is_spent(self) -> bool:
        """True if the step gets no further chunk."""
        return self._tokens <= 0

    @property
    def seconds(self) -> float:
        """Time that is left for the step's chunks and other inputs; inf without a bound."""
        return math.inf

    def tokens_behind(self, start: int) -> int:
        """Return the largest number of tokens of a chunk that begins at position `start` of its request."""
        return self._tokens

    def spend_seconds(self, seconds: float) -> None:
        """Subtract the predicted time of work on other inputs than tokens from the budget."""
        if seconds:
            self.inputs_s += seconds
            self.is_new = False

    def spend(self, start: int, tokens: int) -> None:
        """Subtract a chunk of `tokens` tokens at position `start` from the budget."""
        self._tokens -= tokens
        self.is_new = False


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

    @property
    def seconds(self) -> float:
        return max(self._seconds, 0.0)

    def tokens_behind(self, start: int) -> int:
        token, pair = self._times.token + self._times.pair * start, self._times.pair
        # The positive root of pair / 2 * n^2 + token * n = seconds, in a form that bears a pair of almost 0.
        fitting = int(2 * self.seconds / (token + math.sqrt(token * token + 2 * pair * self.seconds)))
        fitting -= fitting % MIN_CHUNK_TOKENS
        if self.is_new:
            fitting = max(fitting, MIN_CHUNK_TOKENS)
        return min(self._tokens, fitting)

    def spend(self, start: int, tokens: int) -> None:
        super().spend(start, tokens)
        self._spend(tokens * (self._times.token + self._times.pair * (start + tokens / 2)))

    def spend_seconds(self, seconds: float) -> None:
        super().spend_seconds(seconds)
        if seconds:
            self._spend(seconds)

    def _spend(self, seconds: float) -> None:
        self._seconds -= seconds
        if self.tokens_behind(0) <= 0:
            self._tokens = 0


class Pacing:
    """Pacing of a model without pipeline stages: each step has all decode rows, and takes their input tokens on the
    device from the previous step.

    A step with decode rows is the time between two tokens of each of these rows. So beside decode rows the chunks of a
    step get the time that `max_gap_s` leaves (`StepTimes.seconds_beside_rows`).

    Args:
        max_gap_s: longest predicted time of a step with decode rows and chunks, in seconds; inf: no bound.

    Attributes:
        stages: number of pipeline stages, and so of steps that are computed at the same time.
        gives_ids: the step carries the input tokens of its decode rows. The scheduler then knows them, because no row
            is in two steps in flight.
    """

    stages = 1
    gives_ids = False

    def __init__(self, max_gap_s: float = math.inf) -> None:
        self._max_gap_s = max_gap_s
        self._decoding: list[Req] = []
        self._has_rows = False  # the next step has decode rows

    def rows(self, growing: list[Req]) -> list[Req]:
        """Return the decode rows of the next step, among all rows that may decode."""
        self._decoding, self._has_rows = growing, bool(growing)
        return growing

    def no_prompts(self) -> None:
        """Note that the next step is decided while no prompt is under way and no request waits."""

    def budget(self, max_tokens: int, step_time: HasTimes, prompts: Iterable[tuple[int, int]]) -> StepBudget:
        """Return the budget of the next step, whose decode rows are the result of the last call of `rows`.

        Args:
            max_tokens: maximum number of prompt tokens in a step.
            step_time: model of the seconds that a step takes. Reading the model takes in the answered steps first, so
                that a pacing which does not need the model does not read it.
            prompts: (number of computed tokens, number of tokens to compute) for each prompt under way and for the
                first waiting requests; a pacing that does not need the prompts does not consume the iterator.
        """
        return self._budget_beside_rows(max_tokens, step_time)

    def chunk_tokens(self, max_tokens: int, step_time: HasTimes) -> int:
        """Return the number of prompt tokens that a step like the last one gets, at the beginning of a prompt."""
        return self._budget_beside_rows(max_tokens, step_time).tokens_behind(0)

    def input_seconds(self, budget: StepBudget, step_time: HasTimes) -> float:
        """Return the time that the next step has for other inputs than tokens; inf without decode rows, because a step
        needs a row and such inputs alone make none.

        Args:
            budget: result of `budget`. While the time of prompts is not known it has no bound in seconds, and what the
                decode rows leave is the bound.
        """
        if not self._has_rows or self._max_gap_s == math.inf:
            return math.inf
        if budget.seconds < math.inf:
            return budget.seconds
        return max(self._seconds_beside_rows(step_time.times) - budget.inputs_s, 0.0)

    def _budget_beside_rows(self, max_tokens: int, step_time: HasTimes) -> StepBudget:
        """Return the budget that the decode rows of the next step leave."""
        # One step is enough. If it compiled kernels, the next chunks are small, and teach the time of such chunks.
        if not self._bounds_gaps or not (times := step_time.times).extend_steps:
            return StepBudget(max_tokens)
        return TimedBudget(max_tokens, self._seconds_beside_rows(times), times)

    @property
    def _bounds_gaps(self) -> bool:
        """The next step has decode rows whose wait is bounded."""
        return bool(self._decoding) and self._max_gap_s < math.inf

    def _seconds_beside_rows(self, times: StepTimes) -> float:
        """Return the longest time of the chunks of a step beside the decode rows."""
        # With several stages a row is in every `stages`-th step, and its next token comes after as many steps.
        rows = len(self._decoding) / self.stages
        context = sum(req.kv.length for req in self._decoding) / self.stages
        return times.seconds_beside_rows(rows, context, self._max_gap_s / self.stages) - times.extend
