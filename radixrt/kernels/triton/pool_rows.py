"""Gather of KV slots into rows, and scatter of rows into slots: all layers in one launch, bytes as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

ALIGN_BYTES = 16
"""Alignment for the largest access of a thread."""
BLOCK_BYTES = 2048
"""Bytes that a program copies at a time: 16 for each of 128 threads."""


class PoolTensors:
    """Tensors of a KV pool, which together have one row for each slot.

    Args:
        tensors: [slots, ...] each, contiguous, on one device; a row is the concatenation of all tensors' bytes of a
            slot. The tensors must not be moved or freed before the last launch.

    Attributes:
        row_bytes: bytes of a row.
        table: int64 [3, tensors]: address, offset in a row, and bytes of a slot, of each tensor.
        is_aligned: all numbers of the table are multiples of ALIGN_BYTES.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sizes = [tensor[0].nbytes for tensor in tensors]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        addresses = [tensor.data_ptr() for tensor in tensors]
        self.row_bytes = sum(sizes)
        self.is_aligned = all(number % ALIGN_BYTES == 0 for number in (*addresses, *sizes))
        self.table = torch.tensor([addresses, offsets, sizes], dtype=torch.int64).to(tensors[0].device)


@triton.jit
def _move_rows_kernel(
    table, slots, rows, tensors, row_bytes, WORD: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr,
    GATHER: tl.constexpr,
):  # fmt: skip
    """Copy one slot of one tensor.

    Args:
        WORD: bytes of a word, 4 or 1.
        ALIGN: multiple in words of every size.
        BLOCK: words that are copied at a time.
    """
    TYPE: tl.constexpr = tl.pointer_type(tl.int32 if WORD == 4 else tl.int8)
    token = (tl.program_id(0) // tensors).to(tl.int64)
    tensor = tl.program_id(0) % tensors
    size = tl.load(table + 2 * tensors + tensor)
    slot = tl.load(slots + token).to(tl.int64)
    pool = tl.multiple_of((tl.load(table + tensor) + slot * size).to(TYPE), ALIGN * WORD)
    offset = tl.load(table + tensors + tensor) + token * row_bytes
    row = tl.multiple_of((rows + offset).to(TYPE), ALIGN * WORD)
    words = tl.multiple_of((size // WORD).to(tl.int32), ALIGN)
    for begin in range(0, words, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < words
        if GATHER:
            tl.store(row + at, tl.load(pool + at, mask=inside, other=0), mask=inside)
        else:
            tl.store(pool + at, tl.load(row + at, mask=inside, other=0), mask=inside)


def _move_rows(pool: PoolTensors, slots: torch.Tensor, rows: torch.Tensor, *, gather: bool) -> None:
    tensors = pool.table.shape[1]
    if not len(slots):
        return
    word, align = (4, ALIGN_BYTES // 4) if pool.is_aligned and rows.data_ptr() % ALIGN_BYTES == 0 else (1, 1)
    _move_rows_kernel[(len(slots) * tensors,)](
        pool.table, slots, rows, tensors, pool.row_bytes, word, align, BLOCK_BYTES // word, gather, num_warps=4
    )


def gather_rows(pool: PoolTensors, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Set rows[i] to the bytes of slots[i] in all tensors.

    Args:
        slots: int [N].
        rows: uint8 [N, row_bytes], contiguous.
    """
    _move_rows(pool, slots, rows, gather=True)


def scatter_rows(pool: PoolTensors, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write the bytes of rows[i] into slots[i] of all tensors; the reverse of `gather_rows`. Slots must be distinct."""
    _move_rows(pool, slots, rows, gather=False)
