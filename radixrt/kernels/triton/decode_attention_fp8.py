"""Decode attention over keys and values in float8, with the plan, list and parts of `decode_attention`.

A program is one warp. Each thread loads sixteen bytes of a key or value at once, straight into the registers in which
the tensor cores expect the numbers that these bytes become, so nothing passes through shared memory, and no thread
waits for another. The products are transposed: keys times queries, and values times probabilities, so that a tile of
the tensor cores has 16 positions or dimensions by 8 heads, of which few are padding.

The order of positions within a block and of dimensions within a product is free, as long as both operands have the
same order. It is chosen so that the slots of a thread's positions, too, are neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.decode_attention import ROW_SHIFT, _merge_parts
from radixrt.kernels.triton.fp8 import UNIT_BFLOAT16, UNIT_FLOAT16, four_numbers, pairs_of_numbers

LOG_FACTOR_BFLOAT16 = 100
"""Queries and probabilities are multiplied by 2 to the power of this, which moves products with numbers divided by UNIT
away from the smallest float32."""


@triton.jit
def _load_words(base, slots, parts, SIZE: tl.constexpr, PIECES: tl.constexpr, WORDS: tl.constexpr, APART: tl.constexpr):
    """Load words [4, 8, positions, PIECES, WORDS] of int32 of slots [4, 8, positions]; the first two dimensions are the
    lanes of a warp.

    parts: broadcastable to [4, 8], where a lane's first piece begins; the pieces are APART.
    SIZE: words of a slot.
    """
    at = slots[:, :, :, None, None].to(tl.int64) * SIZE + parts[:, :, None, None, None]
    piece = (tl.arange(0, PIECES) * APART)[None, None, None, :, None]
    return tl.load(base + (at + piece + tl.arange(0, WORDS)[None, None, None, None, :]))


@triton.jit
def _keys(words, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, PIECES: tl.constexpr):
    """Return keys [BLOCK_N, DIM] of words [4, 8, BLOCK_N / 8, PIECES, 4]."""
    a, b, c, d = four_numbers(words, DTYPE)
    values = tl.join(tl.join(a, b), tl.join(c, d))
    values = tl.reshape(values, (4, 8, 2, BLOCK_N // 16, PIECES, 4, 2, 2))
    return tl.reshape(tl.permute(values, (3, 2, 1, 4, 5, 0, 7, 6)), (BLOCK_N, DIM))


@triton.jit
def _queries(q, row, stride, heads, DIM: tl.constexpr, BLOCK_H: tl.constexpr, PIECES: tl.constexpr, DTYPE: tl.constexpr,
             LOG_FACTOR: tl.constexpr):  # fmt: skip
    """Load queries [DIM, BLOCK_H], the dimensions in the order of `_keys`.

    heads: of each column, [1, 8, BLOCK_H / 8, 1, 1, 1].
    """
    lane = (tl.arange(0, 4) * 16)[:, None, None, None, None, None]
    piece = (tl.arange(0, PIECES) * 64)[None, None, None, :, None, None]
    word = (tl.arange(0, 4) * 4)[None, None, None, None, :, None]
    at = heads * DIM + lane + piece + word + tl.arange(0, 4)[None, None, None, None, None, :]
    values = tl.load(q + (row.to(tl.int64) * stride + at))
    if LOG_FACTOR > 0:
        values = (values.to(tl.float32) * (2.0**LOG_FACTOR)).to(DTYPE)
    values = tl.reshape(values, (4, 8, BLOCK_H // 8, PIECES, 4, 2, 2))
    return tl.reshape(tl.permute(values, (3, 4, 0, 6, 5, 2, 1)), (DIM, BLOCK_H))


@triton.jit
def _values(first, second, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr):
    """Return values [DIM, BLOCK_N] of words [4, 8, BLOCK_N / 8, PIECES, WORDS] of two halves of the positions."""
    a, b, c, d, e, f, g, h = pairs_of_numbers(first, second, DTYPE)
    low = tl.join(tl.join(a, b), tl.join(c, d))
    values = tl.join(low, tl.join(tl.join(e, f), tl.join(g, h)))
    values = tl.reshape(values, (4, 8, 2, BLOCK_N // 16, DIM // 32, 2, 2, 2))
    return tl.reshape(tl.permute(values, (4, 7, 6, 1, 3, 0, 2, 5)), (DIM, BLOCK_N))


@triton.jit(do_not_specialize=["copy_stride"])
def _decode_attention_fp8_kernel(
    q, keys, values, slots, meta, lane_ptr, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
    q_stride, scale_log2, copy_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, WITH_LSE: tl.constexpr, EARLY: tl.constexpr, LOG_FACTOR: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """See `decode_attention`.

    keys, values: int32, four numbers each.
    copy_stride: 0. Lanes with the same positions load their slots for themselves; a stride that is known only at run
        time keeps the compiler from distributing the load over the lanes and exchanging the slots.
    """
    kv_head = tl.program_id(0)
    lane = tl.program_id(1)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    first = tl.load(lane_ptr + lane)
    last = tl.load(lane_ptr + lane + 1)
    dtype: tl.constexpr = q.dtype.element_ty
    PIECES: tl.constexpr = DIM // 64
    WORDS: tl.constexpr = 4 if DIM >= 128 else DIM // 32
    SIZE: tl.constexpr = KV_HEADS * DIM // 4
    EACH: tl.constexpr = BLOCK_N // 8
    if first < last:
        h = tl.arange(0, BLOCK_H)
        n = tl.arange(0, BLOCK_N)
        d = tl.arange(0, DIM)
        # Lanes [t, g] of the tensor cores' tiles: g is a row of theirs, t has some of the columns.
        t = tl.arange(0, 4)
        g = tl.arange(0, 8)
        e = tl.arange(0, EACH)
        head = kv_head * GROUP + h
        valid = h < GROUP
        # The dimension of each row of a product with values, and the position of each row of one with keys.
        row_dim = d // (32 * WORDS) * (32 * WORDS) + d % 8 * (4 * WORDS) + d // 8 % (4 * WORDS)
        position = n % 8 * EACH + n // 8 % 2 * (EACH // 2) + n // 16
        key_slots = slots + (
            (t * (copy_stride * 4))[:, None, None] + (g * EACH)[None, :, None] + e[None, None, :]
        )  # fmt: skip
        value_slots = slots + (
            (g * (copy_stride * 4))[None, :, None] + (t % 2 * (4 * EACH) + t // 2 * (EACH // 2))[:, None, None]
            + (e // (EACH // 2) * (2 * EACH) + e % (EACH // 2))[None, None, :]
        )  # fmt: skip
        in_keys = keys + kv_head * (DIM // 4)
        in_values = values + kv_head * (DIM // 4)
        key_part = (t * 4)[:, None]
        value_part = (g * WORDS)[None, :]
        # Columns past the last head repeat a head, so that their loads need no mask.
        heads = (tl.arange(0, BLOCK_H // 8) * 8)[None, None, :, None, None, None] + g[None, :, None, None, None, None]
        heads = kv_head * GROUP + heads % GROUP

        entry = tl.load(meta + first)
        first_row = entry >> ROW_SHIFT
        row = first_row
        began_before = tl.load(first_lane + row) != lane
        joins = began_before  # whether the part that is being computed is not the row's first
        queries = _queries(q, row, q_stride, heads, DIM, BLOCK_H, PIECES, dtype, LOG_FACTOR)
        peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_H], tl.float32)
        acc = tl.zeros([DIM, BLOCK_H], tl.float32)
        key_slot = tl.load(key_slots + first * BLOCK_N)
        value_slot = tl.load(value_slots + first * BLOCK_N)
        other_slot = tl.load(value_slots + (first * BLOCK_N + EACH))
        key_words = _load_words(in_keys, key_slot, key_part, SIZE, PIECES, 4, 16)
        value_words = _load_words(in_values, value_slot, value_part, SIZE, DIM // 32 // WORDS, WORDS, 8 * WORDS)
        other_words = _load_words(in_values, other_slot, value_part, SIZE, DIM // 32 // WORDS, WORDS, 8 * WORDS)
        goes_on = True
        for block in tl.range(first, last):
            # The words of the next block are on their way while this one is multiplied.
            following = tl.minimum(block + 1, last - 1) * BLOCK_N
            key_slot = tl.load(key_slots + following)
            value_slot = tl.load(value_slots + following)
            other_slot = tl.load(value_slots + (following + EACH))
            next_entry = tl.load(meta + block + 1)
            scores = tl.dot(_keys(key_words, dtype, BLOCK_N, DIM, PIECES), queries) * scale_log2
            key_words = _load_words(in_keys, key_slot, key_part, SIZE, PIECES, 4, 16)
            scores = tl.where((position < (entry & 255))[:, None], scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 0))
            shrink = tl.exp2(peak - new_peak)
            p = tl.exp2(scores - (new_peak - LOG_FACTOR)[None, :])
            total = total * shrink + tl.sum(p, 0)
            acc = tl.dot(_values(value_words, other_words, dtype, BLOCK_N, DIM), p.to(dtype), acc * shrink[None, :])
            value_words = _load_words(in_values, value_slot, value_part, SIZE, DIM // 32 // WORDS, WORDS, 8 * WORDS)
            other_words = _load_words(in_values, other_slot, value_part, SIZE, DIM // 32 // WORDS, WORDS, 8 * WORDS)
            peak = new_peak

            next_row = next_entry >> ROW_SHIFT
            goes_on = next_row == row
            if next_row != row:
                result = acc * (UNIT / total)[None, :]
                lse = peak + tl.log2(total) - LOG_FACTOR
                # The last part of a row that began in an earlier lane.
                part_at = (2 * lane) * HEADS + head
                tl.store(partial + part_at[None, :] * DIM + row_dim[:, None], result, mask=valid[None, :] & joins)
                tl.store(partial_lse + part_at, lse, mask=valid & joins)
                whole = valid & (joins == 0)
                out_at = row.to(tl.int64) * HEADS + head
                tl.store(out + out_at[None, :] * DIM + row_dim[:, None], result.to(dtype), mask=whole[None, :])
                if WITH_LSE:
                    tl.store(out_lse + out_at, lse, mask=whole)
                joins = joins & False  # a tensor still, as the loop carries one
                peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
                total = tl.zeros([BLOCK_H], tl.float32)
                acc = tl.zeros([DIM, BLOCK_H], tl.float32)
                queries = _queries(q, tl.maximum(next_row, 0), q_stride, heads, DIM, BLOCK_H, PIECES, dtype, LOG_FACTOR)
            row = next_row
            entry = next_entry

        if goes_on:
            part_at = (2 * lane + 1) * HEADS + head
            result = acc * (UNIT / total)[None, :]
            tl.store(partial + part_at[None, :] * DIM + row_dim[:, None], result, mask=valid[None, :])
            tl.store(partial_lse + part_at, peak + tl.log2(total) - LOG_FACTOR, mask=valid)
            _merge_parts(
                row, lane, kv_head, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
                HEADS, KV_HEADS, GROUP, DIM, BLOCK_H, WITH_LSE,
            )  # fmt: skip
        if began_before & ((goes_on == 0) | (row != first_row)):
            _merge_parts(
                first_row, lane, kv_head, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
                HEADS, KV_HEADS, GROUP, DIM, BLOCK_H, WITH_LSE,
            )  # fmt: skip


def decode_attention_fp8(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, meta: torch.Tensor,
    lane_ptr: torch.Tensor, first_lane: torch.Tensor, last_lane: torch.Tensor, partial: torch.Tensor,
    partial_lse: torch.Tensor, arrived: torch.Tensor, out: torch.Tensor, out_lse: torch.Tensor | None, *, scale: float,
    block: int, early: bool = False,
) -> None:  # fmt: skip
    """Attend each row's one query to its keys, as `decode_attention`.

    Args:
        q: [B, heads, dim] in bfloat16 or float16, dim a multiple of 64; heads and dims of a row lie together.
        keys, values: float8_e4m3fn [slots, kv_heads, dim], contiguous.
        block: as planned, a multiple of 16.
    """
    heads, dim, kv_heads = q.shape[1], q.shape[2], keys.shape[1]
    group = heads // kv_heads
    wide = q.dtype == torch.bfloat16
    log_factor, unit = (LOG_FACTOR_BFLOAT16, UNIT_BFLOAT16.value) if wide else (0, UNIT_FLOAT16.value)
    _decode_attention_fp8_kernel[(kv_heads, lane_ptr.shape[0] - 1)](
        q, keys.view(torch.int32), values.view(torch.int32), slots, meta, lane_ptr, first_lane, last_lane, partial,
        partial_lse, arrived, out, partial_lse if out_lse is None else out_lse, q.stride(0),
        scale * 1.4426950408889634 * unit / 2.0**log_factor, 0,
        HEADS=heads, KV_HEADS=kv_heads, GROUP=group, DIM=dim, BLOCK_H=max(8, triton.next_power_of_2(group)),
        BLOCK_N=block, WITH_LSE=out_lse is not None, EARLY=early, LOG_FACTOR=log_factor, UNIT=unit,
        num_warps=1, launch_pdl=early,
    )  # fmt: skip
