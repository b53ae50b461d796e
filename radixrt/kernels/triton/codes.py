"""Products with codes and many tokens: by activations in float8, or after dequantization of the weight."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from radixrt.kernels.float8_rows import Float8Rows
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.padding import padded_view
from radixrt.kernels.triton.quantize import MAX_COLUMNS
from radixrt.kernels.triton.skinny_gemm import has_copy_engine
from radixrt.kernels.triton.weight_formats import to_numbers

FLOAT8_GROUP = 128
"""Columns that share a scale of activations, where the weight has blocks."""

TILE_ROWS, TILE_COLUMNS = 64, 128
"""Tile of a program that dequantizes."""


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


def multiplies_float8(weight: PackedWeights, dtype: torch.dtype) -> bool:
    """Return True if `multiply_float8` supports these: e4m3 with scales of rows or of whole square blocks, and
    activations in bfloat16, on sm_90 or later."""
    (rows, columns), device = weight.shape, weight.words.device
    blocks = weight.group == weight.scale_rows == FLOAT8_GROUP and rows % 128 == columns % 512 == 0
    return (
        weight.numbers == "e4m3"
        and dtype == torch.bfloat16
        and weight.shifts is None
        and rows % 16 == 0
        and columns <= MAX_COLUMNS
        and device.type == "cuda"
        and has_copy_engine(device)
        and (weight.group == 0 or (blocks and has_block_products(device)))
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


def multiply_float8(x: Float8Rows, weight: PackedWeights, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x W^T + bias [T, rows] by cuBLAS, for x [T, columns] with the groups of the weight.

    Both operands have their columns in the same order, in which the order of the sum is another one.
    """
    assert x.group == weight.group
    tokens = x.shape[0]
    product: torch.Tensor = torch._scaled_mm(
        padded_view(x.codes, x.scales.shape[1]),
        weight.words.view(torch.float8_e4m3fn).t(),
        scale_a=x.scales.t(),
        scale_b=weight.scales.t() if weight.group else weight.scales[None],
        bias=None if weight.group else bias,
        out_dtype=x.dtype,
        use_fast_accum=not weight.group,
    )
    product = product[:tokens]
    return product.add_(bias) if weight.group and bias is not None else product
