"""All-gather, between GPUs of one machine, of a matrix whose columns are sharded, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.symmetric_memory import (
    FLAG_BYTES,
    SymmetricMemory,
    at_address,
    is_last,
    load_epoch,
    signal_all,
    wait_for_all,
)

BLOCK = tl.constexpr(2048)
"""Columns per program: 16 bytes of float32 for each of 512 threads."""


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Bytes of symmetric memory on each rank: its shard, and two flags of each rank."""
    return part_bytes + 2 * ranks * int(FLAG_BYTES.value)


@triton.jit(do_not_specialize=["rows"])
def _gather_kernel(
    out, addresses, turns, rows, each, columns, FLAGS_AT: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Fill out [rows, columns]; each rank has `each` columns, of which the last rank's may be padding."""
    turn = load_epoch(turns)
    if tl.program_id(0) == 0:
        signal_all(addresses, FLAGS_AT + RANK * FLAG_BYTES, turn, RANK, RANKS)
    wait_for_all(addresses, FLAGS_AT, FLAG_BYTES, turn, RANK, RANKS)
    blocks = tl.cdiv(each, BLOCK)
    block = tl.program_id(0) % blocks
    row = ((tl.program_id(0) // blocks) % rows).to(tl.int64)
    # Each rank begins with another rank's shard, so that no two ranks read from the same one.
    source = (tl.program_id(0) // (blocks * rows) + RANK) % RANKS
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.minimum(each, columns - source * each)
    part = at_address(addresses + source, 0, tl.pointer_type(out.dtype.element_ty))
    values = tl.load(part + row * each + at, mask=inside, other=0.0, cache_modifier=".cg")
    tl.store(out + row * columns + source * each + at, values, mask=inside)
    if is_last(turns, "acq_rel"):
        # No rank writes its next shard before all have read this one.
        signal_all(addresses, FLAGS_AT + (RANKS + RANK) * FLAG_BYTES, turn, RANK, RANKS)
        wait_for_all(addresses, FLAGS_AT + RANKS * FLAG_BYTES, FLAG_BYTES, turn, RANK, RANKS)
        tl.store(turns, turn + 1)


def all_gather_columns(memory: SymmetricMemory, each: int, out: torch.Tensor) -> torch.Tensor:
    """Fill out [S, columns] with the ranks' shards, concatenated along columns, and return it.

    Args:
        memory: this rank's shard [S, each], of out's dtype, has been written to its beginning on the same stream.
        each: columns of a shard; the concatenated columns behind `columns` are padding.
    """
    rows, columns = out.shape
    programs = memory.ranks * rows * triton.cdiv(each, BLOCK.value)
    _gather_kernel[(programs,)](
        out, memory.addresses, memory.epoch, rows, each, columns, memory.part_bytes, memory.rank, memory.ranks,
        num_warps=16,
    )  # fmt: skip
    return out
