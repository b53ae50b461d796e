"""What ranks of one machine add up between two blocks of a model, with the residual sum and RMSNorm, in one launch.

A rank writes its part of a row straight into memory of every other rank, then a flag; it waits for the others' flags
and adds up all parts. That is one trip over NVLink, where a sum and a norm of their own are two launches with several.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.norm import ELEMENTS_PER_WARP, MAX_WARPS
from radixrt.kernels.triton.rank_memory import (
    ALIGN_BYTES,
    MAX_ROWS,
    RankMemory,
    at_address,
    meet_at_row,
    row_flag_bytes,
)


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Of the memory that each rank needs: twice, a part of each rank and a flag for each of its rows."""
    return 2 * ranks * part_bytes + row_flag_bytes(ranks)


@triton.jit
def _sum_add_rms_norm_kernel(
    residual, x, weight, out, addresses, turns, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr,
    RANKS: tl.constexpr, PART_BYTES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * SIZE
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    part_type: tl.constexpr = tl.pointer_type(x.dtype.element_ty)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    turn = tl.load(turns)
    half = (turn % 2) * RANKS
    own = tl.load(x + start + at, mask=inside, other=0.0)
    total = tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
    for further in tl.static_range(1, RANKS):  # to each rank from another one at a time
        theirs = at_address(addresses + (RANK + further) % RANKS, (half + RANK) * PART_BYTES, part_type)
        tl.store(theirs + start + at, own, mask=inside)
    last = meet_at_row(addresses, turns, turn, 2 * RANKS * PART_BYTES, row, RANK, RANKS)
    summed = tl.zeros((BLOCK,), tl.float32)
    for other in tl.static_range(RANKS):  # in rank order, so that all ranks get the same bits
        if other == RANK:
            summed += own.to(tl.float32)
        else:
            part = at_address(addresses + RANK, (half + other) * PART_BYTES, part_type)
            # L1 may still hold what was here two turns ago.
            summed += tl.load(part + start + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    rounded = (total + summed).to(residual.dtype.element_ty)
    tl.store(residual + start + at, rounded, mask=inside)
    total = rounded.to(tl.float32)
    rms = tl.rsqrt(tl.sum(total * total, axis=0) / SIZE + eps)
    tl.store(out + start + at, (total * rms * scale).to(out.dtype.element_ty), mask=inside)
    if last:
        tl.store(turns, turn + 1)


def supports(memory: RankMemory, x: torch.Tensor) -> bool:
    """Whether x fits into the memory; the same answer on every rank."""
    return (
        0 < x.shape[0] <= int(MAX_ROWS.value)
        and x.numel() * x.itemsize <= memory.part_bytes
        and (x.shape[1] * x.itemsize) % ALIGN_BYTES == 0
        and x.is_contiguous()
    )


def sum_add_rms_norm(
    memory: RankMemory,
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    early: bool = False,
) -> torch.Tensor:
    """`norm.add_rms_norm` of the sum of x [T, hidden] over the ranks; the sum itself is not rounded.

    Sums take turns between two halves of the memory. Who writes into a half again has seen, in the turn between, that
    all others had done with it; so nobody waits for having been read. The turn is counted on the device, where captured
    launches find it, and flags say which turn they are of, so none is ever cleared.

    Args:
        early: see `CudaOps`.
    """
    rows, size = residual.shape
    out = torch.empty(rows, size, dtype=dtype, device=residual.device)
    block = triton.next_power_of_2(size)
    _sum_add_rms_norm_kernel[(rows,)](
        residual, x, weight, out, memory.addresses, memory.turn, eps, size, block, memory.rank, memory.ranks,
        memory.part_bytes, early, num_warps=min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP)),
        launch_pdl=early,
    )  # fmt: skip
    return out
