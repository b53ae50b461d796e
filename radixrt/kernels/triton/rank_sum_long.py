"""`rank_sum` for many rows, where what is sent counts: each row is added up by one rank, which hands the sum to all.

So a rank sends and gets each row twice at most, once as parts and once as a sum, however many ranks there are. One
launch does both, the residual sum and the norm; what is copied and computed on a GPU goes on beside what is on its way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.rank_memory import (
    FLAG_BYTES,
    RankMemory,
    at_address,
    is_last,
    load_turn,
    tell_all,
    wait_for_all,
)

MAX_BLOCKS = tl.constexpr(8192)
"""Of a launch: programs, each with a row of every rank's."""

ELEMENTS_PER_WARP = 512
MAX_WARPS = 16


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Of the memory that each rank needs: parts, sums, and two flags of each rank for each program."""
    return 2 * part_bytes + int(2 * ranks * MAX_BLOCKS.value * FLAG_BYTES.value)


@triton.jit(do_not_specialize=["rows"])
def _long_sum_kernel(
    residual, x, weight, out, addresses, turns, eps, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, PART_BYTES: tl.constexpr,
):  # fmt: skip
    """A program has the rows RANKS * program + rank, each of which that rank adds up."""
    block = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    dtype: tl.constexpr = x.dtype.element_ty
    part_type: tl.constexpr = tl.pointer_type(dtype)
    ROW_BYTES: tl.constexpr = SIZE * dtype.primitive_bitwidth // 8
    FLAGS_AT: tl.constexpr = 2 * PART_BYTES
    FLAGS: tl.constexpr = RANKS * MAX_BLOCKS * FLAG_BYTES
    inside = at < SIZE
    turn = load_turn(turns)
    here = addresses + RANK
    for further in tl.static_range(1, RANKS):  # to each rank from another one at a time
        other = (RANK + further) % RANKS
        row = block * RANKS + other
        in_rows = at < tl.where(row < rows, SIZE, 0)
        theirs = at_address(addresses + other, RANK * (PART_BYTES // RANKS) + block * ROW_BYTES, part_type)
        tl.store(theirs + at, tl.load(x + row * SIZE + at, mask=in_rows, other=0.0), mask=in_rows)
    tell_all(addresses, FLAGS_AT + (RANK * MAX_BLOCKS + block) * FLAG_BYTES, turn, RANK, RANKS)
    last = is_last(turns, "relaxed")
    wait_for_all(addresses, FLAGS_AT + block * FLAG_BYTES, MAX_BLOCKS * FLAG_BYTES, turn, RANK, RANKS)

    own_row = block * RANKS + RANK
    in_rows = at < tl.where(own_row < rows, SIZE, 0)
    summed = tl.zeros((BLOCK,), tl.float32)
    for other in tl.static_range(RANKS):  # in rank order, as where there are fewer rows
        if other == RANK:
            part = x + own_row * SIZE
        else:
            part = at_address(here, other * (PART_BYTES // RANKS) + block * ROW_BYTES, part_type)
        # L1 may still hold what was here a turn ago.
        summed += tl.load(part + at, mask=in_rows, other=0.0, cache_modifier=".cg").to(tl.float32)
    own = summed.to(dtype)
    for further in tl.static_range(1, RANKS):
        sums = at_address(addresses + (RANK + further) % RANKS, PART_BYTES + own_row * ROW_BYTES, part_type)
        tl.store(sums + at, own, mask=in_rows)
    tell_all(addresses, FLAGS_AT + FLAGS + (RANK * MAX_BLOCKS + block) * FLAG_BYTES, turn, RANK, RANKS)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_all(addresses, FLAGS_AT + FLAGS + block * FLAG_BYTES, MAX_BLOCKS * FLAG_BYTES, turn, RANK, RANKS)

    for other in tl.static_range(RANKS):
        row = block * RANKS + other
        in_rows = at < tl.where(row < rows, SIZE, 0)
        if other == RANK:
            added = own
        else:
            sums = at_address(here, PART_BYTES + row * ROW_BYTES, part_type)
            added = tl.load(sums + at, mask=in_rows, other=0.0, cache_modifier=".cg")
        total = tl.load(residual + row * SIZE + at, mask=in_rows, other=0.0).to(tl.float32) + added.to(tl.float32)
        rounded = total.to(residual.dtype.element_ty)
        tl.store(residual + row * SIZE + at, rounded, mask=in_rows)
        total = rounded.to(tl.float32)
        rms = tl.rsqrt(tl.sum(total * total, axis=0) / SIZE + eps)
        tl.store(out + row * SIZE + at, (total * rms * scale).to(out.dtype.element_ty), mask=in_rows)
    if last:
        tl.store(turns, turn + 1)


def rows_at_a_time(memory: RankMemory, x: torch.Tensor) -> int:
    """Of x [T, hidden], so many are added up by one launch; 0 where not even one of each rank's fits."""
    row_bytes = x.shape[1] * x.itemsize
    return memory.ranks * min(int(MAX_BLOCKS.value), memory.part_bytes // memory.ranks // row_bytes)


def sum_add_rms_norm(
    memory: RankMemory, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """`norm.add_rms_norm` of the sum of x [T, hidden] over the ranks; the sum is rounded to x's dtype.

    A part is written again only behind the whole launch of a rank that has got the sums in which it is, and a sum only
    behind parts that are sent when all sums before have been read; so one place for each is enough. That needs launches
    which do not begin before the one before them has ended.
    """
    rows, size = residual.shape
    out = torch.empty(rows, size, dtype=dtype, device=residual.device)
    block = triton.next_power_of_2(size)
    warps = min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP))
    step = rows_at_a_time(memory, x)
    for first in range(0, rows, step):
        now = slice(first, min(rows, first + step))
        count = now.stop - first
        _long_sum_kernel[(triton.cdiv(count, memory.ranks),)](
            residual[now], x[now], weight, out[now], memory.addresses, memory.turn, eps, count, size, block,
            memory.rank, memory.ranks, memory.part_bytes, num_warps=warps,
        )  # fmt: skip
    return out
