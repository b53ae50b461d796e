"""What computing a shared run of slots once for all of its rows saves, and what it costs: decode rows, and prompts.

The figures are measured, see docs/cascade.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

CUDA_BYTES_PER_US = 4.0e6
"""What decode attention reads of keys and values in a microsecond on the device that the figures below are for."""
CUDA_STEP_US = 10.0
CUDA_RUN_US = 0.1

QUERY_TILE = 128
"""Queries of one row that the device's kernel for prompts computes together; fewer take as long."""
CUDA_PROMPT_FLOPS_PER_US = 4.4e8
"""Of that kernel, with keys and values gathered by slots."""
SMALL_TILE = 16
SMALL_TILE_COST = 2.0
"""Of the kernel for few queries, with four heads on a kv head: its tile, and what a query of a full one costs beside
one of the other's. With fewer heads its tiles are emptier, and sharing saves more than this says."""
CUDA_PROMPT_STEP_US = 300.0
"""What the host needs to launch five kernels more for a layer; the device needs less, and may be waited for anyway."""


def row_tiles(queries: int) -> float:
    """What a position costs a row with so many new tokens, through the better kernel: in full tiles of QUERY_TILE."""
    if queries > QUERY_TILE:
        return -(-queries // QUERY_TILE)
    return min(1, -(-queries // SMALL_TILE) * SMALL_TILE / QUERY_TILE * SMALL_TILE_COST)


@dataclass(slots=True)
class Run:
    """Positions [start, end) that hold the same slots for order[first : first + count], see `find_runs`.

    Attributes:
        queries, tiles: new tokens of these rows, and what a position costs them one by one (`row_tiles`); 0 where
            nobody asks.
    """

    start: int
    end: int
    first: int
    count: int
    queries: int = 0
    tiles: float = 0.0

    def saved(self, costs: Costs) -> float:
        """What computing the run once saves, its own costs taken off."""
        return costs.saved(self.end - self.start, self) - costs.spent(self)


class Costs(Protocol):
    """What a kind of rows saves by sharing, and what it costs, of one layer of one step, in a currency of its own.

    Attributes:
        step: fixed cost of a step that shares anything.
        min_length: shorter runs are not computed on their own.
    """

    @property
    def step(self) -> float: ...

    @property
    def min_length(self) -> int: ...

    def saved(self, length: int, run: Run) -> float:
        """What computing so many positions once for the run's rows saves, other costs aside: in proportion to the
        length. Below 0 where they are better left to the rows."""
        ...

    def spent(self, run: Run) -> float:
        """What the run costs, however long it is."""
        ...


@dataclass(frozen=True)
class PromptCosts:
    """Prompts that go on behind what they share. The device computes a row's queries tile by tile, and tiles of one
    row's few queries are partly empty, or small; those of all rows of a run fill large ones. The currency is positions
    of one tile of QUERY_TILE.

    A run of `length` positions saves `length` times what a position costs its rows one by one, less what it costs the
    tiles that they fill together, and copying it.

    Attributes:
        step: fixed cost of a step in which prompts share anything.
        run: cost of each run.
        token: of each query of a run: it is copied next to the others, its partial result written and read again.
        copy: of each position: its keys and values are copied side by side.
        dense: what a position costs a tile of a run, because of that, beside one of a row.
        min_length: shorter runs are not computed on their own.
    """

    step: float
    run: float
    token: float
    copy: float = 0.0
    dense: float = 1.0
    min_length: int = 64

    def saved(self, length: int, run: Run) -> float:
        return length * (run.tiles - self.dense * -(-run.queries // QUERY_TILE) - self.copy)

    def spent(self, run: Run) -> float:
        return self.run + run.queries * self.token

    @staticmethod
    def for_cuda(kv_layer_bytes: int, query_size: int) -> PromptCosts:
        """See `CascadeCosts.for_device`."""
        us_per_position = 4 * QUERY_TILE * query_size / CUDA_PROMPT_FLOPS_PER_US
        # Six times a token's queries, of 2 bytes an element, go through memory.
        token_us = 6 * 2 * query_size / CUDA_BYTES_PER_US
        return PromptCosts(
            step=CUDA_PROMPT_STEP_US / us_per_position, run=CUDA_RUN_US / us_per_position,
            token=token_us / us_per_position, copy=2 * kv_layer_bytes / CUDA_BYTES_PER_US / us_per_position, dense=0.75,
        )  # fmt: skip


@dataclass(frozen=True)
class CascadeCosts:
    """What sharing costs in one layer of one step, in the currency of what it saves decode rows: tokens whose keys and
    values one row would have read for itself. A run of `length` positions read once for `count` rows saves
    (count - 1) * length of them, but each row still computes with it.

    Attributes:
        step_tokens: fixed cost of a step that shares anything: the kernels that a plain step does not launch.
        run_tokens: of each run.
        row_tokens: of each row of a run: its partial result is written and read again.
        compute: what computing a position costs a row of a run, beside reading and computing it alone; at most 0.5.
        min_length: shorter runs are not computed on their own.
        in_extend: decode rows that ride in a step with prompt chunks share as well.
        prompts: what it costs prompts; None if they do not share.
    """

    step_tokens: float
    run_tokens: float
    row_tokens: float
    compute: float = 0.0
    min_length: int = 16
    in_extend: bool = False
    prompts: PromptCosts | None = None

    @property
    def step(self) -> float:
        return self.step_tokens

    def saved(self, length: int, run: Run) -> float:
        return length * (run.count * (1 - self.compute) - 1)

    def spent(self, run: Run) -> float:
        return self.run_tokens + run.count * self.row_tokens

    @staticmethod
    def for_device(device: str, kv_layer_bytes: int, query_size: int) -> CascadeCosts | None:
        """The costs on a device, or None if nothing can be shared there.

        Args:
            device: as in `RunnerReady`, "cpu" or "cuda:0" and the like.
            kv_layer_bytes, query_size: see `RunnerReady`; 0 if no layer can share.
        """
        if kv_layer_bytes < 1 or query_size < 1:
            return None
        if device.startswith("cuda"):
            tokens_per_us = CUDA_BYTES_PER_US / kv_layer_bytes
            return CascadeCosts(
                step_tokens=CUDA_STEP_US * tokens_per_us, run_tokens=CUDA_RUN_US * tokens_per_us, row_tokens=8.0,
                compute=1 / 16, in_extend=True, prompts=PromptCosts.for_cuda(kv_layer_bytes, query_size),
            )  # fmt: skip
        return CascadeCosts(
            step_tokens=0.0, run_tokens=40.0, row_tokens=2.0, compute=0.3, min_length=32, in_extend=True
        )  # fmt: skip
