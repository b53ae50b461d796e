"""Decode attention over rows of any lengths: every processor reads the same number of keys, whatever their rows.

The rows' keys are cut into blocks, which form one list. A fixed number of lanes divide the list evenly, so a row may
begin in one lane and end in another. A lane processes its blocks in one loop, which loads keys and values of later
blocks ahead, also across the ends of rows. If several lanes have a part of a row, the lane that finishes last merges
the parts, in their order. The softmax is FlashAttention's online softmax (Dao et al. 2022, arXiv 2205.14135); the even
division of work is that of Stream-K (Osama et al. 2023, arXiv 2301.03598).

`radixrt.attention.decode_runner` computes the numbers that the kernel reads. `decode_attention_fp8` has the same kernel
for keys and values in float8.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROW_SHIFT: tl.constexpr = tl.constexpr(8)
"""A block's entry in `meta` is its row times 256 plus how many of its positions are the row's."""

LIST_POSITIONS = 1024
LIST_SPLITS = 8
"""Positions that a program of the list kernel takes at once, and programs for each row."""


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "starts", "ends", "block_ptr"])
def _decode_list_kernel(
    table, stride, rows, starts, ends, block_ptr, num_rows, slots, meta,
    BLOCK_N: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    row = tl.load(rows + i).to(tl.int64)
    start = tl.load(starts + i).to(tl.int32)
    length = tl.load(ends + i).to(tl.int32) - start
    first = tl.load(block_ptr + i)
    last = tl.load(block_ptr + i + 1)
    BLOCKS: tl.constexpr = POSITIONS // BLOCK_N
    source = table + row * stride + start
    target = slots + first.to(tl.int64) * BLOCK_N
    size = (last - first) * BLOCK_N
    for begin in range(tl.program_id(1) * POSITIONS, size, POSITIONS * tl.num_programs(1)):
        at = begin + tl.arange(0, POSITIONS)
        # Padding reads slot 0, which holds numbers; its scores are masked.
        slot = tl.load(source + at, mask=at < length, other=0)
        tl.store(target + at, slot, mask=at < size)
        block = begin // BLOCK_N + tl.arange(0, BLOCKS)
        valid = tl.minimum(length - block * BLOCK_N, BLOCK_N)
        tl.store(meta + first + block, (i << ROW_SHIFT) + valid, mask=first + block < last)
    if (i == num_rows - 1) & (tl.program_id(1) == 0):
        tl.store(meta + last, -1)


@triton.jit
def _merge_parts(
    row, lane, kv_head, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr,
    WITH_LSE: tl.constexpr,
):  # fmt: skip
    """Count this lane's part of the row as finished; the lane that completes the count merges all parts."""
    begin = tl.load(first_lane + row)
    end = tl.load(last_lane + row)
    counter = arrived + row * KV_HEADS + kv_head
    tl.debug_barrier()  # all of this program's part is written before it is counted
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    if before == end - begin:
        tl.store(counter, 0)
        m = tl.arange(0, BLOCK_H)
        d = tl.arange(0, DIM)
        head = kv_head * GROUP + m
        valid = m < GROUP
        peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_H], tl.float32)
        acc = tl.zeros([BLOCK_H, DIM], tl.float32)
        for other in range(begin, end + 1):
            part = 2 * other + tl.where(other < end, 1, 0)
            at = part * HEADS + head
            lse = tl.load(partial_lse + at, mask=valid, other=0.0, cache_modifier=".cg")
            piece = tl.load(
                partial + at[:, None] * DIM + d[None, :], mask=valid[:, None], other=0.0, cache_modifier=".cg"
            )
            new_peak = tl.maximum(peak, lse)
            shrink = tl.exp2(peak - new_peak)
            weight = tl.exp2(lse - new_peak)
            acc = acc * shrink[:, None] + piece * weight[:, None]
            total = total * shrink + weight
            peak = new_peak
        at = row.to(tl.int64) * HEADS + head
        result = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * DIM + d[None, :], result, mask=valid[:, None])
        if WITH_LSE:
            tl.store(out_lse + at, peak + tl.log2(total), mask=valid)


