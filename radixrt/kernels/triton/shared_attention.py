"""Decode attention of many rows over positions that they share: keys and values are read once for a tile of rows.

FlashAttention's online softmax (Dao et al. 2022, arXiv 2205.14135) over slots gathered through req_to_token. The work
is cut into items on the host (`radixrt.attention.cascade`); a fixed number of programs, each with its own list of
them, does all, so the launch is the same whatever the step shares and can be part of a CUDA graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

STAGES = 5
"""Pipeline stages of the loop over a range's positions. Their slots are loaded before their keys can be, so this many
make two buffers of keys and values, of which one is filled while the other is read; three make one, which takes a third
longer."""


def block_n(dim: int, itemsize: int) -> int:
    """Return the number of positions that are read at once: so many that a tile of 128 queries, and keys and values in
    their buffers, fit into a processor's shared memory."""
    return 64 if dim * itemsize <= 256 else 32


@triton.jit(do_not_specialize=["num_rows"])
def _shared_attention_kernel(
    q, keys, values, table, lane_ptr, items, members, partial, partial_lse,
    num_rows, q_stride, table_stride, scale_log2,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0)
    kv_head = tl.program_id(1)
    first_item = tl.load(lane_ptr + lane)
    last_item = tl.load(lane_ptr + lane + 1)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, DIM)
    head = kv_head * GROUP + m % GROUP
    for index in range(first_item, last_item):
        item = items + index * 6
        table_row = tl.load(item)
        start = tl.load(item + 1)
        length = tl.load(item + 2)
        first_member = tl.load(item + 3)
        count = tl.load(item + 4)

        valid = m < count * GROUP
        member = members + 2 * (first_member + m // GROUP)
        row = tl.load(member, mask=valid, other=0).to(tl.int64)
        q_at = row * q_stride + head * DIM
        # A graph may be captured for fewer rows than the plan that still lies there has.
        present = valid & (row < num_rows)
        queries = tl.load(q + q_at[:, None] + d[None, :], mask=present[:, None], other=0.0)

        slots_at = table + table_row.to(tl.int64) * table_stride + start
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, DIM], tl.float32)
        for first in range(0, length, BLOCK_N):
            inside = first + n < length
            # Past the end the last position is repeated, and its scores are masked below.
            slot = tl.load(slots_at + tl.minimum(first + n, length - 1)).to(tl.int64)
            at = slot * (KV_HEADS * DIM) + kv_head * DIM
            k = tl.load(keys + at[:, None] + d[None, :]).to(queries.dtype)
            scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale_log2
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            shrink = tl.exp2(peak - new_peak)
            p = tl.exp2(scores - new_peak[:, None])
            total = total * shrink + tl.sum(p, 1)
            v = tl.load(values + at[:, None] + d[None, :]).to(queries.dtype)
            acc = tl.dot(p.to(queries.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
            peak = new_peak

        part = tl.load(member + 1, mask=valid, other=0).to(tl.int64)
        out_at = (part * HEADS + head) * DIM
        out = (acc / total[:, None]).to(partial.dtype.element_ty)
        tl.store(partial + out_at[:, None] + d[None, :], out, mask=valid[:, None])
        tl.store(partial_lse + part * HEADS + head, peak + tl.log2(total), mask=valid)


def shared_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, req_to_token: torch.Tensor, lane_ptr: torch.Tensor,
    items: torch.Tensor, members: torch.Tensor, partial: torch.Tensor, partial_lse: torch.Tensor, *, scale: float,
    lanes: int, block_m: int,
) -> None:  # fmt: skip
    """Compute the items of `radixrt.attention.cascade.CascadePlan`.

    Args:
        q: [B, heads, dim]; heads and dims of a row lie together.
        keys, values: [slots, kv_heads, dim], contiguous, in q's dtype or another that converts to it.
        req_to_token: int32 [rows, positions].
        lane_ptr, items, members: int32, the plan's, on the device.
        partial: [partials, heads, dim], written: each partial's output.
        partial_lse: float32 [partials, heads], written: log2 of the sum of the exponentials of its scores.
        scale: of the scores.
        lanes, block_m: as planned.
    """
    kv_heads, dim = keys.shape[1], keys.shape[2]
    exact = q.dtype == torch.float32
    _shared_attention_kernel[(lanes, kv_heads)](
        q, keys, values, req_to_token, lane_ptr, items, members, partial, partial_lse,
        q.shape[0], q.stride(0), req_to_token.stride(0), scale * 1.4426950408889634,
        HEADS=q.shape[1], KV_HEADS=kv_heads, GROUP=q.shape[1] // kv_heads, DIM=dim,
        BLOCK_M=block_m, BLOCK_N=block_n(dim, q.element_size()), PRECISION="ieee" if exact else "tf32",
        num_warps=8 if block_m > 64 else 4, num_stages=2 if exact else STAGES,
    )  # fmt: skip
