"""Residual sum and RMSNorm in one pass, perhaps with quantization of the result to float8."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.float8_rows import Float8Rows
from radixrt.kernels.triton.padding import empty_padded
from radixrt.kernels.triton.quantize import empty_rows, store_float8

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


@triton.jit(do_not_specialize=["num_rows"])
def _add_rms_norm_kernel(
    residual, x, weight, out, scales, eps, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr,
    GROUP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute a row of out, in float8 with the scales of `store_float8` if there are any."""
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
    value = normed(kept, scale, eps, SIZE)
    if scales is not None:
        rounded = value.to(residual.dtype.element_ty).to(tl.float32)  # as a kernel of its own would read the norm
        store_float8(rounded, out, scales, tl.program_id(0), 0, num_rows, SIZE, BLOCK, GROUP)
    else:
        tl.store(out + start + at, value.to(out.dtype.element_ty), mask=inside)


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
    out = empty_padded(*residual.shape, dtype=dtype, device=residual.device)
    _launch(residual, x, weight, out, None, eps, 0, early)
    return out


def add_rms_norm_float8(
    residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float, group: int, early: bool = False
) -> Float8Rows:
    """Return `quantize_rows` of `add_rms_norm` in the residual's dtype, in one pass.

    Args:
        residual: its rows are a multiple of 64 and of the group.
        group: columns that share a scale; 0 for the whole row.
    """
    rows, size = residual.shape
    out = empty_rows(rows, size, group, residual.dtype, residual.device)
    _launch(residual, x, weight, out.codes, out.scales, eps, group, early)
    return out


def _launch(
    residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor,
    scales: torch.Tensor | None, eps: float, group: int, early: bool,
) -> None:  # fmt: skip
    rows, size = residual.shape
    if not rows:
        return
    block = triton.next_power_of_2(size)
    allocated = 0 if scales is None else scales.shape[1]
    _add_rms_norm_kernel[(rows,)](
        residual, residual if x is None else x, weight, out, scales, eps, allocated, size, block, x is not None,
        group or block, early, num_warps=num_warps(block), launch_pdl=early,
    )  # fmt: skip
