"""Cost model of shared prefixes: savings of a step that computes a shared run of slots once for several rows.

The runner measures the costs (`RunnerReady.cascade`); docs/cascade.md explains the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from radixrt.messages.runner import CascadeCosts, PromptCosts


@dataclass(slots=True)
class Run:
    """Positions [start, end) at which the rows order[first : first + count] have the same slots; see `find_runs`.

    Attributes:
        queries: number of new tokens of these rows; 0 for decode rows.
        tiles: sum of `PromptSharing.row_tiles` over these rows; 0 for decode rows.
    """

    start: int
    end: int
    first: int
    count: int
    queries: int = 0
    tiles: float = 0.0

    def saved(self, model: SharingModel) -> float:
        """Net saving of computing the run once."""
        return model.saved(self.end - self.start, self) - model.spent(self)


class SharingModel(Protocol):
    """Savings and costs of sharing in one layer of a step, for one kind of rows. Each model has its own unit."""

    @property
    def step(self) -> float:
        """Fixed cost of a step with at least one shared run."""
        ...

    @property
    def min_length(self) -> int:
        """Length of the shortest run that may be shared."""
        ...

    def saved(self, length: int, run: Run) -> float:
        """Gross saving of computing `length` positions once for the run's rows, proportional to `length`. The saving is
        negative if computing the positions for each row is cheaper."""
        ...

    def spent(self, run: Run) -> float:
        """Cost of the run that does not depend on its length."""
        ...

    def row_tiles(self, queries: int) -> float:
        """Time of one position in a row with `queries` new tokens that computes its prefix alone; 0 for decode rows."""
        ...


@dataclass(frozen=True)
class PromptSharing:
    """Cost model of prompts that extend a shared prefix. The unit is the time of one position in one full query tile.

    The device computes queries tile by tile. The few queries of a single row fill small tiles or leave tiles partly
    empty; the queries of all rows of a run fill large tiles. A run of `length` positions saves

        length * (sum of row_tiles(queries of a row) - dense * ceil(queries of all rows / query_tile) - copy)
    """

    costs: PromptCosts

    @property
    def step(self) -> float:
        return self.costs.step

    @property
    def min_length(self) -> int:
        return self.costs.min_length

    def saved(self, length: int, run: Run) -> float:
        return length * (run.tiles - self.costs.dense * -(-run.queries // self.costs.query_tile) - self.costs.copy)

    def spent(self, run: Run) -> float:
        return self.costs.run + run.queries * self.costs.token

    def row_tiles(self, queries: int) -> float:
        """Return the cost of one position in full query tiles, through the faster of the two prefill kernels."""
        c = self.costs
        if queries > c.query_tile:
            return -(-queries // c.query_tile)
        return min(1, -(-queries // c.small_tile) * c.small_tile / c.query_tile * c.small_tile_cost)


@dataclass(frozen=True)
class DecodeSharing:
    """Cost model of decode rows. The unit is the time in which a row reads the keys and values of one token.

    A run of `length` positions that is read once for `count` rows saves (count - 1) * length reads, minus
    `costs.compute` for each row and position, because each row still computes its attention.
    """

    costs: CascadeCosts

    @property
    def step(self) -> float:
        return self.costs.step_tokens

    @property
    def min_length(self) -> int:
        return self.costs.min_length

    def saved(self, length: int, run: Run) -> float:
        return length * (run.count * (1 - self.costs.compute) - 1)

    def spent(self, run: Run) -> float:
        return self.costs.run_tokens + run.count * self.costs.row_tokens

    def row_tiles(self, queries: int) -> float:
        return 0.0
