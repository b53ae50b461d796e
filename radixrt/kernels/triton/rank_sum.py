"""What ranks of one machine add up between two blocks of a model, with the residual sum and RMSNorm, in one launch.

A rank writes its part of a row straight into memory of every other rank, and adds up all parts as soon as it has them.
What multiplies may have done that already, when it wrote the part (`send`), which is then there earlier. Memory that
nothing has come to yet holds marks, so the parts themselves say that they are there: that is one trip over NVLink,
where a flag behind them would wait until they have arrived, and NCCL's sum and a norm take several launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.norm import ELEMENTS_PER_WARP, MAX_WARPS
from radixrt.kernels.triton.rank_memory import (
    ALIGN_BYTES,
    RankMemory,
    is_last,
    is_mark,
    leave_marks,
    load_turn,
    own_places,
    part_places,
    send_part,
)


def memory_bytes(part_bytes: int, ranks: int) -> int:
    """Of the memory that each rank needs, all `rank_memory.mark`s at first: twice, a part of each other rank."""
    return 2 * (ranks - 1) * part_bytes


@triton.jit
def _sum_add_rms_norm_kernel(
    residual, x, weight, out, addresses, turns, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr,
    RANKS: tl.constexpr, PART_BYTES: tl.constexpr, SENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    dtype: tl.constexpr = x.dtype.element_ty
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    turn = load_turn(turns)
    own = tl.load(x + start + at, mask=inside, other=0.0)
    total = tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
    if not SENT:
        places = part_places(addresses, turns, RANK, RANKS, PART_BYTES, dtype)
        own = send_part(places, start + at, own, inside)
    # Counted while the parts are on their way. It waits for this program's threads, so all have sent before one looks.
    last = is_last(turns, "relaxed")
    others = own_places(addresses, turn, RANK, RANKS, PART_BYTES, dtype)
    summed = tl.zeros((BLOCK,), tl.float32)
    missing = RANKS - 1
    while missing > 0:
        summed = tl.zeros((BLOCK,), tl.float32)
        marks = tl.zeros((BLOCK,), tl.int32)
        for rank in tl.static_range(RANKS):  # in this order on every rank, so that all get the same bits
            if rank == RANK:
                summed += own.to(tl.float32)
            else:
                bits = tl.load(others[rank - (rank > RANK)] + start + at, mask=inside, other=0, volatile=True)
                marks |= is_mark(bits).to(tl.int32)
                summed += bits.to(dtype, bitcast=True).to(tl.float32)
        missing = tl.max(marks, axis=0)
    leave_marks(others, start + at, inside)  # for the turn after the next
    rounded = (total + summed).to(residual.dtype.element_ty)
    tl.store(residual + start + at, rounded, mask=inside)
    total = rounded.to(tl.float32)
    rms = tl.rsqrt(tl.sum(total * total, axis=0) / SIZE + eps)
    tl.store(out + start + at, (total * rms * scale).to(out.dtype.element_ty), mask=inside)
    if last:
        tl.store(turns, turn + 1)


def supports(memory: RankMemory, x: torch.Tensor) -> bool:
    """Whether x [T, hidden] fits into the memory; the same answer on every rank."""
    return x.is_contiguous() and fits(memory, x.shape[0], x.shape[1], x.itemsize)


def fits(memory: RankMemory, rows: int, columns: int, itemsize: int) -> bool:
    """As `supports`, of a matrix that is not there yet."""
    return 0 < rows * columns * itemsize <= memory.part_bytes and takes_rows(columns, itemsize)


def takes_rows(columns: int, itemsize: int) -> bool:
    """Whether ranks can hand each other rows of so many elements."""
    return columns * itemsize % ALIGN_BYTES == 0


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

    Sums take turns between two halves of the memory. Who writes into a half again has read, in the turn between, what
    the others sent behind the launch that read this half and left marks in it; so nobody waits for having been read.
    The turn is counted on the device, where captured launches find it.

    Args:
        early: see `CudaOps`.
        sent: x has been written into this turn's `part_places`, on the same stream.
    """
    rows, size = residual.shape
    out = torch.empty(rows, size, dtype=dtype, device=residual.device)
    block = triton.next_power_of_2(size)
    _sum_add_rms_norm_kernel[(rows,)](
        residual, x, weight, out, memory.addresses, memory.turn, eps, size, block, memory.rank, memory.ranks,
        memory.part_bytes, sent, early, num_warps=min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP)),
        launch_pdl=early,
    )  # fmt: skip
    return out