@triton.jit
def _decode_attention_kernel(
    q, keys, values, slots, meta, lane_ptr, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
    q_stride, scale_log2,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, WITH_LSE: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    lane = tl.program_id(1)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    first = tl.load(lane_ptr + lane)
    last = tl.load(lane_ptr + lane + 1)
    if first < last:
        m = tl.arange(0, BLOCK_H)
        n = tl.arange(0, BLOCK_N)
        d = tl.arange(0, DIM)
        head = kv_head * GROUP + m
        valid = m < GROUP
        entry = tl.load(meta + first)
        first_row = entry >> ROW_SHIFT
        row = first_row
        began_before = tl.load(first_lane + row) != lane
        joins = began_before  # whether the part that is being computed is not the row's first
        q_at = head[:, None] * DIM + d[None, :]
        queries = tl.load(q + row.to(tl.int64) * q_stride + q_at, mask=valid[:, None], other=0.0)
        peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_H], tl.float32)
        acc = tl.zeros([BLOCK_H, DIM], tl.float32)
        goes_on = True
        for block in tl.range(first, last, num_stages=STAGES):
            slot = tl.load(slots + block * BLOCK_N + n).to(tl.int64)
            at = slot * (KV_HEADS * DIM) + kv_head * DIM
            k = tl.load(keys + at[:, None] + d[None, :])
            next_entry = tl.load(meta + block + 1)
            scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale_log2
            scores = tl.where((n < (entry & 255))[None, :], scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            shrink = tl.exp2(peak - new_peak)
            p = tl.exp2(scores - new_peak[:, None])
            total = total * shrink + tl.sum(p, 1)
            v = tl.load(values + at[:, None] + d[None, :])
            acc = tl.dot(p.to(queries.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
            peak = new_peak

            next_row = next_entry >> ROW_SHIFT
            goes_on = next_row == row
            if next_row != row:
                result = acc / total[:, None]
                # The last part of a row that began in an earlier lane.
                part_at = (2 * lane) * HEADS + head
                tl.store(partial + part_at[:, None] * DIM + d[None, :], result, mask=valid[:, None] & joins)
                tl.store(partial_lse + part_at, peak + tl.log2(total), mask=valid & joins)
                whole = valid & (joins == 0)
                out_at = row.to(tl.int64) * HEADS + head
                tl.store(out + out_at[:, None] * DIM + d[None, :], result.to(out.dtype.element_ty), mask=whole[:, None])
                if WITH_LSE:
                    tl.store(out_lse + out_at, peak + tl.log2(total), mask=whole)
                joins = joins & False  # a tensor still, as the loop carries one
                peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
                total = tl.zeros([BLOCK_H], tl.float32)
                acc = tl.zeros([BLOCK_H, DIM], tl.float32)
                queries = tl.load(
                    q + next_row.to(tl.int64) * q_stride + q_at, mask=valid[:, None] & (next_row >= 0), other=0.0
                )
            row = next_row
            entry = next_entry

        if goes_on:
            part_at = (2 * lane + 1) * HEADS + head
            result = acc / total[:, None]
            tl.store(partial + part_at[:, None] * DIM + d[None, :], result, mask=valid[:, None])
            tl.store(partial_lse + part_at, peak + tl.log2(total), mask=valid)
            _merge_parts(
                row, lane, kv_head, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
                HEADS, KV_HEADS, GROUP, DIM, BLOCK_H, WITH_LSE,
            )  # fmt: skip
        if began_before & ((goes_on == 0) | (row != first_row)):
            _merge_parts(
                first_row, lane, kv_head, first_lane, last_lane, partial, partial_lse, arrived, out, out_lse,
                HEADS, KV_HEADS, GROUP, DIM, BLOCK_H, WITH_LSE,
            )  # fmt: skip


def write_decode_list(
    table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, block_ptr: torch.Tensor,
    block: int, slots: torch.Tensor, meta: torch.Tensor,
) -> None:  # fmt: skip
    """List the slots of each row's positions [starts[i], ends[i]), padded to whole blocks with slot 0.

    Args:
        table: int32 [max_requests + 1, max_context_len], req_to_token.
        rows: int [B], rows of the table.
        starts, ends: int [B], ends[i] > starts[i].
        block_ptr: int32 [B + 1], of the `DecodePlan`.
        block: positions of a block.
        slots: int32 [at least block_ptr[B] * block], written; the rest is unchanged.
        meta: int32 [at least block_ptr[B] + 1], written: the row of each block, and how many of its positions are
        valid.
    """
    _decode_list_kernel[(rows.shape[0], LIST_SPLITS)](
        table, table.stride(0), rows, starts, ends, block_ptr, rows.shape[0], slots, meta,
        BLOCK_N=block, POSITIONS=LIST_POSITIONS,
    )  # fmt: skip


def decode_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, meta: torch.Tensor,
    lane_ptr: torch.Tensor, first_lane: torch.Tensor, last_lane: torch.Tensor, partial: torch.Tensor,
    partial_lse: torch.Tensor, arrived: torch.Tensor, out: torch.Tensor, out_lse: torch.Tensor | None, *, scale: float,
    block: int, num_warps: int = 1, num_stages: int = 3, early: bool = False,
) -> None:  # fmt: skip
    """Attend each row's one query to its keys.

    Args:
        q: [B, heads, dim]; heads and dims of a row lie together.
        keys, values: [slots, kv_heads, dim], contiguous, in q's dtype.
        slots, meta: as `write_decode_list` left them.
        lane_ptr, first_lane, last_lane: int32, the `DecodePlan`'s, on the device.
        partial: float32 [2 * lanes, heads, dim], scratch.
        partial_lse: float32 [2 * lanes, heads], scratch.
        arrived: int32 [at least B * kv_heads], zeros before the first call, and after each.
        out: [B, heads, dim], contiguous, written.
        out_lse: float32 [B, heads], written: log2 of the sum of the exponentials of the scores; None: not wanted.
        scale: of the scores.
        block: as planned.
        early: see `CudaOps`.
    """
    heads, dim, kv_heads = q.shape[1], q.shape[2], keys.shape[1]
    group = heads // kv_heads
    _decode_attention_kernel[(kv_heads, lane_ptr.shape[0] - 1)](
        q, keys, values, slots, meta, lane_ptr, first_lane, last_lane, partial, partial_lse, arrived, out,
        partial_lse if out_lse is None else out_lse, q.stride(0), scale * 1.4426950408889634,
        HEADS=heads, KV_HEADS=kv_heads, GROUP=group, DIM=dim, BLOCK_H=max(16, triton.next_power_of_2(group)),
        BLOCK_N=block, STAGES=num_stages, WITH_LSE=out_lse is not None, EARLY=early,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=num_warps, launch_pdl=early,
    )  # fmt: skip
