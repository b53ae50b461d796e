"""What ranks of one machine add up between two blocks of a model, with the residual sum and RMSNorm, in one launch.

In one trip over NVLink: a rank writes its part of a row straight into memory of every other rank, and adds up all parts
as soon as it has them. In two, where what is sent counts for more than a trip: the parts of row i go to rank i modulo
the ranks, which adds them to the residual sum and hands that to all others. What multiplies may have sent the parts
already, when it wrote them (`send`), so that they are there earlier.

Memory that nothing has come to yet holds marks, so the numbers themselves say that they are there, where a flag behind
them would wait until they have arrived.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.norm import normed, num_warps
from radixrt.kernels.triton.rank_memory import (
    ALIGN_BYTES,
    RankMemory,
    as_sent,
    at_address,
    half_of,
    is_last,
    is_mark,
    leave_marks,
    load_turn,
    part_places,
    place_from,
    send_part,
)
from radixrt.kernels.triton.room import empty_with_room

ONE_TRIP_BYTES = {2: 1 << 62, 4: 256 << 10, 8: 64 << 10}
"""By ranks, the largest sum that is done in one trip. Two ranks send no less in two."""


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Of the memory that each rank needs, all `rank_memory.mark`s at first: twice, a place for each other rank."""
    return 2 * (ranks - 1) * part_bytes


@triton.jit
def _come(places, inside):
    """The bits that come to some places, and marks there for the turn after the next."""
    bits = tl.load(places, mask=inside, other=0, volatile=True)
    while tl.max(is_mark(bits).to(tl.int32), axis=0) > 0:
        bits = tl.load(places, mask=inside, other=0, volatile=True)
    leave_marks(places, inside)
    return bits


