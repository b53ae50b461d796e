"""Products of a weight of 8-bit or 4-bit codes with up to eight tokens: the linear layers of a small decode step.

Such a product is bound by reading the weight. A warp has sixteen rows and a part of the columns; each thread loads its
codes sixteen bytes at a time straight into the registers from which the tensor cores take them, converted, with the
codes of the next step on their way. Nothing goes through shared memory before the sums, the programs need no sums of
each other, and the first codes are requested before the kernel before has ended. Sums are in float32, in an order that
depends on the sizes alone, and are rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.all_reduce import send_arguments
from radixrt.kernels.triton.symmetric_memory import SymmetricMemory, first_slot, load_epoch, peer_slots, send_values
from radixrt.kernels.triton.weight_formats import BLOCK_4, BLOCK_8, NEIGHBOURS, to_operand

MAX_TOKENS, FEW_TOKENS = 8, 4
"""Columns of the tensor cores' smallest tile, and most tokens with which the kernel may win."""

TILE_ROWS = 16
"""Rows of the tensor cores' tile."""


class Cut(NamedTuple):
    """Tiling of a product.

    Attributes:
        warps: of a program, which share its columns; of a gated product, one half of them has the rows of gate, and one
            the rows of up.
        blocks: blocks of columns that a warp loads at a time.
        unroll: steps that the compiler puts in a row.
        x_ahead: whether x is loaded a step ahead, too.
    """

    warps: int
    blocks: int
    unroll: int = 1
    x_ahead: bool = False


@triton.jit
def _load_words(rows, start, at, width, EVEN: tl.constexpr):
    """Load the words of a step, [lines, 16]; zeros past the end of a row, and nothing if the whole step is past it.

    A thread has four neighbouring words of a line, and four threads the line: these are a block of a row, in the order
    of the codes. Of a line's number, the lowest three bits are a row, the next ones a warp, then follow a bit of the
    row, and the block.

    rows: pointers to the first words of the lines' rows, [lines, 1].
    at: offsets of the words in a step, [lines, 16].
    """
    inside = (start + at * 0 if EVEN else start + at) < width
    return tl.load(rows + start + at, mask=inside, other=0, eviction_policy="evict_first")


@triton.jit
def _load_x(x, start, at, columns_at, inside, columns, EVEN: tl.constexpr):
    """Load the pairs of columns of a step, one dimension; zeros where there are no tokens or columns.

    Of a pair's number, the lowest two bits are the thread of a row, the next three ones a token, then follow the warp,
    the second pair of a thread, the step of the tensor cores, and the block.

    x: pointers to the first pair of each warp and thread.
    at: offsets of the pairs of a thread.
    columns_at: the column of each pair in a step.
    inside: mask of the tokens.
    """
    column = 2 * start + columns_at * 0 if EVEN else 2 * start + columns_at
    return tl.load(x + start + at, mask=inside & (column < columns), other=0)


