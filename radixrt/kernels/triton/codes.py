"""Quantization of activations to float8, and dequantization of weights, for products with many tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.fp8 import FP8_MAX, clamp_to_fp8
from radixrt.kernels.triton.norm import num_warps
from radixrt.kernels.triton.padding import empty_padded
from radixrt.kernels.triton.skinny_gemm import FragmentCodes, has_copy_engine
from radixrt.kernels.triton.weight_formats import to_numbers

MAX_COLUMNS = 32768
"""Longest row that `quantize_rows` supports: a row is held in the registers of one program."""

TILE_ROWS, TILE_COLUMNS = 64, 128
"""Tile of a program that dequantizes."""


@triton.jit
def in_fragment_order(values, COLUMNS: tl.constexpr):
    """Permute a row of 8-bit values [COLUMNS] as `weight_formats.in_fragment_order` does."""
    values = tl.reshape(values, (COLUMNS // 64, 4, 2, 4, 2))
    return tl.reshape(tl.permute(values, (0, 3, 1, 4, 2)), (COLUMNS,))


@triton.jit
def _quantize_rows_kernel(x, out, scales, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    start = row.to(tl.int64) * SIZE
    values = tl.load(x + start + at, mask=at < SIZE, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(values), axis=0)
    scale = tl.where(largest > 0.0, largest / FP8_MAX, 1.0)
    codes = clamp_to_fp8(values * (1.0 / scale)).to(out.dtype.element_ty)
    tl.store(out + start + at, in_fragment_order(codes, BLOCK), mask=at < SIZE)
    tl.store(scales + row, scale)


def quantize_rows(x: torch.Tensor, early: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of x [T, columns] to float8_e4m3fn, with its largest magnitude as 448.

    Args:
        x: contiguous, columns a multiple of 64, at most MAX_COLUMNS.
        early: see `CudaOps`.

    Returns:
        Codes [T, columns] in the order of `weight_formats`, and scales float32 [T, 1].
    """
    rows, size = x.shape
    codes = empty_padded(rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(size)
        _quantize_rows_kernel[(rows,)](
            x, codes, scales, size, block, early, num_warps=num_warps(block), launch_pdl=early
        )
    return codes, scales


@triton.jit
def _dequantize_kernel(
    words, scales, shifts, out, num_rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr,
    IN_WORD: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr,
):  # fmt: skip
    """Compute a tile [ROWS, COLUMNS] of out [num_rows, columns]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * COLUMNS
    width = tl.multiple_of(columns // IN_WORD, 16)
    at = start // IN_WORD + tl.arange(0, COLUMNS // IN_WORD)
    inside = (row < num_rows)[:, None]
    tile = tl.load(
        words + row.to(tl.int64)[:, None] * width + at[None, :], mask=inside & (at < width)[None, :], other=0
    )
    values = to_numbers(tile, NUMBERS, out.dtype.element_ty, ROWS, COLUMNS).to(tl.float32)
    groups = 1
    group = 0
    if GROUP > 0:
        groups = tl.cdiv(columns, GROUP)
        group = start // GROUP
    own_row = tl.minimum(row, num_rows - 1)
    values *= tl.load(scales + (own_row // SCALE_ROWS) * groups + group).to(tl.float32)[:, None]
    if shifts is not None:
        values += tl.load(shifts + own_row * groups + group)[:, None]
    column = start + tl.arange(0, COLUMNS)[None, :]
    to = out + row.to(tl.int64)[:, None] * columns + column
    tl.store(to, values.to(out.dtype.element_ty), mask=inside & (column < columns))


def dequantize(weight: FragmentCodes, out: torch.Tensor) -> torch.Tensor:
    """Write the numbers of a weight, computed in float32 and rounded once, to out [rows, columns], and return out."""
    rows, columns = weight.shape
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    _dequantize_kernel[grid](
        weight.words, weight.scales, weight.shifts, out, rows, columns, TILE_ROWS, TILE_COLUMNS, weight.numbers,
        weight.in_word, weight.group, weight.scale_rows,
    )  # fmt: skip
    return out


def multiplies_float8(x: torch.Tensor, weight: FragmentCodes) -> bool:
    """Return True if `multiply_float8` supports these: rows of e4m3, and an x in bfloat16, on sm_90 or later."""
    return (
        weight.numbers == "e4m3"
        and weight.group == 0
        and x.dtype == torch.bfloat16
        and x.is_cuda
        and x.shape[0] > 0
        and weight.shape[0] % 16 == 0
        and weight.columns <= MAX_COLUMNS
        and has_copy_engine(x.device)
    )


def multiply_float8(
    x: torch.Tensor, weight: FragmentCodes, bias: torch.Tensor | None, early: bool = False
) -> torch.Tensor:
    """Return x W^T + bias [T, rows] in bfloat16, for x [T, columns], whose rows are quantized to float8.

    Both operands have their columns in the same order, in which the order of the sum is another one.
    """
    codes, scales = quantize_rows(x, early)
    return torch._scaled_mm(
        codes,
        weight.words.view(torch.float8_e4m3fn).t(),
        scale_a=scales,
        scale_b=weight.scales[None],
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
