"""Residual sum and RMSNorm in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.padding import empty_padded

MAX_HIDDEN = 16384
"""Longest row: a row is held in the registers of one program."""

ELEMENTS_PER_WARP = 256
"""One 16-byte access of bfloat16 per thread, so that all loads of a row start at once."""

MAX_WARPS = 32


def num_warps(elements: int) -> int:
    """Warps of a program that holds so many elements."""
    return min(MAX_WARPS, max(1, elements // ELEMENTS_PER_WARP))


@triton.jit
def normed(row, scale, eps, SIZE: tl.constexpr):
    """Normalize a row as it is stored, with zeros past its SIZE elements; in float32."""
    row = row.to(tl.float32)
    return row * tl.rsqrt(tl.sum(row * row, axis=0) / SIZE + eps) * scale


@triton.jit
def _add_rms_norm_kernel(
    residual, x, weight, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    # The weight first: it depends on no kernel, and its load overlaps the end of the kernel before.
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()  # lets a following GEMM load its weight in the meantime
        gdc_wait()
    kept = tl.load(residual + start + at, mask=inside, other=0.0)
    if HAS_X:
        total = kept.to(tl.float32) + tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
        kept = total.to(residual.dtype.element_ty)
        tl.store(residual + start + at, kept, mask=inside)
    tl.store(out + start + at, normed(kept, scale, eps, SIZE).to(out.dtype.element_ty), mask=inside)


def supports(residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor) -> bool:
    """Return True if `add_rms_norm` supports these arguments: rows of at most MAX_HIDDEN, everything contiguous."""
    return (
        residual.shape[1] <= MAX_HIDDEN
        and residual.is_contiguous()
        and weight.is_contiguous()
        and (x is None or x.is_contiguous())
    )


def add_rms_norm(
    residual: torch.Tensor,
    x: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    early: bool = False,
) -> torch.Tensor:
    """As `LayerOps.add_rms_norm`: residual [T, hidden] += x, in place, then its norm as a new [T, hidden] of dtype.

    The sum is rounded to the residual's dtype before it is normalized, so that the result is the norm of the stored
    sum.

    Args:
        early: see `CudaOps`.
    """
    rows, size = residual.shape
    out = empty_padded(rows, size, dtype=dtype, device=residual.device)
    if rows:
        block = triton.next_power_of_2(size)
        _add_rms_norm_kernel[(rows,)](
            residual, residual if x is None else x, weight, out, eps, size, block, x is not None, early,
            num_warps=num_warps(block), launch_pdl=early,
        )  # fmt: skip
    return out
