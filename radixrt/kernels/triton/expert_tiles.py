"""List of the tiles of a mixture of experts, made on the device: pairs of token and expert, sorted by expert.

A tile is an expert and at most so many of the tokens that are routed to it. A step's tiles depend on its routing, so
their number is known on the device alone; the host knows an upper bound, and programs behind the last tile end at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.skinny_gemm_config import padded_tokens

SMALL_BLOCK, LARGE_BLOCK = 1024, 4096
"""Pairs that a program reads at a time; more with many pairs."""
LARGE_FROM = 4096
"""Pairs from which on a launch of its own counts them: a program counts its own in a fraction of the time for all."""
NUM_WARPS = 8


class Tiles(NamedTuple):
    """Tiles of a step.

    Attributes:
        pairs: int32 [T * k]: indices into the flattened [T, k] experts, those of each expert together, in order.
        tiles: int32 [limit, 3]: each tile's expert, its first position in `pairs`, and its number of them.
        num_tiles: int32 [1].
    """

    pairs: torch.Tensor
    tiles: torch.Tensor
    num_tiles: torch.Tensor


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(experts, counts, num_pairs, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """A program for each expert: count its pairs."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    own = tl.zeros((BLOCK,), tl.int32)
    for start in tl.range(0, num_pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own += (tl.load(experts + at, mask=at < num_pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(own, axis=0))


@triton.jit(do_not_specialize=["num_pairs"])
def _list_tiles_kernel(
    experts, counted, pairs_out, tiles_out, count_out, num_pairs,
    BINS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program for each expert: list its pairs and tiles, behind those of the experts before.

    counted: int32 [experts], the pairs of each; None to count them.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    other = tl.arange(0, BINS)
    if counted is not None:
        counts = tl.load(counted + other, mask=other < tl.num_programs(0), other=0)
    else:
        counts = tl.zeros((BINS,), tl.int32)
        for start in tl.range(0, num_pairs, BLOCK):
            at = start + tl.arange(0, BLOCK)
            counts += tl.histogram(tl.load(experts + at, mask=at < num_pairs, other=BINS - 1), BINS)
    before = other < expert
    first = tl.sum(tl.where(before, counts, 0), axis=0)
    first_tile = tl.sum(tl.where(before, (counts + TILE - 1) // TILE, 0), axis=0)
    count = tl.sum(tl.where(other == expert, counts, 0), axis=0)
    num_tiles = (count + TILE - 1) // TILE
    if expert == tl.num_programs(0) - 1:
        tl.store(count_out, first_tile + num_tiles)
    if count > 0:
        for start in tl.range(0, num_tiles, 32):
            tile = start + tl.arange(0, 32)
            to = tiles_out + 3 * (first_tile + tile)
            tl.store(to, tile * 0 + expert, mask=tile < num_tiles)
            tl.store(to + 1, first + tile * TILE, mask=tile < num_tiles)
            tl.store(to + 2, tl.minimum(count - tile * TILE, TILE), mask=tile < num_tiles)
        to = first - 1
        for start in tl.range(0, num_pairs, BLOCK):
            at = start + tl.arange(0, BLOCK)
            own = (tl.load(experts + at, mask=at < num_pairs, other=-1) == expert).to(tl.int32)
            tl.store(pairs_out + to + tl.cumsum(own, axis=0), at, mask=own == 1)
            to += tl.sum(own, axis=0)


def list_tiles(experts: torch.Tensor, num_experts: int, tile: int, early: bool = False) -> Tiles:
    """List the tiles of at most `tile` tokens, for experts int32 [T, k] below num_experts. The order of a tile's
    tokens, and of tiles, depends on `experts` alone.

    Args:
        early: see `CudaOps`.
    """
    num_pairs, device = experts.numel(), experts.device
    pairs = torch.empty(num_pairs, dtype=torch.int32, device=device)
    tiles = torch.empty(max_tiles(num_pairs, num_experts, tile), 3, dtype=torch.int32, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    large = padded_tokens(experts.shape[0]) * experts.shape[1] >= LARGE_FROM
    block, counted = SMALL_BLOCK, None
    if large:
        block, counted = LARGE_BLOCK, torch.empty(num_experts, dtype=torch.int32, device=device)
        _count_kernel[(num_experts,)](experts, counted, num_pairs, block, early, num_warps=NUM_WARPS, launch_pdl=early)
    _list_tiles_kernel[(num_experts,)](
        experts, counted, pairs, tiles, count, num_pairs, triton.next_power_of_2(num_experts + 1), block, tile, early,
        num_warps=NUM_WARPS, launch_pdl=early,
    )  # fmt: skip
    return Tiles(pairs, tiles, count)


def max_tiles(num_pairs: int, num_experts: int, tile: int) -> int:
    """Return the most tiles that so many pairs can make: each expert may have one that is not full."""
    return min(num_pairs, num_experts + num_pairs // tile)
