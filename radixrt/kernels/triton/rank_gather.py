"""The columns of a matrix that each rank of one machine has a part of, on every rank, in one launch."""

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

BLOCK = tl.constexpr(2048)
"""Columns of one program: 16 bytes of float32 for each of 512 threads."""


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Of the memory that each rank needs: its part, and two flags of each rank."""
    return part_bytes + 2 * ranks * int(FLAG_BYTES.value)


@triton.jit(do_not_specialize=["rows"])
def _gather_kernel(
    out, addresses, turns, rows, each, columns, FLAGS_AT: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """out [rows, columns]; each rank has `each` columns, of which the last rank's may be padding."""
    turn = load_turn(turns)
    if tl.program_id(0) == 0:
        tell_all(addresses, FLAGS_AT + RANK * FLAG_BYTES, turn, RANK, RANKS)
    wait_for_all(addresses, FLAGS_AT, FLAG_BYTES, turn, RANK, RANKS)
    blocks = tl.cdiv(each, BLOCK)
    block = tl.program_id(0) % blocks
    row = ((tl.program_id(0) // blocks) % rows).to(tl.int64)
    # Each rank begins with another one's part, so that no two read from the same.
    source = (tl.program_id(0) // (blocks * rows) + RANK) % RANKS
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.minimum(each, columns - source * each)
    part = at_address(addresses + source, 0, tl.pointer_type(out.dtype.element_ty))
    values = tl.load(part + row * each + at, mask=inside, other=0.0, cache_modifier=".cg")
    tl.store(out + row * columns + source * each + at, values, mask=inside)
    if is_last(turns, "acq_rel"):
        # Nobody writes the next part before all have read this one.
        tell_all(addresses, FLAGS_AT + (RANKS + RANK) * FLAG_BYTES, turn, RANK, RANKS)
        wait_for_all(addresses, FLAGS_AT + RANKS * FLAG_BYTES, FLAG_BYTES, turn, RANK, RANKS)
        tl.store(turns, turn + 1)


def gather_columns(memory: RankMemory, each: int, out: torch.Tensor) -> torch.Tensor:
    """Fill out [S, columns] with the ranks' parts side by side; returns it.

    Args:
        memory: this rank's part [S, each], of out's dtype, has been written to its beginning on the same stream.
        each: columns of a part; what is behind `columns`, all parts side by side, is padding.
    """
    rows, columns = out.shape
    programs = memory.ranks * rows * triton.cdiv(each, BLOCK.value)
    _gather_kernel[(programs,)](
        out, memory.addresses, memory.turn, rows, each, columns, memory.part_bytes, memory.rank, memory.ranks,
        num_warps=16,
    )  # fmt: skip
    return out
