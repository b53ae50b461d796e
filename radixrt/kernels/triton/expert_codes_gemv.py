"""Experts of a few tokens whose weights are codes of 8 or 4 bits: each pair of token and expert by itself.

Such a product is bound by reading the weights, and by converting them. A thread loads sixteen bytes of a row's codes at
once, straight into the registers in which the tensor cores expect the numbers that the codes become, while the previous
codes are multiplied. Only x passes through shared memory, and the sums at the end, where the warps of a program, which
divide the columns, add up theirs. Of the eight columns of the other operand all are the token's x.

Two launches compute everything: gate and up with their activation, and down with the weighted sum, in which the warps
divide the experts of the token first. Sums are in float32, in an order that depends on the sizes alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton import mxfp4, weight_formats
from radixrt.kernels.triton.activation import SILU, ExpertRule, gated

MAX_TOKENS = 4
ROWS = 16
"""Rows of a weight that a program multiplies; rows of each half, where gate and up are multiplied."""


class Cut(NamedTuple):
    """How a program divides its rows' columns.

    Attributes:
        warps: of a program.
        blocks: blocks of the order of codes that a warp loads at a time.
    """

    warps: int
    blocks: int


GATE_UP = {8: Cut(2, 4), 4: Cut(2, 2)}
DOWN, DOWN_FEW = Cut(4, 4), Cut(8, 4)
"""Cuts of gate and up, by the bits of a code, and of down, where 8 bits and at most MAX_FEW tokens have another one.
They were the fastest on an H200 for gpt-oss-20b in MXFP4 and Qwen3-30B-A3B in fp8 (`python -m
benchmarks.kernels.experts --tune`)."""
MAX_FEW = 2


@triton.jit
def _load_words(words, first, blocks, BLOCKS: tl.constexpr, EVEN: tl.constexpr):
    """Load words [4, 8, WARPS, 2, BLOCKS, 4] of rows: the blocks from `first` [1, 1, WARPS, 1, 1, 1] on. Past the end
    the last block is repeated.

    words: pointers to each lane's words in the first block of a row.
    """
    if EVEN:
        at = words + first * 16 + (tl.arange(0, BLOCKS) * 16)[None, None, None, None, :, None]
    else:
        block = first + tl.arange(0, BLOCKS)[None, None, None, None, :, None]
        at = words + tl.minimum(block, blocks - 1) * 16
    return tl.load(at + tl.arange(0, 4)[None, None, None, None, None, :], eviction_policy="evict_first")


@triton.jit
def _load_factors(scales, first, blocks, BLOCKS: tl.constexpr, EVEN: tl.constexpr):
    """Load the scales of the groups of MXFP4 numbers that `_load_words` loads."""
    if EVEN:
        at = scales + first * 4 + (tl.arange(0, BLOCKS) * 4)[None, None, None, None, :, None]
    else:
        block = first + tl.arange(0, BLOCKS)[None, None, None, None, :, None]
        at = scales + tl.minimum(block, blocks - 1) * 4
    return tl.load(at + tl.arange(0, 4)[None, None, None, None, None, :])


@triton.jit
def _numbers(words, factors, NUMBERS: tl.constexpr, DTYPE: tl.constexpr):
    """Return numbers [WARPS, 16, columns] of words [4, 8, WARPS, 2, BLOCKS, 4], in the order of `_load_x`."""
    W: tl.constexpr = words.shape[2]
    B: tl.constexpr = words.shape[4]
    if NUMBERS == "int8" or NUMBERS == "e4m3":
        a, b, c, d = weight_formats._four(words, NUMBERS, DTYPE)
        values = tl.join(tl.join(a, b), tl.join(c, d))
        numbers = tl.reshape(tl.permute(values, (2, 3, 1, 4, 5, 0, 7, 6)), (W, 16, B * 64))
    else:
        if NUMBERS == "mxfp4":
            a, b, c, d, e, f, g, h = mxfp4._eight(words, factors, DTYPE)
        else:
            a, b, c, d, e, f, g, h = weight_formats._eight(words, NUMBERS, DTYPE)
        low = tl.join(tl.join(a, b), tl.join(c, d))
        values = tl.join(low, tl.join(tl.join(e, f), tl.join(g, h)))
        numbers = tl.reshape(tl.permute(values, (2, 3, 1, 4, 5, 8, 0, 7, 6)), (W, 16, B * 128))
    return numbers


@triton.jit
def _load_x(x, first, columns, BLOCKS: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr):
    """Load x [WARPS, BLOCKS * STEPS * 16, 8], all of whose columns are equal: the blocks from `first` [WARPS, 1] on,
    zeros past the end.

    In each step of 16 columns, lane t of four has 2t and 2t + 1, then 2t + 8 and 2t + 9.
    x: pointers [WARPS, 1] to rows.
    """
    W: tl.constexpr = first.shape[0]
    SIZE: tl.constexpr = BLOCKS * STEPS * 16
    column = first * (STEPS * 16) + tl.arange(0, SIZE)[None, :]
    if EVEN:
        values = tl.load(x + column)
    else:
        values = tl.load(x + column, mask=column < columns, other=0.0)
    values = tl.permute(tl.reshape(values, (W, BLOCKS * STEPS, 2, 4, 2)), (0, 1, 3, 2, 4))
    return tl.broadcast_to(tl.reshape(values, (W, SIZE, 1)), (W, SIZE, 8))


@triton.jit
def _add_columns(
    x, words, up_words, scales, up_scales, blocks, columns, warp_part, x_part,
    GATED: tl.constexpr, NUMBERS: tl.constexpr, WARPS: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Return the sums [WARPS, 16, 8] of the columns of each warp, for 16 rows of a weight, and of up if GATED.

    x, words, scales: pointers as in `_load_x`, `_load_words`, `_load_factors`.
    blocks: of a row.
    warp_part, x_part: which of the PARTS of the columns a warp has, of the ranks of words and of x.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    STEPS: tl.constexpr = 4 if NUMBERS == "int8" or NUMBERS == "e4m3" else 8
    GROUPED: tl.constexpr = NUMBERS == "mxfp4"
    sums = tl.zeros((WARPS, 16, 8), tl.float32)
    up_sums = tl.zeros((WARPS, 16, 8), tl.float32)
    first = warp_part * BLOCKS
    gate = _load_words(words, first, blocks, BLOCKS, EVEN)
    gate_factors = _load_factors(scales, first, blocks, BLOCKS, EVEN) if GROUPED else gate
    up = _load_words(up_words, first, blocks, BLOCKS, EVEN) if GATED else gate
    up_factors = _load_factors(up_scales, first, blocks, BLOCKS, EVEN) if GATED and GROUPED else gate_factors
    for start in tl.range(0, blocks, PARTS * BLOCKS):
        # The words of the next step are on their way while this one is multiplied.
        following = start + PARTS * BLOCKS
        if EVEN:
            following = tl.minimum(following, blocks - PARTS * BLOCKS)
        first = following + warp_part * BLOCKS
        next_gate = _load_words(words, first, blocks, BLOCKS, EVEN)
        next_gate_factors = _load_factors(scales, first, blocks, BLOCKS, EVEN) if GROUPED else next_gate
        next_up = _load_words(up_words, first, blocks, BLOCKS, EVEN) if GATED else next_gate
        next_up_factors = (
            _load_factors(up_scales, first, blocks, BLOCKS, EVEN) if GATED and GROUPED else next_gate_factors
        )
        x_tile = _load_x(x, start + x_part * BLOCKS, columns, BLOCKS, STEPS, EVEN)
        sums = tl.dot(_numbers(gate, gate_factors, NUMBERS, dtype), x_tile, sums, input_precision="ieee")
        gate, gate_factors = next_gate, next_gate_factors
        if GATED:
            up_sums = tl.dot(_numbers(up, up_factors, NUMBERS, dtype), x_tile, up_sums, input_precision="ieee")
            up, up_factors = next_up, next_up_factors
    return sums, up_sums


@triton.jit(do_not_specialize=["copy_stride"])
def _expert_codes_gemv_kernel(
    x, words, scales, bias, experts, weights, out, num_rows, columns, width, scale_stride, copy_stride,
    TOP_K: tl.constexpr, GATED: tl.constexpr, NUMBERS: tl.constexpr, WARPS: tl.constexpr, AT_ONCE: tl.constexpr,
    BLOCKS: tl.constexpr, EVEN: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """GATED: compute 16 columns of the gated product of a pair; else of the weighted sum over a token's experts.

    words, scales, NUMBERS: of `PackedWeights`; `width` words are a row, and scales of MXFP4 numbers have a stride.
    bias: float32, one for each row of the weights, or None.
    AT_ONCE: experts among which the warps are divided, which then divide the columns.
    copy_stride: 0. Each lane loads what it needs for itself; a stride that is known only at run time keeps the compiler
        from distributing a load over the lanes and exchanging the values.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    unit = tl.program_id(1)
    PARTS: tl.constexpr = WARPS // AT_ONCE
    ROUNDS: tl.constexpr = 1 if GATED else (TOP_K + AT_ONCE - 1) // AT_ONCE
    rows_of_expert = 2 * num_rows if GATED else num_rows
    blocks = width // 16
    # Lanes [t, g] of the tensor cores' tiles: g is a row of theirs, t has some of the columns.
    t = tl.arange(0, 4)[:, None, None, None, None, None]
    g = tl.arange(0, 8)[None, :, None, None, None, None]
    warp = tl.arange(0, WARPS)[None, None, :, None, None, None]
    half = tl.arange(0, 2)[None, None, None, :, None, None]
    copies = t * copy_stride + g * copy_stride + warp * copy_stride
    row = tl.minimum(tl.program_id(0) * 16 + half * 8 + g, num_rows - 1).to(tl.int64)
    x_warp = tl.arange(0, WARPS)[:, None]
    sum_warp = tl.arange(0, WARPS)
    sum_row = tl.program_id(0) * 16 + tl.arange(0, 16)
    own_row = tl.minimum(sum_row, num_rows - 1)
    total = tl.zeros((WARPS, 16, 8), tl.float32)
    up_total = tl.zeros((WARPS, 16, 8), tl.float32)
    for turn in tl.static_range(ROUNDS):
        if GATED:
            pair = unit + warp * 0
            sum_place = sum_warp * 0
            sum_pair = unit + sum_place
            x_row = unit // TOP_K + x_warp * 0
        else:
            pair = unit * TOP_K + tl.minimum(turn * AT_ONCE + warp // PARTS, TOP_K - 1)
            sum_place = turn * AT_ONCE + sum_warp // PARTS
            sum_pair = unit * TOP_K + tl.minimum(sum_place, TOP_K - 1)
            x_row = unit * TOP_K + tl.minimum(turn * AT_ONCE + x_warp // PARTS, TOP_K - 1)
        at = tl.load(experts + (pair + copies)).to(tl.int64) * rows_of_expert + row
        in_words = words + at * width + t * 4
        in_scales = scales + at * scale_stride
        sums, up_sums = _add_columns(
            x + x_row.to(tl.int64) * columns, in_words, in_words + num_rows.to(tl.int64) * width,
            in_scales, in_scales + num_rows.to(tl.int64) * scale_stride, blocks, columns, warp % PARTS, x_warp % PARTS,
            GATED, NUMBERS, WARPS, PARTS, BLOCKS, EVEN,
        )  # fmt: skip
        scale_at = (tl.load(experts + sum_pair).to(tl.int64) * rows_of_expert)[:, None] + own_row[None, :]
        if NUMBERS != "mxfp4":
            sums *= tl.load(scales + scale_at)[:, :, None]
            if GATED:
                up_sums *= tl.load(scales + scale_at + num_rows)[:, :, None]
        if bias is not None:
            first_part = (sum_warp % PARTS == 0)[:, None]
            sums += tl.load(bias + scale_at, mask=first_part, other=0.0)[:, :, None]
            if GATED:
                up_sums += tl.load(bias + scale_at + num_rows, mask=first_part, other=0.0)[:, :, None]
        if GATED:
            total += sums
            up_total += up_sums
        else:
            total += sums * tl.load(weights + sum_pair, mask=sum_place < TOP_K, other=0.0)[:, None, None]
    # All columns are equal.
    value = tl.sum(tl.sum(total, axis=0), axis=1) * 0.125
    if GATED:
        value = gated(value, tl.sum(tl.sum(up_total, axis=0), axis=1) * 0.125, ALPHA, LIMIT)
    tl.store(out + unit * num_rows + sum_row, value.to(out.dtype.element_ty), mask=sum_row < num_rows)


def supports(x: torch.Tensor, gate_up: PackedWeights, down: PackedWeights) -> bool:
    """Return True if the kernels support these: few tokens of two bytes, and rows of one scale or of MXFP4
    numbers."""
    fits = all(each.numbers == "mxfp4" or not each.group for each in (gate_up, down))
    return 0 < x.shape[0] <= MAX_TOKENS and x.element_size() == 2 and fits


def run_experts(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, gate_up: PackedWeights, down: PackedWeights,
    early: bool = False, rule: ExpertRule = SILU,
) -> torch.Tensor:  # fmt: skip
    """As `expert_gemm.run_experts`, for T of 1 to MAX_TOKENS; the sum is rounded once."""
    inner = multiply(x, gate_up, experts, weights, gated=True, early=early, rule=rule)
    return multiply(inner, down, experts, weights, gated=False, early=early, rule=rule)


def find_cut(bits: int, tokens: int, *, gated: bool) -> Cut:
    """Return the cut for codes of so many bits."""
    if gated:
        return GATE_UP[bits]
    return DOWN_FEW if bits == 8 and tokens <= MAX_FEW else DOWN


def multiply(
    x: torch.Tensor, weight: PackedWeights, experts: torch.Tensor, weights: torch.Tensor, *, gated: bool, early: bool,
    rule: ExpertRule = SILU, cut: Cut | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the gated product [T * k, n] of each pair; or, of that product, the weighted sum [T, hidden].

    Args:
        x: gated: [T, columns]; else [T * k, columns].
        cut: None for the fastest measured.
    """
    tokens, top_k = experts.shape
    if cut is None:
        cut = find_cut(32 // weight.in_word, tokens, gated=gated)
    rows = weight.words.shape[1] // (1 + gated)
    units = tokens * top_k if gated else tokens
    out = torch.empty(units, rows, dtype=x.dtype, device=x.device)
    at_once = 1 if gated else min(cut.warps, triton.next_power_of_2(top_k))
    columns, width = weight.columns, weight.words.shape[2]
    even = columns == width * weight.in_word and width % (16 * cut.blocks * cut.warps // at_once) == 0
    _expert_codes_gemv_kernel[(triton.cdiv(rows, ROWS), units)](
        x, weight.words, weight.scales, rule.gate_up_bias if gated else rule.down_bias, experts, weights, out, rows,
        columns, width, weight.scales.shape[2] if weight.group else 1, 0,
        top_k, gated, weight.numbers, cut.warps, at_once, cut.blocks, even, rule.alpha, rule.limit, early,
        num_warps=cut.warps, launch_pdl=early,
    )  # fmt: skip
    return out
