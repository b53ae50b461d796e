"""All-reduce between GPUs of one machine, fused with the residual sum and RMSNorm in one launch.

One-shot: each rank writes its addend of a row into the memory of every other rank, and adds up all addends as they
arrive. Two-shot, where the bytes sent cost more than a second trip: the addends of row i go to rank i modulo the number
of ranks, which adds them to the residual sum and sends the result to all others (reduce-scatter, then all-gather). The
epilogue of the GEMM that computes the addends may have sent the addends already (`send`), so that they arrive earlier.

Synchronization needs no flags: memory that is yet to be written holds sentinel values, so a value shows by itself that
it has arrived, whereas a flag could only follow once all values are visible.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.norm import normed, num_warps
from radixrt.kernels.triton.padding import empty_padded
from radixrt.kernels.triton.symmetric_memory import (
    ALIGN_BYTES,
    SymmetricMemory,
    at_address,
    first_slot,
    is_last,
    is_sentinel,
    load_epoch,
    peer_slots,
    send_values,
    slot_offset,
    store_sentinels,
    without_sentinels,
)

ONE_SHOT_BYTES = {2: 1 << 62, 4: 256 << 10, 8: 64 << 10}
"""By number of ranks, the most bytes that are reduced one-shot. Two ranks would send no less two-shot."""


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Bytes of symmetric memory on each rank: two halves with a slot for each other rank, initially all sentinels."""
    return 2 * (ranks - 1) * part_bytes


@triton.jit
def _wait_for_values(places, inside):
    """Wait for the values at some pointers; return their bits, and leave sentinels for the epoch after the next."""
    bits = tl.load(places, mask=inside, other=0, volatile=True)
    while tl.max(is_sentinel(bits).to(tl.int32), axis=0) > 0:
        bits = tl.load(places, mask=inside, other=0, volatile=True)
    store_sentinels(places, inside)
    return bits


