"""`sampling.fused_sample` from logits whose columns are sharded over the GPUs of one machine, on every rank.

Each rank sums chunks of its own shard and sends the sums, a few numbers, to all others. Then each rank combines a row's
chunk sums, and reads the chunk in which the draw falls from its owner's memory. All ranks compute the same from the
same numbers, so all choose the same token, and neither logits nor tokens are communicated.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.sampling import (
    CHUNK,
    CHUNK_WARPS,
    MIN_CHUNKS,
    ROW_WARPS,
    SampleWorkspace,
    chunk_sums,
    draw_chunk,
    draw_token,
)
from radixrt.kernels.triton.symmetric_memory import (
    FLAG_BYTES,
    SymmetricMemory,
    at_address,
    is_last,
    load_epoch,
    signal_all,
    wait_for_all,
)

MAX_ROWS = tl.constexpr(1024)
"""Each row has flags of its own."""

MAX_CHUNKS = tl.constexpr(1 << 16)
"""Chunks of all rows on all ranks."""

ARRAY_BYTES = tl.constexpr(MAX_CHUNKS.value * 4)
"""Bytes of one of the three numbers of all chunks."""


def memory_bytes(ranks: int) -> int:
    """Bytes of symmetric memory on each rank: twice three numbers per chunk and one flag per rank and row."""
    return int(6 * ARRAY_BYTES.value + 2 * ranks * MAX_ROWS.value * FLAG_BYTES.value)


@triton.jit
def _meet_at_row(addresses, turns, turn, flags_at, row, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Wait until every rank has reached a row in this epoch; everything it wrote before is visible then.

    Args:
        flags_at: byte offset of the flags: two halves, in each of them one flag per rank and row.

    Returns:
        True if this is the last program that has read the epoch, and must set the next one at its end.
    """
    flags = flags_at + ((turn % 2) * RANKS * MAX_ROWS + row) * FLAG_BYTES
    signal_all(addresses, flags + RANK * MAX_ROWS * FLAG_BYTES, turn, RANK, RANKS)
    last = is_last(turns, "relaxed")  # counted here, the atomic costs no extra time
    wait_for_all(addresses, flags, MAX_ROWS * FLAG_BYTES, turn, RANK, RANKS)
    return last


@triton.jit
def _chunk_kernel(
    part, temperatures, addresses, turns, each, columns, RANK: tl.constexpr, RANKS: tl.constexpr
):  # fmt: skip
    """Sum one chunk of this rank's shard [rows, each], of which `columns` are tokens, and send its numbers to all
    ranks."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    chunks = tl.num_programs(1)
    half = load_epoch(turns) % 2
    best, total, first = chunk_sums(part + row.to(tl.int64) * each, chunk, columns, tl.load(temperatures + row))
    at = row * chunks * RANKS + RANK * chunks + chunk
    for further in tl.static_range(RANKS):
        there = addresses + (RANK + further) % RANKS
        numbers = half * (3 * ARRAY_BYTES)
        tl.store(at_address(there, numbers, tl.pointer_type(tl.float32)) + at, best)
        tl.store(at_address(there, numbers + ARRAY_BYTES, tl.pointer_type(tl.float32)) + at, total)
        tl.store(at_address(there, numbers + 2 * ARRAY_BYTES, tl.pointer_type(tl.int32)) + at, RANK * each + first)


@triton.jit
def _row_kernel(
    parts, temperatures, uniforms, addresses, turns, token_ids, best_out, each, vocab,
    RANK: tl.constexpr, RANKS: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Draw one row's token from CHUNKS chunks of each rank. `parts` holds the addresses of the ranks' shards."""
    row = tl.program_id(0)
    turn = load_epoch(turns)
    last = _meet_at_row(addresses, turns, turn, 6 * ARRAY_BYTES, row, RANK, RANKS)
    index = tl.arange(0, PADDED)
    inside = index < RANKS * CHUNKS
    numbers = (turn % 2) * (3 * ARRAY_BYTES)
    here = addresses + RANK
    at = row * RANKS * CHUNKS + index
    # L1 may still hold the values of two epochs ago.
    bests = at_address(here, numbers, tl.pointer_type(tl.float32))
    bests = tl.load(bests + at, mask=inside, other=float("-inf"), cache_modifier=".cg")
    sums = at_address(here, numbers + ARRAY_BYTES, tl.pointer_type(tl.float32))
    sums = tl.load(sums + at, mask=inside, other=0.0, cache_modifier=".cg")
    ids = at_address(here, numbers + 2 * ARRAY_BYTES, tl.pointer_type(tl.int32))
    ids = tl.load(ids + at, mask=inside, other=0, cache_modifier=".cg")
    temperature = tl.load(temperatures + row)
    token, best, finite, chunk, within = draw_chunk(bests, sums, ids, temperature, tl.load(uniforms + row), PADDED)
    if finite & (temperature > 0.0):
        owner = chunk // CHUNKS
        first = (chunk % CHUNKS) * CHUNK
        start = at_address(parts + owner, 0, tl.pointer_type(tl.float32)) + row.to(tl.int64) * each
        columns = tl.minimum(each, vocab - owner * each)
        token = owner * each + draw_token(start, first, columns, best, temperature, within)
    tl.store(token_ids + row, tl.where(finite, token, 0).to(tl.int64))
    tl.store(best_out + row, best)
    if last:
        tl.store(turns, turn + 1)


def supports(rows: int, each: int, ranks: int) -> bool:
    """Return True if so many rows, of shards of `each` columns, fit into the memory."""
    return bool(0 < rows <= MAX_ROWS.value and rows * ranks * triton.cdiv(each, CHUNK.value) <= MAX_CHUNKS.value)


def fused_sample(
    memory: SymmetricMemory, parts: torch.Tensor, part: torch.Tensor, vocab: int, temperature: torch.Tensor,
    u: torch.Tensor, out: SampleWorkspace,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As `sampling.fused_sample`; all ranks call it in the same order, with the same arguments but for the shard.

    No rank may overwrite its shard before all ranks have read it. An all-reduce between two calls ensures that: a rank
    that has all addends of a later all-reduce knows that the other ranks' draws before it are done.

    Args:
        memory: of `memory_bytes`.
        parts: int64 [ranks], where this process maps each rank's shard.
        part: float32 [S, each], this rank's shard.
        vocab: columns of all shards together; the columns behind them are padding.
    """
    rows, each = part.shape
    chunks = triton.cdiv(each, CHUNK.value)
    columns = max(0, min(each, vocab - memory.rank * each))
    _chunk_kernel[(rows, chunks)](
        part, temperature, memory.addresses, memory.epoch, each, columns, memory.rank, memory.ranks,
        num_warps=CHUNK_WARPS,
    )  # fmt: skip
    padded = max(MIN_CHUNKS, triton.next_power_of_2(chunks * memory.ranks))
    _row_kernel[(rows,)](
        parts, temperature, u, memory.addresses, memory.epoch, out.token_ids, out.best, each, vocab, memory.rank,
        memory.ranks, chunks, padded, num_warps=ROW_WARPS,
    )  # fmt: skip
    return out.token_ids[:rows], out.best[:rows]
