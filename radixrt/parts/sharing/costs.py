"""Cost model of shared prefixes: how much a step saves by computing a shared run of slots once for all of its rows.

The figures that the formulas use come from the runner, in `RunnerReady.cascade`; docs/cascade.md explains the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from radixrt.messages.runner import CascadeCosts, PromptCosts


@dataclass(slots=True)
class Run:
    """Positions [start, end) that hold the same slots for order[first : first + count], see `find_runs`.

    Attributes:
        queries, tiles: new tokens of these rows, and the sum of their `PromptSharing.row_tiles`; 0 for decode rows.
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
    """Savings and costs of sharing for one kind of rows, for one layer of one step, in a unit of its own."""

    @property
    def step(self) -> float:
        """Fixed cost of a step that shares anything."""
        ...

    @property
    def min_length(self) -> int:
        """Length of the shortest run that is computed on its own."""
        ...

    def saved(self, length: int, run: Run) -> float:
        """Gross saving of computing `length` positions once for the run's rows, proportional to the length. It is
        negative where computing them for each row is cheaper."""
        ...

    def spent(self, run: Run) -> float:
        """Cost of the run that does not depend on its length."""
        ...

    def row_tiles(self, queries: int) -> float:
        """Time that one position costs a row with so many new tokens, if the row computes it for itself; only models
        of prompts use it."""
        ...


@dataclass(frozen=True)
class PromptSharing:
    """Cost model of prompts that extend a shared prefix. The unit is one position of one full query tile.

    The device computes a row's queries tile by tile. The tiles of one row's few queries are partly empty, or small; the
    queries of all rows of a run fill large tiles. A run of `length` positions saves `length` times what a position
    costs its rows one by one, minus what it costs the tiles that they fill together, minus copying it.
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
    """Cost model of decode rows. The unit is one token whose keys and values one row would have read for itself.

    A run of `length` positions that is read once for `count` rows saves (count - 1) * length of them, but each row
    still computes with it.
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