@triton.jit
def _sum_addends(
    addresses, half, row, at, inside, own, SIZE: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    PART_BYTES: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Sum a row's addends as they arrive, in rank order on every rank, so that all ranks get the same bits."""
    total = own.to(tl.float32)
    missing = RANKS - 1
    while missing > 0:
        total = tl.zeros_like(total)
        marks = tl.zeros(total.shape, tl.int32)
        for rank in tl.static_range(RANKS):
            if rank == RANK:
                total += own.to(tl.float32)
            else:
                place = at_address(addresses + RANK, slot_offset(half, RANK, rank, RANKS, PART_BYTES), TYPE)
                bits = tl.load(place + row * SIZE + at, mask=inside, other=0, volatile=True)
                marks |= is_sentinel(bits).to(tl.int32)
                total += bits.to(own.dtype, bitcast=True).to(tl.float32)
        missing = tl.max(marks, axis=0)
    for slot in tl.static_range(RANKS - 1):  # for the epoch after the next
        place = at_address(addresses + RANK, (half + slot) * PART_BYTES, TYPE)
        store_sentinels(place + row * SIZE + at, inside)
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
    turn = load_epoch(turns)
    half = first_slot(turn, RANKS)
    own = tl.load(x + start + at, mask=inside, other=0.0)
    total = tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
    if not SENT:
        rows = row + tl.zeros((1,), tl.int64)
        places, elsewhere = peer_slots(addresses, half, rows, SIZE, RANK, RANKS, PART_BYTES, TRIPS, dtype)
        own = send_values(places, elsewhere, at, own, inside)
    # Counted while the addends are in flight. The barrier in it orders all sends of this program before its first poll.
    last = is_last(turns, "relaxed")
    if TRIPS == 1:
        total += _sum_addends(addresses, half, row, at, inside, own, SIZE, RANK, RANKS, PART_BYTES, TYPE)
        kept = total.to(residual.dtype.element_ty)
    else:
        owner = row % RANKS
        sums = row // RANKS * SIZE
        SUMS_AT: tl.constexpr = PART_BYTES // 2
        if owner == RANK:
            total += _sum_addends(addresses, half, row // RANKS, at, inside, own, SIZE, RANK, RANKS, PART_BYTES, TYPE)
            kept, bits = without_sentinels(total.to(residual.dtype.element_ty))
            for further in tl.static_range(1, RANKS):
                other = (RANK + further) % RANKS
                place = slot_offset(half, other, RANK, RANKS, PART_BYTES) + SUMS_AT
                theirs = at_address(addresses + other, place, TYPE)
                tl.store(theirs + sums + at, bits, mask=inside)
        else:
            place = slot_offset(half, RANK, owner, RANKS, PART_BYTES) + SUMS_AT
            bits = _wait_for_values(at_address(addresses + RANK, place, TYPE) + sums + at, inside)
            kept = bits.to(residual.dtype.element_ty, bitcast=True)
    tl.store(residual + start + at, kept, mask=inside)
    tl.store(out + start + at, normed(kept, scale, eps, SIZE).to(out.dtype.element_ty), mask=inside)
    if last:
        tl.store(turns, turn + 1)


def num_shots(memory: SymmetricMemory, rows: int, columns: int, itemsize: int) -> int:
    """Return 1 or 2: whether a sum of [rows, columns] is reduced one-shot or two-shot."""
    return 1 if rows * columns * itemsize <= ONE_SHOT_BYTES[memory.ranks] else 2


def rows_per_launch(memory: SymmetricMemory, rows: int, columns: int, itemsize: int) -> int:
    """Return how many of [rows, columns] one launch reduces; 0 if rows are too large or no multiple of 16 bytes."""
    row_bytes = columns * itemsize
    if row_bytes % ALIGN_BYTES:
        return 0
    if num_shots(memory, rows, columns, itemsize) == 1:
        return memory.part_bytes // row_bytes
    return memory.ranks * (memory.part_bytes // 2 // row_bytes)


def send_arguments(
    memory: SymmetricMemory | None, x: torch.Tensor, columns: int
) -> tuple[tuple[torch.Tensor | None, torch.Tensor | None], tuple[int, int, int, int]]:
    """Return the arguments of a GEMM kernel that sends its [len(x), columns]: addresses and epoch; RANK, RANKS,
    PART_BYTES and TRIPS. Without memory the kernel sends nothing."""
    if memory is None:
        return (None, None), (0, 1, 0, 1)
    shots = num_shots(memory, x.shape[0], columns, x.itemsize)
    return (memory.addresses, memory.epoch), (memory.rank, memory.ranks, memory.part_bytes, shots)


def all_reduce_add_rms_norm(
    memory: SymmetricMemory,
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    early: bool = False,
    sent: bool = False,
) -> torch.Tensor:
    """Return `norm.add_rms_norm` of x [T, hidden] summed over the ranks; the sum itself is not rounded.

    Epochs alternate between two halves of the memory. A rank that writes into a half again has completed the epoch
    between, for which every rank has sent its addend after the launch that read this half and left sentinels in it.
    Therefore no rank waits for a confirmation that its values were read.

    Args:
        residual: in x's dtype, where `num_shots` is 2.
        early: see `CudaOps`.
        sent: whether the kernel that computed x has sent it to `peer_slots`, on the same stream; x then fits into one
            launch.
    """
    rows, size = residual.shape
    out = empty_padded(rows, size, dtype=dtype, device=residual.device)
    block = triton.next_power_of_2(size)
    shots = num_shots(memory, rows, size, x.itemsize)
    step = rows_per_launch(memory, rows, size, x.itemsize)
    for first in range(0, rows, step):
        now = slice(first, min(rows, first + step))
        _sum_add_rms_norm_kernel[(now.stop - first,)](
            residual[now], x[now], weight, out[now], memory.addresses, memory.epoch, eps, size, block, memory.rank,
            memory.ranks, memory.part_bytes, shots, sent, early,
            num_warps=num_warps(block), launch_pdl=early,
        )  # fmt: skip
    return out