@triton.jit
def _add_parts(
    addresses, half, row, at, inside, own, SIZE: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    PART_BYTES: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The sum of a row's parts, in rank order on every rank, so that all get the same bits."""
    total = own.to(tl.float32)
    missing = RANKS - 1
    while missing > 0:
        total = tl.zeros_like(total)
        marks = tl.zeros(total.shape, tl.int32)
        for rank in tl.static_range(RANKS):
            if rank == RANK:
                total += own.to(tl.float32)
            else:
                place = at_address(addresses + RANK, place_from(half, RANK, rank, RANKS, PART_BYTES), TYPE)
                bits = tl.load(place + row * SIZE + at, mask=inside, other=0, volatile=True)
                marks |= is_mark(bits).to(tl.int32)
                total += bits.to(own.dtype, bitcast=True).to(tl.float32)
        missing = tl.max(marks, axis=0)
    for slot in tl.static_range(RANKS - 1):  # for the turn after the next
        place = at_address(addresses + RANK, (half + slot) * PART_BYTES, TYPE)
        leave_marks(place + row * SIZE + at, inside)
    return total


@triton.jit
def _sum_add_rms_norm_kernel(
    residual, x, weight, out, addresses, turns, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr,
    RANKS: tl.constexpr, PART_BYTES: tl.constexpr, TRIPS: tl.constexpr, SENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * SIZE
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    dtype: tl.constexpr = x.dtype.element_ty
    TYPE: tl.constexpr = tl.pointer_type(tl.int16 if dtype.primitive_bitwidth == 16 else tl.int32)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    turn = load_turn(turns)
    half = half_of(turn, RANKS)
    own = tl.load(x + start + at, mask=inside, other=0.0)
    total = tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
    if not SENT:
        rows = row + tl.zeros((1,), tl.int64)
        places, elsewhere = part_places(addresses, half, rows, SIZE, RANK, RANKS, PART_BYTES, TRIPS, dtype)
        own = send_part(places, elsewhere, at, own, inside)
    # Counted while the parts are on their way. It waits for this program's threads, so all have sent before one looks.
    last = is_last(turns, "relaxed")
    if TRIPS == 1:
        total += _add_parts(addresses, half, row, at, inside, own, SIZE, RANK, RANKS, PART_BYTES, TYPE)
        kept = total.to(residual.dtype.element_ty)
    else:
        owner = row % RANKS
        sums = row // RANKS * SIZE
        SUMS_AT: tl.constexpr = PART_BYTES // 2
        if owner == RANK:
            total += _add_parts(addresses, half, row // RANKS, at, inside, own, SIZE, RANK, RANKS, PART_BYTES, TYPE)
            kept, bits = as_sent(total.to(residual.dtype.element_ty))
            for further in tl.static_range(1, RANKS):
                other = (RANK + further) % RANKS
                place = place_from(half, other, RANK, RANKS, PART_BYTES) + SUMS_AT
                theirs = at_address(addresses + other, place, TYPE)
                tl.store(theirs + sums + at, bits, mask=inside)
        else:
            place = place_from(half, RANK, owner, RANKS, PART_BYTES) + SUMS_AT
            bits = _come(at_address(addresses + RANK, place, TYPE) + sums + at, inside)
            kept = bits.to(residual.dtype.element_ty, bitcast=True)
    tl.store(residual + start + at, kept, mask=inside)
    tl.store(out + start + at, normed(kept, scale, eps, SIZE).to(out.dtype.element_ty), mask=inside)
    if last:
        tl.store(turns, turn + 1)


def trips(memory: RankMemory, rows: int, columns: int, itemsize: int) -> int:
    """How many a sum of [rows, columns] takes."""
    return 1 if rows * columns * itemsize <= ONE_TRIP_BYTES[memory.ranks] else 2


def rows_at_a_time(memory: RankMemory, rows: int, columns: int, itemsize: int) -> int:
    """How many rows of [rows, columns] one launch adds up; 0 where they are too large, or no multiples of 16 bytes."""
    row_bytes = columns * itemsize
    if row_bytes % ALIGN_BYTES:
        return 0
    if trips(memory, rows, columns, itemsize) == 1:
        return memory.part_bytes // row_bytes
    return memory.ranks * (memory.part_bytes // 2 // row_bytes)


def sending(
    memory: RankMemory | None, x: torch.Tensor, columns: int
) -> tuple[tuple[torch.Tensor | None, torch.Tensor | None], tuple[int, int, int, int]]:
    """What a kernel is given whose product of x has so many columns: addresses and turns; RANK, RANKS, PART_BYTES and
    TRIPS. With no memory nothing is sent."""
    if memory is None:
        return (None, None), (0, 1, 0, 1)
    way = trips(memory, x.shape[0], columns, x.itemsize)
    return (memory.addresses, memory.turn), (memory.rank, memory.ranks, memory.part_bytes, way)


def sum_add_rms_norm(
    memory: RankMemory,
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    early: bool = False,
    sent: bool = False,
) -> torch.Tensor:
    """`norm.add_rms_norm` of the sum of x [T, hidden] over the ranks; the sum itself is not rounded.

    Sums take turns between two halves of the memory. Who writes into a half again has a sum of the turn between, for
    which every rank has sent its part behind the launch that read this half and left marks in it; so nobody waits for
    having been read. The turn is counted on the device, where captured launches find it.

    Args:
        residual: of x's dtype, where `trips` is 2.
        early: see `CudaOps`.
        sent: x, which fits into one launch, is on its way as `part_places` says, on the same stream.
    """
    rows, size = residual.shape
    out = empty_with_room(rows, size, dtype=dtype, device=residual.device)
    block = triton.next_power_of_2(size)
    way = trips(memory, rows, size, x.itemsize)
    step = rows_at_a_time(memory, rows, size, x.itemsize)
    for first in range(0, rows, step):
        now = slice(first, min(rows, first + step))
        _sum_add_rms_norm_kernel[(now.stop - first,)](
            residual[now], x[now], weight, out[now], memory.addresses, memory.turn, eps, size, block, memory.rank,
            memory.ranks, memory.part_bytes, way, sent, early,
            num_warps=num_warps(block), launch_pdl=early,
        )  # fmt: skip
    return out
