"""Quantization of activations to float8, alone and at the end of kernels that have a row in registers anyway."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.float8_rows import Float8Rows
from radixrt.kernels.triton.fp8 import FP8_MAX, clamp_to_fp8
from radixrt.kernels.triton.padding import empty_padded

MAX_COLUMNS = 32768
"""Longest row that `quantize_rows` supports: a row is held in the registers of one program."""

ELEMENTS_PER_WARP, MAX_WARPS = 1024, 32
"""Of `quantize_rows`. On an H200, 8,192 rows of 4,096 columns take 26 microseconds, and 33 with a fourth of the
elements."""

ALIGNED_ROWS = 4
"""Scales of groups are allocated for a multiple of so many rows: cuBLAS reads a group's scales sixteen bytes at a
time."""


def empty_rows(rows: int, columns: int, group: int, dtype: torch.dtype, device: torch.device) -> Float8Rows:
    """Allocate activations [rows, columns] for a kernel to fill."""
    allocated = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS if group else rows
    codes = empty_padded(allocated, columns, dtype=torch.float8_e4m3fn, device=device)[:rows]
    scales = torch.empty(columns // group if group else 1, allocated, dtype=torch.float32, device=device)
    return Float8Rows(codes, scales, group, dtype)


@triton.jit
def in_fragment_order(values, COLUMNS: tl.constexpr):
    """Permute a row of 8-bit values [COLUMNS] as `weight_formats.in_fragment_order` does."""
    values = tl.reshape(values, (COLUMNS // 64, 4, 2, 4, 2))
    return tl.reshape(tl.permute(values, (0, 3, 1, 4, 2)), (COLUMNS,))


@triton.jit
def store_float8(
    values, codes, scales, row, first, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Quantize columns of a row, float32 [BLOCK] with zeros past the end, and store them as `Float8Rows`.

    first: the column of the first value, a multiple of GROUP.
    num_rows: rows for which scales are allocated.
    GROUP: columns that share a scale; BLOCK for the whole row.
    """
    groups = tl.reshape(values, (BLOCK // GROUP, GROUP))
    largest = tl.max(tl.abs(groups), axis=1)
    scale = tl.where(largest > 0.0, largest / FP8_MAX, 1.0)
    found = clamp_to_fp8(tl.reshape(groups * (1.0 / scale)[:, None], (BLOCK,))).to(codes.dtype.element_ty)
    at = first + tl.arange(0, BLOCK)
    tl.store(codes + row.to(tl.int64) * SIZE + at, in_fragment_order(found, BLOCK), mask=at < SIZE)
    group = tl.arange(0, BLOCK // GROUP)
    tl.store(scales + (first // GROUP + group) * num_rows + row, scale, mask=first + group * GROUP < SIZE)


@triton.jit(do_not_specialize=["num_rows"])
def _quantize_rows_kernel(
    x, codes, scales, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row.to(tl.int64) * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    store_float8(values, codes, scales, row, 0, num_rows, SIZE, BLOCK, GROUP)


def quantize_rows(x: torch.Tensor, early: bool = False, group: int = 0) -> Float8Rows:
    """Quantize x [T, columns] to float8_e4m3fn, with the largest magnitude of each row, or of each group, as 448.

    Args:
        x: contiguous, columns a multiple of 64 and of the group, at most MAX_COLUMNS.
        early: see `CudaOps`.
        group: columns that share a scale, a power of 2; 0 for the whole row.
    """
    rows, size = x.shape
    found = empty_rows(rows, size, group, x.dtype, x.device)
    if rows:
        block = triton.next_power_of_2(size)
        warps = min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP))
        _quantize_rows_kernel[(rows,)](
            x, found.codes, found.scales, found.scales.shape[1], size, block, group or block, early, num_warps=warps,
            launch_pdl=early,
        )  # fmt: skip
    return found
