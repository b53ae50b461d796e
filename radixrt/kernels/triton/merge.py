"""Merge of partial attention outputs over parts of each row's context, by log-sum-exp, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _merge_kernel(
    own, own_lse, row_ptr, order, partial, partial_lse, out,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    valid = heads < HEADS
    d = tl.arange(0, DIM)
    first = tl.load(row_ptr + row)
    last = tl.load(row_ptr + row + 1)
    at = row.to(tl.int64) * HEADS + heads
    places = at[:, None] * DIM + d[None, :]
    peak = tl.load(own_lse + at, mask=valid, other=float("-inf"))
    acc = tl.load(own + places, mask=valid[:, None], other=0.0).to(tl.float32)
    total = tl.where(peak == float("-inf"), 0.0, 1.0)
    acc = tl.where(total[:, None] > 0.0, acc, 0.0)
    for index in range(first, last):
        part = tl.load(order + index) if ORDERED else index
        part_at = tl.cast(part, tl.int64) * HEADS + heads
        lse = tl.load(partial_lse + part_at, mask=valid, other=float("-inf"))
        piece = tl.load(partial + part_at[:, None] * DIM + d[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
        new_peak = tl.maximum(peak, lse)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink = tl.exp2(peak - shift)
        weight = tl.exp2(lse - shift)
        acc = acc * shrink[:, None] + piece * weight[:, None]
        total = total * shrink + weight
        peak = new_peak
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=valid[:, None])


def merge(
    own: torch.Tensor, own_lse: torch.Tensor, row_ptr: torch.Tensor, partial: torch.Tensor, partial_lse: torch.Tensor,
    out: torch.Tensor, order: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Merge each row's suffix with its prefixes.

    Args:
        own: [B, heads, dim], contiguous. Where own_lse is -inf its values do not matter.
        own_lse: float32 [B, heads], contiguous, in base 2; -inf for an empty part.
        row_ptr: int32 [B + 1 or more]; row i has the partials [row_ptr[i], row_ptr[i + 1]).
        partial, partial_lse: as `shared_attention` writes them.
        out: [B, heads, dim] or [B, heads * dim], contiguous, written; may be `own`.
        order: int32, row i has the partials order[row_ptr[i] : row_ptr[i + 1]] instead.
    """
    rows, heads, dim = own.shape
    block = min(triton.next_power_of_2(heads), max(1, 1024 // dim))
    _merge_kernel[(rows, triton.cdiv(heads, block))](
        own, own_lse, row_ptr, order, partial, partial_lse, out, HEADS=heads, DIM=dim, BLOCK_H=block,
        ORDERED=order is not None, num_warps=4,
    )  # fmt: skip