@triton.jit
def _x_operand(
    pairs, DTYPE: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return pairs of columns from `_load_x` as an operand [BLOCKS * WARPS, BLOCK, TOKENS], see `to_operand`."""
    first = (pairs & 0xFFFF).to(tl.int16).to(DTYPE, bitcast=True)
    second = (pairs >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    values = tl.reshape(tl.join(first, second), (BLOCKS, BLOCK // 16, 2, WARPS, TOKENS, 4, 2))
    if NEIGHBOURS == 4:
        values = tl.permute(values, (0, 3, 1, 5, 2, 6, 4))
    else:
        values = tl.permute(values, (0, 3, 1, 2, 5, 6, 4))
    return tl.reshape(values, (BLOCKS * WARPS, BLOCK, TOKENS))


@triton.jit
def _load_factors(values, at, BLOCKS: tl.constexpr, WARPS: tl.constexpr, TOKENS: tl.constexpr):
    """Load the scales or shifts of a step's rows and blocks, [BLOCKS * WARPS, 16, TOKENS].

    at: offsets, one dimension. The lowest two bits of a number are the threads of a row, whose sums are of other
        tokens; then follow a row's lowest bits, the warp, a bit of the row, and the block.
    """
    tl.static_assert(TOKENS == 8)
    found = tl.load(values + at).to(tl.float32)
    found = tl.reshape(tl.join(found, found), (BLOCKS, 2, WARPS, 8, 8))
    return tl.reshape(tl.permute(found, (0, 2, 1, 3, 4)), (BLOCKS * WARPS, 16, TOKENS))


@triton.jit
def _add_product(
    sums, words, x, scales, shifts, at, NUMBERS: tl.constexpr, DTYPE: tl.constexpr, GROUP: tl.constexpr,
    BLOCKS: tl.constexpr, WARPS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Add the products of a step to the sums [BLOCKS * WARPS, 16, TOKENS].

    at: offsets of the scales and shifts of groups.
    """
    numbers = to_operand(words, NUMBERS, DTYPE, BLOCKS, WARPS)
    if GROUP > 0:
        sums += tl.dot(numbers, x) * _load_factors(scales, at, BLOCKS, WARPS, TOKENS)
        if shifts is not None:  # the tensor cores add up x, where the sums of its products are
            x_sums = tl.dot(tl.full(numbers.shape, 1.0, DTYPE), x)
            sums += x_sums * _load_factors(shifts, at, BLOCKS, WARPS, TOKENS)
    else:
        sums = tl.dot(numbers, x, sums)
    return sums


@triton.jit(do_not_specialize=["tokens", "stride"])
def _codes_gemv_kernel(
    x, words, scales, shifts, bias, out, addresses, turns, tokens, num_rows, columns, stride,
    NUMBERS: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr, TOKENS: tl.constexpr, WARPS: tl.constexpr, BLOCKS: tl.constexpr, UNROLL: tl.constexpr,
    X_AHEAD: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    PART_BYTES: tl.constexpr, TRIPS: tl.constexpr,
):  # fmt: skip
    """Compute sixteen rows of out [tokens, num_rows]. With RANKS > 1, out is an addend of an all-reduce, and is also
    sent to the other ranks.

    x: int32, pairs of columns.
    stride: 1. The compiler must not know that the lanes' pairs are neighbours, or it would load several for a thread.
    BLOCK: columns of a block in the order of the codes, of which each warp has BLOCKS in a step.
    """
    DTYPE: tl.constexpr = out.dtype.element_ty
    BATCH: tl.constexpr = BLOCKS * WARPS
    HALVES: tl.constexpr = 2 if GATED else 1
    PARTS: tl.constexpr = WARPS // HALVES
    PER_WORD: tl.constexpr = BLOCK // 16
    STEP: tl.constexpr = BLOCKS * PARTS * 16
    width = tl.multiple_of(columns // PER_WORD, 16)
    first_row = tl.program_id(0) * 16
    # Rows past the end compute the last row once more: without a mask there is nothing to wait for before the loads.
    line = tl.arange(0, BATCH * 16)
    block = line // 8 % PARTS * BLOCKS + line // (16 * WARPS)
    row = tl.minimum(first_row + line // (8 * WARPS) % 2 * 8 + line % 8, num_rows - 1)
    row += line // 8 % WARPS // PARTS * num_rows
    at = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    rows = words + (row.to(tl.int64) * width)[:, None]

    # The weight first: it depends on no kernel and is on its way while the one before ends.
    tile = _load_words(rows, 0, at, width, EVEN)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()  # programs of the next kernel fit on the SMs beside these and wait for their end
    if RANKS > 1:
        half = first_slot(load_epoch(turns), RANKS)
    pair = tl.arange(0, BATCH * TOKENS * BLOCK // 2)
    token = pair // 4 % TOKENS
    x_warp = pair // (4 * TOKENS) % PARTS * (BLOCKS * BLOCK // 2)
    x_at = pair // (4 * TOKENS * WARPS) % 2 * 4 + pair // (8 * TOKENS * WARPS) * 8
    x_rows = x + (token * (columns // 2) + x_warp + pair % 4 * stride)
    x_columns = 2 * (x_warp + pair % 4 + x_at)
    in_x = token < tokens
    PER_STEP: tl.constexpr = PER_WORD // 2
    pairs = _load_x(x_rows, 0, x_at, x_columns, in_x, columns, EVEN)
    sums = tl.zeros((BATCH, 16, TOKENS), tl.float32)
    factor = tl.arange(0, BATCH * 64) // 4
    factor_block = factor // 8 % PARTS * BLOCKS + factor // (16 * WARPS)
    factor_rows = tl.minimum(first_row + factor // (8 * WARPS) % 2 * 8 + factor % 8, num_rows - 1)
    factor_rows += factor // 8 % WARPS // PARTS * num_rows
    if GROUP > 0:
        factor_rows = factor_rows // SCALE_ROWS * tl.cdiv(columns, GROUP)
    for start in tl.range(0, width, STEP, loop_unroll_factor=UNROLL):
        next_tile = _load_words(rows, start + STEP, at, width, EVEN)
        if X_AHEAD:
            next_pairs = _load_x(x_rows, (start + STEP) * PER_STEP, x_at, x_columns, in_x, columns, EVEN)
        else:
            pairs = _load_x(x_rows, start * PER_STEP, x_at, x_columns, in_x, columns, EVEN)
            next_pairs = pairs
        in_scales = factor_rows
        if GROUP > 0:
            group = tl.minimum((start + factor_block * 16) * PER_WORD, columns - 1) // GROUP
            in_scales = factor_rows + group
        x_tile = _x_operand(pairs, DTYPE, BLOCKS, WARPS, TOKENS, BLOCK)
        sums = _add_product(sums, tile, x_tile, scales, shifts, in_scales, NUMBERS, DTYPE, GROUP, BLOCKS, WARPS, TOKENS)
        tile, pairs = next_tile, next_pairs

    sums = tl.sum(tl.reshape(sums, (BLOCKS, WARPS, 16, TOKENS)), axis=0)
    out_token = tl.arange(0, TOKENS)[:, None]
    out_row = first_row + tl.arange(0, 16)
    own_row = tl.minimum(out_row, num_rows - 1)
    if GATED:
        halves = tl.sum(tl.reshape(sums, (2, PARTS, 16, TOKENS)), axis=1)
        gate, up = tl.split(tl.permute(halves, (2, 1, 0)))
        value = _finished(gate, scales, bias, own_row, GROUP, HAS_BIAS)
        up = _finished(up, scales, bias, num_rows + own_row, GROUP, HAS_BIAS)
        value = value / (1.0 + tl.exp(-value)) * up
    else:
        value = _finished(tl.trans(tl.sum(sums, axis=0)), scales, bias, own_row, GROUP, HAS_BIAS)
    value = value.to(DTYPE)
    mask = (out_token < tokens) & (out_row < num_rows)[None, :]
    if RANKS > 1:
        places, elsewhere = peer_slots(addresses, half, out_token, num_rows, RANK, RANKS, PART_BYTES, TRIPS, DTYPE)
        value = send_values(places, elsewhere, out_row[None, :], value, mask)
    tl.store(out + out_token * num_rows + out_row[None, :], value, mask=mask)


@triton.jit
def _finished(value, scales, bias, row, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return sums [TOKENS, ROWS] with the scales of whole rows and the bias."""
    if GROUP == 0:
        value *= tl.load(scales + row)[None, :]
    if HAS_BIAS:
        value += tl.load(bias + row).to(tl.float32)[None, :]
    return value


MAX_SMALL = 264
"""Tiles of rows that are all computed at once by programs with many registers: two for each SM of an H100 or H200."""

CUTS = {
    (8, "few rows"): Cut(8, 4, unroll=2),
    (8, "many rows"): Cut(4, 4, x_ahead=True),
    (8, "gated"): Cut(4, 2, unroll=2),
    (4, "few rows"): Cut(8, 2, unroll=2),
    (4, "many rows"): Cut(4, 2, unroll=2),
    (4, "gated"): Cut(4, 1, x_ahead=True),
}
"""By bits of a code and rows: the best of some thirty tilings for the linear layers of Llama-3.1-8B on an H200."""


def find_cut(rows: int, *, gated: bool, bits: int) -> Cut:
    """Return the tiling for a weight with so many rows, those of one half where it is gated."""
    few = rows <= MAX_SMALL * TILE_ROWS
    return CUTS[bits, "gated" if gated else "few rows" if few else "many rows"]


def wins(x: torch.Tensor, weight: PackedWeights, *, gated: bool) -> bool:
    """Return True if the kernel supports these, and is faster than `skinny_gemm`.

    Measured on an H200 in a CUDA graph, microseconds of this kernel and of `skinny_gemm` for the linear layers of
    Llama-3.1-8B:

    ===============================  ===========  ===========  ===========
    rows x columns                   fp8, one     int4, one    int4, four
    ===============================  ===========  ===========  ===========
    6144 x 4096                       9.2  10.3    6.7   9.4    7.9   9.4
    4096 x 4096                       7.5   8.4    5.6   6.9    6.5   6.9
    4096 x 14336                     18.7  19.3   14.1  15.2   18.1  15.2
    28672 x 4096, silu and product   32.0  33.8   26.6  29.2   35.1  29.5
    ===============================  ===========  ===========  ===========

    Products with int8 codes, whose conversion takes more instructions, and the product of gate and up with scales of
    8-bit blocks (44.6 and 33.6) are slower by this kernel.
    """
    four_bits = weight.in_word == 8
    loses = weight.numbers == "int8" or (gated and weight.group > 0 and not four_bits)
    return (
        0 < x.shape[0] <= (FEW_TOKENS if four_bits and not gated else 1)
        and not loses
        and x.dtype in (torch.bfloat16, torch.float16)
        and weight.group % (BLOCK_4 if four_bits else BLOCK_8) == 0
    )


def multiply(
    x: torch.Tensor, weight: PackedWeights, bias: torch.Tensor | None, *, gated: bool = False, early: bool = False,
    send: SymmetricMemory | None = None, cut: Cut | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return x W^T + bias [T, rows] in x's dtype, for x [T, columns] in bfloat16 or float16 and at most MAX_TOKENS
    tokens.

    Args:
        gated: see `skinny_gemm.multiply`.
        early: see `CudaOps`.
        send: see `skinny_gemm.multiply`.
        cut: the tiling; None for the one of `find_cut`.
    """
    rows = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    pointers, place = send_arguments(send, x, rows)
    bits = 32 // weight.in_word
    block = BLOCK_8 if bits == 8 else BLOCK_4
    cut = cut or find_cut(rows, gated=gated, bits=bits)
    step = block * cut.blocks * cut.warps // (1 + gated)
    _codes_gemv_kernel[(triton.cdiv(rows, TILE_ROWS),)](
        x.view(torch.int32), weight.words, weight.scales, weight.shifts, bias, out, *pointers, x.shape[0], rows,
        weight.columns, 1, weight.numbers, block, gated, bias is not None, weight.group, weight.scale_rows, MAX_TOKENS,
        cut.warps, cut.blocks, cut.unroll, cut.x_ahead, weight.columns % step == 0, early, *place,
        num_warps=cut.warps, num_stages=1, launch_pdl=early,
    )  # fmt: skip
    return out
