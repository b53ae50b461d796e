"""Symmetric memory, mapped by all ranks of a machine, and the device functions with which kernels access the memory.

Programs of different ranks wait for each other. There may be more programs than a GPU holds at once, because a GPU
starts them in the order of their ids: the first unfinished one has been started on every rank.

Each region counts its launches in an epoch (`turn` in the kernels), which lives on the device, where captured launches
read and advance it.
"""

# mypy: disable-error-code="assignment"
# A kernel's tuples grow while it is compiled.

from __future__ import annotations

import torch
import triton
import triton.language as tl

FLAG_BYTES = tl.constexpr(8)
ALIGN_BYTES = 16
"""Alignment of accesses to other ranks' memory: the largest access of a thread."""

MARK_16 = tl.constexpr(-(1 << 15))
MARK_32 = tl.constexpr(-(1 << 31) + (1 << 15))
"""Sentinels, of the same bytes in memory: the value there has not arrived yet. Read as floating-point numbers they are
-0.0 and a negligible denormal, which are sent as 0."""


class SymmetricMemory:
    """One rank's view of a region. All ranks launch the same kernels over it in the same order, in the same epoch.

    Attributes:
        addresses: int64 [ranks], addresses at which this process maps the region of each rank.
        part_bytes: bytes of a slot; a slot has the values received from a rank.
        epoch: int64 [2]: the epoch of the next launch, and the finished programs of the current one.
    """

    def __init__(self, addresses: torch.Tensor, rank: int, part_bytes: int) -> None:
        self.addresses = addresses
        self.rank, self.ranks = rank, addresses.shape[0]
        self.part_bytes = part_bytes
        self.epoch = torch.tensor([1, 0], dtype=torch.int64, device=addresses.device)


@triton.jit
def at_address(address, offset, TYPE: tl.constexpr):
    """Load the address at a pointer, add an offset in bytes, and return an aligned pointer of the given type."""
    return tl.multiple_of((tl.load(address) + offset).to(TYPE), 16)


def fill_with_sentinels(memory: torch.Tensor) -> None:
    """Fill memory, uint8 of an even number of bytes, with sentinels."""
    memory.view(torch.int16).fill_(MARK_16.value)


@triton.jit
def is_sentinel(bits):
    """Return True if bits, int16 or int32 as wide as the values, are a sentinel: the value has not arrived."""
    MARK: tl.constexpr = MARK_16 if bits.dtype == tl.int16 else MARK_32
    return bits == MARK


@triton.jit
def store_sentinels(places, mask):
    """Store sentinels at pointers to bits that have been read."""
    MARK: tl.constexpr = MARK_16 if places.dtype.element_ty == tl.int16 else MARK_32
    tl.store(places, MARK, mask=mask)


@triton.jit
def load_epoch(turns):
    """Load the current epoch past L1, which may still hold the epoch that an earlier kernel read."""
    return tl.load(turns, cache_modifier=".cg")


@triton.jit
def without_sentinels(values):
    """Return the values as other ranks receive them, and their bits, with sentinels replaced by 0."""
    BITS: tl.constexpr = tl.int16 if values.dtype.primitive_bitwidth == 16 else tl.int32
    bits = values.to(BITS, bitcast=True)
    bits = tl.where(is_sentinel(bits), 0, bits).to(BITS)
    return bits.to(values.dtype, bitcast=True), bits


@triton.jit
def first_slot(turn, RANKS: tl.constexpr):
    """Return the first slot of this epoch: epochs alternate between two halves of the region."""
    return (turn % 2) * (RANKS - 1)


@triton.jit
def slot_offset(half, rank, other, RANKS: tl.constexpr, PART_BYTES: tl.constexpr):
    """Return the byte offset of the slot in a rank's region that receives from another rank."""
    return (half + (other - rank - 1 + RANKS) % RANKS) * PART_BYTES


@triton.jit
def peer_slots(
    addresses, half, row, size, RANK: tl.constexpr, RANKS: tl.constexpr, PART_BYTES: tl.constexpr,
    TRIPS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return where the next kernel of `all_reduce` reads this rank's addend of some rows.

    Args:
        half: first slot of the epoch.
        row: a tensor of row numbers.
        size: elements of a row.

    Returns:
        A tuple of pointers to the bits of each row's first element in the slots of the receiving ranks; and a mask of
        the rows that this rank sends.
    """
    TYPE: tl.constexpr = tl.pointer_type(tl.int16 if DTYPE.primitive_bitwidth == 16 else tl.int32)
    places = ()
    if TRIPS == 1:
        for further in tl.static_range(1, RANKS):
            other = (RANK + further) % RANKS
            place = slot_offset(half, other, RANK, RANKS, PART_BYTES)
            places += (at_address(addresses + other, place, TYPE) + row * size,)
        elsewhere = row >= 0
    else:
        owner = row % RANKS
        elsewhere = owner != RANK
        place = slot_offset(half, owner, RANK, RANKS, PART_BYTES)
        first = (tl.load(addresses + owner) + place).to(TYPE)
        if len(row.shape) == 2:
            first = tl.multiple_of(first, (16, 16))
        else:
            first = tl.multiple_of(first, 16)
        places += (first + row // RANKS * size,)
    return places, elsewhere


@triton.jit
def send_values(places, elsewhere, at, values, mask):
    """Store values at offsets behind `peer_slots`. Return the values without sentinels, as the other ranks receive
    them."""
    values, bits = without_sentinels(values)
    for i in tl.static_range(len(places)):
        tl.store(places[i] + at, bits, mask=mask & elsewhere)
    return values


@triton.jit
def signal_all(addresses, flag, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Set the flag at a byte offset in every other rank's region to this epoch.

    A rank that reads the flag also sees everything that all threads of this program have written before.
    """
    tl.debug_barrier()  # one thread for each rank signals for the whole program
    ranks = tl.arange(0, RANKS)
    there = (tl.load(addresses + ranks) + flag).to(tl.pointer_type(tl.int64))
    tl.atomic_xchg(there, tl.zeros((RANKS,), tl.int64) + turn, mask=ranks != RANK, sem="release", scope="sys")


@triton.jit
def wait_for_all(addresses, flags, apart, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Wait until every other rank has set its flag in this rank's region to this epoch or a later one.

    Args:
        flags: byte offset of the first rank's flag.
        apart: bytes from one rank's flag to the next one's.
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
    """Return True if this is the last program to call.

    All others have then executed the code before the call, so the last one may set the next epoch.

    Args:
        ORDER: memory order of the count; acq_rel where the last program must also see what the others have written.
    """
    tl.debug_barrier()  # one thread counts for the whole program
    last = tl.atomic_add(turns + 1, 1, sem=ORDER) == tl.num_programs(0) - 1
    if last:
        tl.store(turns + 1, 0)
    return last
