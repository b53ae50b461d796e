"""Matrix-vector multiplication with a weight of int4 codes: the linear layers of a decode step of one token.

With four bits, the tensor cores would spend most of their work on padding of the tokens. Here a thread loads sixteen
bytes of a row's codes at once, with the next ones on their way, converts them to float32, and has the sums in
registers; the warps of a program divide the columns. Sums are in float32, in an order that depends on the sizes alone,
and are rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.all_reduce import send_arguments
from radixrt.kernels.triton.symmetric_memory import SymmetricMemory, first_slot, load_epoch, peer_slots, send_values
from radixrt.kernels.triton.weight_formats import INTERPRETED

NUM_WARPS = 4
LANE_ROWS = 8
"""Rows of a warp's load: each row has four threads, as in the order of the codes."""
BLOCKS = 4
"""Blocks of 128 columns that a warp loads at a time."""


@triton.jit
def _load_words(row, width, start, WARPS: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr):
    """Load the words of a step, zeros past the end of a row: four tensors [4, LANE_ROWS, WARPS, BLOCKS], of which a
    thread loads sixteen bytes at once.

    The first two dimensions are the lanes of a warp, in the order of the codes.

    row: pointers to the first words of rows, [1, LANE_ROWS, 1, 1, 1].
    """
    lane = tl.arange(0, 4)[:, None, None, None, None] * 4
    block = tl.arange(0, WARPS)[None, None, :, None, None] * BLOCKS + tl.arange(0, BLOCKS)[None, None, None, :, None]
    at = start + block * 16 + lane + tl.arange(0, 4)[None, None, None, None, :]
    if EVEN:
        words = tl.load(row + at, eviction_policy="evict_first")
    else:
        words = tl.load(row + at, mask=at < width, other=0, eviction_policy="evict_first")
    even, odd = tl.split(tl.reshape(words, (4, 8, WARPS, BLOCKS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _load_pair(x, at, columns, OFFSET: tl.constexpr, EVEN: tl.constexpr):
    """Load the two neighbouring columns, in float32 each, that belong to a pair of codes of each thread.

    x: pointers to pairs of columns.
    at: their places in a row.
    OFFSET: of the wanted pairs.
    """
    if EVEN:
        pair = tl.load(x + OFFSET)
    else:
        pair = tl.load(x + OFFSET, mask=2 * (at + OFFSET) < columns, other=0)
    return (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _numbers(words):
    """Return the numbers of a word's codes in float32, those of each pair together."""
    upper = words >> 12
    return (
        _number(words, 0), _number(words, 16), _number(words, 4), _number(upper, 8), _number(words, 8),
        _number(upper, 12), _number(words, 12), _number(upper, 16),
    )  # fmt: skip


@triton.jit
def _number(words, AT: tl.constexpr):
    """Return the number of four bits of a word, which count the units of a float32 of 2^(23 - AT)."""
    MASK: tl.constexpr = 15 << AT
    EXPONENT: tl.constexpr = (150 - AT) << 23
    if INTERPRETED:
        bits = (words & MASK) | EXPONENT
    else:
        # One instruction, which the compiler would make two.
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", [words, MASK, EXPONENT], dtype=tl.int32, is_pure=True, pack=1
        )
    return bits.to(tl.float32, bitcast=True) - ((1 << (23 - AT)) + 8)


@triton.jit
def _add_words(first_sums, second_sums, x_sums, first, second, x, at, columns, SHIFTED: tl.constexpr,
               EVEN: tl.constexpr):  # fmt: skip
    """Add the products of a step to the sums of two rows, and x to the sums of x if SHIFTED.

    first, second: the rows' words, from `_load_words`.
    """
    for word in tl.static_range(4):
        first_numbers = _numbers(first[word])
        second_numbers = _numbers(second[word])
        for pair in tl.static_range(4):
            low, high = _load_pair(x, at, columns, word * 16 + pair * 4, EVEN)
            first_sums += first_numbers[2 * pair] * low
            first_sums += first_numbers[2 * pair + 1] * high
            second_sums += second_numbers[2 * pair] * low
            second_sums += second_numbers[2 * pair + 1] * high
            if SHIFTED:
                x_sums += low + high
    return first_sums, second_sums, x_sums


@triton.jit(do_not_specialize=["stride"])
def _codes_gemv_kernel(
    x, words, scales, shifts, bias, out, addresses, turns, num_rows, columns, copy_stride, stride,
    GATED: tl.constexpr, HAS_BIAS: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr,
    LANE_ROWS: tl.constexpr, WARPS: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, PART_BYTES: tl.constexpr, TRIPS: tl.constexpr,
):  # fmt: skip
    """Compute out [num_rows]. A thread has a part of two rows: the second one LANE_ROWS further on, or the one of `up`
    if GATED. With RANKS > 1, out is an addend of an all-reduce, and is also sent to the other ranks.

    x: int32, pairs of columns.
    copy_stride: 0. Each row of lanes reads x for itself, see `gemv`.
    stride: 1. The compiler must not know that the lanes' pairs are neighbours, or it would load several for a thread.
    """
    STEP: tl.constexpr = WARPS * BLOCKS * 16
    width = tl.multiple_of(columns // 8, 16)
    row = tl.program_id(0) * (LANE_ROWS if GATED else 2 * LANE_ROWS) + tl.arange(0, LANE_ROWS)
    other = row + (num_rows if GATED else LANE_ROWS)
    # Rows past the end compute the last row once more: without a mask there is nothing to wait for before the loads.
    first_row = tl.minimum(row, num_rows - 1)
    second_row = tl.minimum(other, 2 * num_rows - 1) if GATED else tl.minimum(other, num_rows - 1)
    in_first = words + (first_row.to(tl.int64) * width)[None, :, None, None, None]
    in_second = words + (second_row.to(tl.int64) * width)[None, :, None, None, None]
    block = tl.arange(0, WARPS)[None, None, :, None] * BLOCKS + tl.arange(0, BLOCKS)[None, None, None, :]
    lane = tl.arange(0, 4)[:, None, None, None]
    copies = (tl.arange(0, LANE_ROWS) * copy_stride)[None, :, None, None]
    groups = tl.cdiv(columns, GROUP) if GROUP > 0 else 1
    first_at = (first_row // SCALE_ROWS * groups)[None, :, None, None]
    second_at = (second_row // SCALE_ROWS * groups)[None, :, None, None]

    # The weight first: it depends on no kernel and is on its way while the one before ends.
    first = _load_words(in_first, width, 0, WARPS, BLOCKS, EVEN)
    second = _load_words(in_second, width, 0, WARPS, BLOCKS, EVEN)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()  # programs of the next kernel fit on the SMs beside these and wait for their end
    if RANKS > 1:
        half = first_slot(load_epoch(turns), RANKS)
    zero = tl.zeros((4, LANE_ROWS, WARPS, BLOCKS), tl.float32)
    first_sums = zero
    second_sums = zero
    for start in tl.range(0, width, STEP):
        following = tl.minimum(start + STEP, tl.cdiv(width, STEP) * STEP - STEP)
        next_first = _load_words(in_first, width, following, WARPS, BLOCKS, EVEN)
        next_second = _load_words(in_second, width, following, WARPS, BLOCKS, EVEN)
        at = start * 4 + block * 64 + lane * stride
        in_x = x + (at + copies)
        if GROUP > 0:
            # Sums of a group's columns are multiplied by the rows' scales.
            group = tl.minimum((start + block * 16) * 8, columns - 1) // GROUP
            first_scale = tl.load(scales + first_at + group).to(tl.float32)
            second_scale = tl.load(scales + second_at + group).to(tl.float32)
            first_part, second_part, x_part = _add_words(
                zero, zero, zero, first, second, in_x, at, columns, shifts is not None, EVEN
            )
            first_sums += first_part * first_scale
            second_sums += second_part * second_scale
            if shifts is not None:  # these have groups of single rows
                first_sums += x_part * tl.load(shifts + first_at + group)
                second_sums += x_part * tl.load(shifts + second_at + group)
        else:
            first_sums, second_sums, _ = _add_words(
                first_sums, second_sums, zero, first, second, in_x, at, columns, False, EVEN
            )
        first, second = next_first, next_second
    first_value = tl.sum(tl.sum(tl.sum(first_sums, axis=3), axis=2), axis=0)
    second_value = tl.sum(tl.sum(tl.sum(second_sums, axis=3), axis=2), axis=0)
    if GROUP == 0:
        first_value *= tl.load(scales + first_row)
        second_value *= tl.load(scales + second_row)
    if HAS_BIAS:
        first_value += tl.load(bias + first_row).to(tl.float32)
        second_value += tl.load(bias + second_row).to(tl.float32)
    if RANKS > 1:
        sent = tl.full((1,), 0, tl.int32)
        places, elsewhere = peer_slots(
            addresses, half, sent, num_rows, RANK, RANKS, PART_BYTES, TRIPS, out.dtype.element_ty
        )
    if GATED:
        first_value = first_value / (1.0 + tl.exp(-first_value)) * second_value
    else:
        second_value = second_value.to(out.dtype.element_ty)
        if RANKS > 1:
            second_value = send_values(places, elsewhere, other, second_value, other < num_rows)
        tl.store(out + other, second_value, mask=other < num_rows)
    first_value = first_value.to(out.dtype.element_ty)
    if RANKS > 1:
        first_value = send_values(places, elsewhere, row, first_value, row < num_rows)
    tl.store(out + row, first_value, mask=row < num_rows)


def wins(x: torch.Tensor, weight: PackedWeights) -> bool:
    """Return True if the kernel supports these, and is faster than `skinny_gemm`: one token and int4 codes.

    On an H200, microseconds of all four linear layers of a layer of Llama-3.1-8B with one token, by this kernel and by
    `skinny_gemm`: 55 and 65 with int4. With 8-bit codes a kernel like this one was slower than `skinny_gemm` (79 and
    72), and so it was with two tokens of int4 (78 and 65).
    """
    return x.shape[0] == 1 and x.dtype == torch.bfloat16 and weight.numbers == "int4"


def multiply(
    x: torch.Tensor, weight: PackedWeights, bias: torch.Tensor | None, *, gated: bool = False, early: bool = False,
    send: SymmetricMemory | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return x W^T + bias [1, rows] in bfloat16, for x [1, columns] in bfloat16 and int4 codes.

    Args:
        gated: see `skinny_gemm.multiply`.
        early: see `CudaOps`.
        send: see `skinny_gemm.multiply`.
    """
    rows = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(1, rows, dtype=x.dtype, device=x.device)
    pointers, place = send_arguments(send, x, rows)
    each = LANE_ROWS if gated else 2 * LANE_ROWS
    _codes_gemv_kernel[(triton.cdiv(rows, each),)](
        x.view(torch.int32), weight.words, weight.scales, weight.shifts, bias, out, *pointers, rows, weight.columns,
        0, 1, gated, bias is not None, weight.group, weight.scale_rows, LANE_ROWS, NUM_WARPS, BLOCKS,
        weight.words.shape[1] % (NUM_WARPS * BLOCKS * 16) == 0, early, *place,
        num_warps=NUM_WARPS, launch_pdl=early,
    )  # fmt: skip
    return out
