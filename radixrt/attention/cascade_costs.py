"""Measured costs of computing attention over a shared prefix once, by device. The module imports no torch.

A rank sends the costs to the scheduler with `RunnerReady`. `radixrt.parts.sharing.costs` computes the benefit of
sharing from the costs. docs/cascade.md explains how the figures were measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixrt.messages.runner import CascadeCosts, PromptCosts

if TYPE_CHECKING:
    from radixrt.attention.base import AttentionLayer

QUERY_ELEMENT_BYTES = 2
"""Bytes of one query element: CUDA backends compute in float16 or bfloat16."""


@dataclass(frozen=True)
class GpuFigures:
    """Measured figures of a kind of GPU, from which `CascadeCosts` are derived for a model's shape.

    Attributes:
        bytes_per_us: keys and values that decode attention reads in a microsecond.
        step_us: extra kernel launches of a decode step that shares anything, for each layer.
        run_us: fixed cost of each shared run.
        row_tokens, compute: see `CascadeCosts`.
        query_tile: queries of one row that the prefill kernel computes together; fewer take as long.
        prompt_flops_per_us: throughput of the prefill kernel when keys and values are gathered by slot.
        small_tile: query tile of the kernel for few queries, with four query heads on a kv head.
        small_tile_cost: time of a query in a full small tile, relative to a query in a full large tile. With fewer
            heads on a kv head the small tiles are emptier, and sharing saves more than the model estimates.
        prompt_step_us: host time to launch five more kernels for a layer. The device needs less than that, but the step
            may be waiting for the host anyway.
        dense: see `PromptCosts`.
    """

    bytes_per_us: float
    step_us: float
    run_us: float
    row_tokens: float
    compute: float
    query_tile: int
    prompt_flops_per_us: float
    small_tile: int
    small_tile_cost: float
    prompt_step_us: float
    dense: float


H200 = GpuFigures(
    bytes_per_us=4.0e6,
    step_us=10.0,
    run_us=0.1,
    row_tokens=8.0,
    compute=1 / 16,
    query_tile=128,
    prompt_flops_per_us=4.4e8,
    small_tile=16,
    small_tile_cost=2.0,
    prompt_step_us=300.0,
    dense=0.75,
)

CPU = CascadeCosts(step_tokens=0.0, run_tokens=40.0, row_tokens=2.0, compute=0.3, min_length=32, in_extend=True)

BY_DEVICE: dict[str, GpuFigures | CascadeCosts] = {"cpu": CPU, "cuda": H200}
"""Costs by torch device type. Every CUDA device gets the figures of the H200, the only kind that was measured."""


def cascade_costs(device_type: str, kv_layer_bytes: int, query_size: int) -> CascadeCosts | None:
    """Return the costs of sharing prefixes on a device, or None if no layer can share.

    Args:
        device_type: a torch device type, "cpu" or "cuda".
        kv_layer_bytes, query_size: results of the functions of these names; 0 if no layer can share.
    """
    if kv_layer_bytes < 1 or query_size < 1:
        return None
    figures = BY_DEVICE[device_type]
    if isinstance(figures, CascadeCosts):
        return figures
    tokens_per_us = figures.bytes_per_us / kv_layer_bytes
    return CascadeCosts(
        step_tokens=figures.step_us * tokens_per_us,
        run_tokens=figures.run_us * tokens_per_us,
        row_tokens=figures.row_tokens,
        compute=figures.compute,
        in_extend=True,
        prompts=_prompt_costs(figures, kv_layer_bytes, query_size),
    )


def _prompt_costs(figures: GpuFigures, kv_layer_bytes: int, query_size: int) -> PromptCosts:
    us_per_position = 4 * figures.query_tile * query_size / figures.prompt_flops_per_us
    # A token's queries go through memory six times: copied next to the others, and as partial results.
    token_us = 6 * QUERY_ELEMENT_BYTES * query_size / figures.bytes_per_us
    return PromptCosts(
        step=figures.prompt_step_us / us_per_position,
        run=figures.run_us / us_per_position,
        token=token_us / us_per_position,
        copy=2 * kv_layer_bytes / figures.bytes_per_us / us_per_position,
        dense=figures.dense,
        query_tile=figures.query_tile,
        small_tile=figures.small_tile,
        small_tile_cost=figures.small_tile_cost,
    )


def kv_layer_bytes(layers: Iterable[AttentionLayer], element_bytes: int) -> int:
    """Return the bytes of a token's keys and values in a layer whose rows can share prefixes; 0 if there is no such
    layer.

    Rows of a layer with a sliding window cannot share: the window may end within the prefix, at another position for
    each row.
    """
    sizes = [2 * x.num_kv_heads * x.head_dim * element_bytes for x in layers if x.sliding_window is None]
    return max(sizes, default=0)


def query_size(layers: Iterable[AttentionLayer]) -> int:
    """Return the number of elements of a token's queries in a layer whose rows can share prefixes; 0 if there is no
    such layer."""
    return max((x.num_heads * x.head_dim for x in layers if x.sliding_window is None), default=0)
