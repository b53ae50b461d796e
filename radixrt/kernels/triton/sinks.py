"""Attention sinks, applied to the result of any attention kernel that returns its log-sum-exp.

A sink is the score of one more key without a value, so exp(sink) joins the denominator of the softmax: the result is
multiplied by exp(lse) / (exp(lse) + exp(sink)).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
NUM_WARPS = 4
ELEMENTS = 2048
"""Elements of the result that a program multiplies, at most."""


@triton.jit
def _apply_sinks_kernel(
    out, lse, sinks, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    valid = head < HEADS
    at = token * HEADS + head
    own = tl.load(lse + at, mask=valid, other=0.0)
    sink = tl.load(sinks + head, mask=valid, other=0.0) * LOG2_E
    above = sink - own  # infinite for an empty part
    scale = 1.0 / (1.0 + tl.exp2(above))
    places = out + at[:, None] * DIM + d[None, :]
    inside = valid[:, None] & (d < DIM)[None, :]
    values = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    values = tl.where(scale[:, None] > 0.0, values * scale[:, None], 0.0)
    tl.store(places, values.to(out.dtype.element_ty), mask=inside)
    both = tl.maximum(own, sink) + tl.log2(1.0 + tl.exp2(-tl.abs(above)))
    tl.store(lse + at, both, mask=valid)


def apply_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> None:
    """Add the heads' sinks to attention that was computed without them, in place.

    Args:
        out: [T, heads, dim], contiguous. Where lse is -inf its values do not matter.
        lse: float32 [T, heads], contiguous, in base 2; that with the sinks afterwards.
        sinks: float32 [heads], in base e as scores are.
    """
    tokens, heads, dim = out.shape
    if not tokens:
        return
    block_d = triton.next_power_of_2(dim)
    block_h = min(triton.next_power_of_2(heads), max(1, ELEMENTS // block_d))
    _apply_sinks_kernel[(tokens, triton.cdiv(heads, block_h))](
        out, lse, sinks, HEADS=heads, DIM=dim, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=NUM_WARPS
    )
