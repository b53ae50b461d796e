"""`Pacing`: chooses the decode rows and the number of prompt tokens of each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.scheduler.req import Req


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
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    @property
    def is_spent(self) -> bool:
        """True if the step gets no further chunk."""
        return self._tokens <= 0

    def tokens_behind(self, start: int) -> int:
        """Return the largest number of tokens of a chunk that begins at position `start` of its request."""
        return self._tokens

    def spend(self, start: int, tokens: int) -> None:
        """Subtract a chunk of `tokens` tokens at position `start` from the budget."""
        self._tokens -= tokens


class Pacing:
    """Pacing of a model without pipeline stages: each step has all decode rows, and takes their input tokens on the
    device from the previous step.

    Attributes:
        stages: number of pipeline stages, and so of steps that are computed at the same time.
        gives_ids: the step carries the input tokens of its decode rows. The scheduler then knows them, because no row
            is in two steps in flight.
    """

    stages = 1
    gives_ids = False

    def rows(self, growing: list[Req]) -> list[Req]:
        """Return the decode rows of the next step, among all rows that may decode."""
        return growing

    def no_prompts(self) -> None:
        """Note that the next step is decided while no prompt is under way and no request waits."""

    def budget(self, max_tokens: int, step_time: HasTimes, prompts: Iterable[tuple[int, int]]) -> StepBudget:
        """Return the budget of the next step.

        Args:
            max_tokens: maximum number of prompt tokens in a step.
            step_time: model of the seconds that a step takes. Reading the model takes in the answered steps first, so
                that a pacing which does not need the model does not read it.
            prompts: (number of computed tokens, number of tokens to compute) for each prompt under way and for the
                first waiting requests; a pacing that does not need the prompts does not consume the iterator.
        """
        return StepBudget(max_tokens)
