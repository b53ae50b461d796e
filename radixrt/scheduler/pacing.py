"""`Pacing`: which decode rows a step gets, and how many prompt tokens."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.scheduler.req import Req


class StepBudget:
    """Prompt tokens that one step may still get.

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
        """Return the largest number of tokens of a chunk that begins behind `start` others."""
        return self._tokens

    def spend(self, start: int, tokens: int) -> None:
        """Take a chunk of so many tokens behind `start` others out of the budget."""
        self._tokens -= tokens


class Pacing:
    """Pacing of a model whose layers are all on the same ranks: each step has every row, and takes the tokens that the
    step before it has sampled from the device.

    Attributes:
        stages: number of steps that are computed at the same time, each by another stage of the model.
        gives_ids: decode rows carry their input token, which the scheduler knows, because no row is in two steps in
            flight.
    """

    stages = 1
    gives_ids = False

    def rows(self, growing: list[Req]) -> list[Req]:
        """Return the decode rows of the next step, among all rows that may decode."""
        return growing

    def budget(self, max_tokens: int, times: StepTimes, prompts: Iterable[tuple[int, int]]) -> StepBudget:
        """Return the budget of the next step.

        Args:
            max_tokens: maximum number of prompt tokens in a step.
            times: model of the seconds that a step takes.
            prompts: (tokens that are computed already, tokens to compute) of the prompts under way and of those that
                wait; read only by a pacing that needs them.
        """
        return StepBudget(max_tokens)
