"""Memory that all ranks of one machine map, and how kernels reach it.

Programs of different ranks wait for each other. There may be more of them than a GPU holds at once, because it starts
them in the order of their numbers: the first that is not done has been started on every rank.
"""

# mypy: disable-error-code="assignment"
# A kernel's tuples grow while it is compiled.

from __future__ import annotations

import torch
import triton
import triton.language as tl

FLAG_BYTES = tl.constexpr(8)
ALIGN_BYTES = 16
"""Of what ranks write and read in each other's memory: the largest access of a thread."""

MARK_16 = tl.constexpr(-(1 << 15))
MARK_32 = tl.constexpr(-(1 << 31) + (1 << 15))
"""The same bytes in memory: where a number has yet to come. As floating-point numbers -0.0 and one too small to matter,
which are sent as 0."""


class RankMemory:
    """One rank's view. All ranks launch the same kernels over it in the same order, so all are in the same turn.

    Attributes:
        addresses: int64 [ranks], where this process finds each rank's memory, zeros at first.
        part_bytes: of the place for what one rank hands over.
        turn: int64 [2], of the kernel that comes next, and how many programs of this one are done.
    """

    def __init__(self, addresses: torch.Tensor, rank: int, part_bytes: int) -> None:
        self.addresses = addresses
        self.rank, self.ranks = rank, addresses.shape[0]
        self.part_bytes = part_bytes
        self.turn = torch.tensor([1, 0], dtype=torch.int64, device=addresses.device)


@triton.jit
def at_address(address, offset, TYPE: tl.constexpr):
    """The pointer, of that type, to an offset in bytes behind the address at a pointer; aligned, and known to be."""
    return tl.multiple_of((tl.load(address) + offset).to(TYPE), 16)


def mark(memory: torch.Tensor) -> None:
    """Fill memory with marks: uint8, of an even number of bytes."""
    memory.view(torch.int16).fill_(MARK_16.value)


@triton.jit
def is_mark(bits):
    """Whether nothing has come there yet; of int16 or int32, as wide as the numbers are."""
    MARK: tl.constexpr = MARK_16 if bits.dtype == tl.int16 else MARK_32
    return bits == MARK


@triton.jit
def leave_marks(places, mask):
    """Mark what has been read at pointers to bits."""
    MARK: tl.constexpr = MARK_16 if places.dtype.element_ty == tl.int16 else MARK_32
    tl.store(places, MARK, mask=mask)


@triton.jit
def load_turn(turns):
    """Which turn it is; L1 may still hold the one that a kernel read before this one's began."""
    return tl.load(turns, cache_modifier=".cg")


@triton.jit
def as_sent(values):
    """Numbers as the others get them, and their bits: nothing that looks like a mark."""
    BITS: tl.constexpr = tl.int16 if values.dtype.primitive_bitwidth == 16 else tl.int32
    bits = values.to(BITS, bitcast=True)
    bits = tl.where(is_mark(bits), 0, bits).to(BITS)
    return bits.to(values.dtype, bitcast=True), bits


@triton.jit
def half_of(turn, RANKS: tl.constexpr):
    """The first of the parts' places in this turn: turns take the two halves of the memory in turn."""
    return (turn % 2) * (RANKS - 1)


@triton.jit
def place_from(half, rank, other, RANKS: tl.constexpr, PART_BYTES: tl.constexpr):
    """Where in a rank's memory, in bytes, another one's part comes: the places are in the order of those behind it."""
    return (half + (other - rank - 1 + RANKS) % RANKS) * PART_BYTES


@triton.jit
def part_places(
    addresses, half, row, size, RANK: tl.constexpr, RANKS: tl.constexpr, PART_BYTES: tl.constexpr,
    TRIPS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Where the next `rank_sum` looks for this rank's part of some rows: see there.

    Args:
        half: of the turn.
        row: a tensor of row numbers.
        size: elements of a row.

    Returns:
        A tuple of pointers to the bits of each row's first element, beginning with another rank's for each rank; and
        of which rows this rank's part is sent.
    """
    TYPE: tl.constexpr = tl.pointer_type(tl.int16 if DTYPE.primitive_bitwidth == 16 else tl.int32)
    places = ()
    if TRIPS == 1:
        for further in tl.static_range(1, RANKS):
            other = (RANK + further) % RANKS
            place = place_from(half, other, RANK, RANKS, PART_BYTES)
            places += (at_address(addresses + other, place, TYPE) + row * size,)
        elsewhere = row >= 0
    else:
        owner = row % RANKS
        elsewhere = owner != RANK
        place = place_from(half, owner, RANK, RANKS, PART_BYTES)
        first = (tl.load(addresses + owner) + place).to(TYPE)
        if len(row.shape) == 2:
            first = tl.multiple_of(first, (16, 16))
        else:
            first = tl.multiple_of(first, 16)
        places += (first + row // RANKS * size,)
    return places, elsewhere


@triton.jit
def send_part(places, elsewhere, at, values, mask):
    """Store values at offsets behind `part_places`; returns them as the others get them."""
    values, bits = as_sent(values)
    for i in tl.static_range(len(places)):
        tl.store(places[i] + at, bits, mask=mask & elsewhere)
    return values


@triton.jit
def tell_all(addresses, flag, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Set a flag, so many bytes behind its beginning, in every other rank's memory to this turn.

    Who sees it there sees what all threads of this program have written before, anywhere.
    """
    tl.debug_barrier()  # one thread for each rank speaks for all
    ranks = tl.arange(0, RANKS)
    there = (tl.load(addresses + ranks) + flag).to(tl.pointer_type(tl.int64))
    tl.atomic_xchg(there, tl.zeros((RANKS,), tl.int64) + turn, mask=ranks != RANK, sem="release", scope="sys")


@triton.jit
def wait_for_all(addresses, flags, apart, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Wait until every other rank has set its flag in this rank's memory to this turn, or to a later one.

    Args:
        flags: where the first rank's is, in bytes behind the beginning.
        apart: bytes from one rank's to the next one's.
    """
    ranks = tl.arange(0, RANKS)
    here = (tl.load(addresses + RANK) + flags + ranks * apart).to(tl.pointer_type(tl.int64))
    nothing = tl.zeros((RANKS,), tl.int64)
    missing = RANKS - 1
    while missing > 0:
        seen = tl.atomic_add(here, nothing, mask=ranks != RANK, sem="acquire", scope="sys")
        missing = tl.sum(((seen < turn) & (ranks != RANK)).to(tl.int32), axis=0)


@triton.jit
def is_last(turns, ORDER: tl.constexpr):
    """Whether this is the last program to ask: all others have read what stands before. It may set the next turn.

    Args:
        ORDER: of the count; acq_rel where the last one also sees what the others have written.
    """
    tl.debug_barrier()  # one thread speaks for all of this program's
    last = tl.atomic_add(turns + 1, 1, sem=ORDER) == tl.num_programs(0) - 1
    if last:
        tl.store(turns + 1, 0)
    return last
