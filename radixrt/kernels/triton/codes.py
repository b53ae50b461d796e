"""Quantization of activations to float8, and dequantization of weights, for products with many tokens."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.fp8 import FP8_MAX, clamp_to_fp8
from radixrt.kernels.triton.skinny_gemm import has_copy_engine
from radixrt.kernels.triton.weight_formats import to_numbers

MAX_COLUMNS = 32768
"""Longest row that `quantize_rows` supports: a row is held in the registers of one program."""

ELEMENTS_PER_WARP, MAX_WARPS = 1024, 32
"""Of `quantize_rows`. On an H200, 8,192 rows of 4,096 columns take 26 microseconds, and 33 with a fourth of the
elements."""

FLOAT8_GROUP = 128
"""Columns that share a scale of activations, where the weight has blocks."""

ALIGNED_ROWS = 4
"""Rows of activations with scales of groups come in multiples of this: cuBLAS reads a group's scales sixteen bytes at a
time."""

TILE_ROWS, TILE_COLUMNS = 64, 128
"""Tile of a program that dequantizes."""


@triton.jit
def in_fragment_order(values, COLUMNS: tl.constexpr):
    """Permute a row of 8-bit values [COLUMNS] as `weight_formats.in_fragment_order` does."""
    values = tl.reshape(values, (COLUMNS // 64, 4, 2, 4, 2))
    return tl.reshape(tl.permute(values, (0, 3, 1, 4, 2)), (COLUMNS,))


@triton.jit(do_not_specialize=["num_rows"])
def _quantize_rows_kernel(
    x, out, scales, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Quantize a row, with a scale for each GROUP of columns: scales [SIZE / GROUP, num_rows]."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    start = row.to(tl.int64) * SIZE
    values = tl.load(x + start + at, mask=at < SIZE, other=0.0).to(tl.float32)
    groups = tl.reshape(values, (BLOCK // GROUP, GROUP))
    largest = tl.max(tl.abs(groups), axis=1)
    scale = tl.where(largest > 0.0, largest / FP8_MAX, 1.0)
    values = tl.reshape(groups * (1.0 / scale)[:, None], (BLOCK,))
    codes = clamp_to_fp8(values).to(out.dtype.element_ty)
    tl.store(out + start + at, in_fragment_order(codes, BLOCK), mask=at < SIZE)
    group = tl.arange(0, BLOCK // GROUP)
    tl.store(scales + group * num_rows + row, scale, mask=group * GROUP < SIZE)


def quantize_rows(x: torch.Tensor, early: bool = False, group: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize x [T, columns] to float8_e4m3fn, with the largest magnitude of each row, or of each group, as 448.

    Args:
        x: contiguous, columns a multiple of 64 and of the group, at most MAX_COLUMNS.
        early: see `CudaOps`.
        group: columns that share a scale, a power of 2; 0 for the whole row.

    Returns:
        Codes [T, columns] in the order of `weight_formats`, and scales float32 [T, groups], those of a group together;
        of groups, there are rows behind the last one, up to a multiple of ALIGNED_ROWS, whose content is undefined.
    """
    rows, size = x.shape
    allocated = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS if group else rows
    codes = torch.empty(allocated, size, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(size // group if group else 1, allocated, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(size)
        warps = min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP))
        _quantize_rows_kernel[(rows,)](
            x, codes, scales, allocated, size, block, group or block, early, num_warps=warps, launch_pdl=early
        )
    return codes, scales.t()


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
    # Parts of the tile's columns, of which none has two groups.
    PARTS: tl.constexpr = COLUMNS // GROUP if GROUP > 0 and GROUP < COLUMNS else 1
    values = to_numbers(tile, NUMBERS, out.dtype.element_ty, ROWS, COLUMNS).to(tl.float32)
    values = tl.reshape(values, (ROWS, PARTS, COLUMNS // PARTS))
    groups = 1
    group = tl.zeros((1, PARTS), tl.int32)
    if GROUP > 0:
        groups = tl.cdiv(columns, GROUP)
        group = tl.minimum(start // GROUP + tl.arange(0, PARTS), groups - 1)[None, :]
    own_row = tl.minimum(row, num_rows - 1)[:, None]
    values *= tl.load(scales + ((own_row // SCALE_ROWS) * groups + group)).to(tl.float32)[:, :, None]
    if shifts is not None:
        values += tl.load(shifts + (own_row * groups + group)).to(tl.float32)[:, :, None]
    values = tl.reshape(values, (ROWS, COLUMNS))
    column = start + tl.arange(0, COLUMNS)[None, :]
    to = out + row.to(tl.int64)[:, None] * columns + column
    tl.store(to, values.to(out.dtype.element_ty), mask=inside & (column < columns))


def dequantize(weight: PackedWeights, out: torch.Tensor) -> torch.Tensor:
    """Write the numbers of a weight, computed in float32 and rounded once, to out [rows, columns], and return out."""
    rows, columns = weight.shape
    grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS))
    _dequantize_kernel[grid](
        weight.words, weight.scales, weight.shifts, out, rows, columns, TILE_ROWS, TILE_COLUMNS, weight.numbers,
        weight.in_word, weight.group, weight.scale_rows,
    )  # fmt: skip
    return out


def multiplies_float8(x: torch.Tensor, weight: PackedWeights) -> bool:
    """Return True if `multiply_float8` supports these: e4m3 with scales of rows or of whole square blocks, and an x in
    bfloat16, on sm_90 or later."""
    rows, columns = weight.shape
    blocks = weight.group == weight.scale_rows == FLOAT8_GROUP and rows % 128 == columns % 512 == 0
    return (
        weight.numbers == "e4m3"
        and weight.shifts is None
        and (weight.group == 0 or (blocks and x.is_cuda and has_block_products(x.device)))
        and x.dtype == torch.bfloat16
        and x.is_cuda
        and x.shape[0] > 0
        and weight.shape[0] % 16 == 0
        and weight.columns <= MAX_COLUMNS
        and has_copy_engine(x.device)
    )


@functools.cache
def has_block_products(device: torch.device) -> bool:
    """Return True if this torch multiplies float8 with scales of blocks on a device. The first call is not captured."""
    x, weight = (torch.zeros(rows, 512, device=device).to(torch.float8_e4m3fn) for rows in (12, 128))
    x_scales, scales = torch.ones(4, 12, device=device).t(), torch.ones(1, 4, device=device)
    try:
        torch._scaled_mm(x, weight.t(), scale_a=x_scales, scale_b=scales.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError):  # cuBLAS before 12.9, or another generation of GPUs
        return False
    return True


def multiply_float8(
    x: torch.Tensor, weight: PackedWeights, bias: torch.Tensor | None, early: bool = False
) -> torch.Tensor:
    """Return x W^T + bias [T, rows] in bfloat16, for x [T, columns], whose rows, or groups where the weight has blocks,
    are quantized to float8.

    Both operands have their columns in the same order, in which the order of the sum is another one.
    """
    codes, scales = quantize_rows(x, early, weight.group)
    product: torch.Tensor = torch._scaled_mm(
        codes,
        weight.words.view(torch.float8_e4m3fn).t(),
        scale_a=scales,
        scale_b=weight.scales.t() if weight.group else weight.scales[None],
        bias=None if weight.group else bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=not weight.group,
    )
    product = product[: x.shape[0]]
    return product.add_(bias) if weight.group and bias is not None else product
