"""`OneShot`: what GPUs of one machine do together by kernels of ours, over memory that they map from each other.

They add up, gather logits, and sample from logits that each has a part of. torch's symmetric memory maps the memory; no
multicast is used, and none asked for. The kernels are `kernels/triton/rank_*`; what they do not take goes through NCCL.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from radixrt.distributed.partial_sum import Part
    from radixrt.kernels.triton.rank_memory import RankMemory
    from radixrt.kernels.triton.sampling import SampleWorkspace

logger = logging.getLogger(__name__)

PART_BYTES = {2: 64 << 20, 4: 32 << 20, 8: 16 << 20}
"""By ranks, of the place for what another one sends for a sum: of 64 MiB, in one launch."""

GATHER_BYTES = 64 << 20
"""Of the largest part of a gathered matrix."""

NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""

PLACE_BYTES = 256
"""What each use of a rank's memory begins at a multiple of."""


class OneShot:
    """One rank's end; `make_one_shot` builds it on every rank at the same time.

    Args:
        own: uint8 [`memory_bytes`] that `clear` has seen; this rank's memory, which all ranks reach.
        addresses: int64 [ranks], where this process finds every rank's.
    """

    def __init__(self, rank: int, size: int, own: torch.Tensor, addresses: torch.Tensor) -> None:
        from radixrt.kernels.triton import norm, rank_gather, rank_sampling, rank_sum
        from radixrt.kernels.triton.rank_memory import RankMemory

        self._norm, self._gather, self._sum, self._sampling = norm, rank_gather, rank_sum, rank_sampling
        sums, gathers, samples, end = _memory_places(size)
        self._sums = RankMemory(addresses + sums, rank, PART_BYTES[size])
        self._gathers = RankMemory(addresses + gathers, rank, GATHER_BYTES)
        self._part = own[gathers:samples]
        self._samples = RankMemory(addresses + samples, rank, 0)
        assert end <= len(own)

    def takes(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `sum_add_rms_norm` takes these; the same answer on every rank."""
        rows, columns = x.shape
        one_trip = self._sum.trips(self._sums, rows, columns, x.itemsize) == 1
        return (
            self._norm.supports(residual, x, weight)
            and x.is_contiguous()
            and (one_trip or residual.dtype == x.dtype)
            and self._sum.rows_at_a_time(self._sums, rows, columns, x.itemsize) > 0
        )

    def part_memory(self, rows: int, columns: int, dtype: torch.dtype) -> RankMemory | None:
        """Where products send their [rows, columns] for the sum that comes next, whose residual has their dtype; None
        where the sum itself sends it.

        Whether this rank's product or its sum sends is no other rank's business: they get the same bytes.
        """
        fits = 0 < rows <= self._sum.rows_at_a_time(self._sums, rows, columns, dtype.itemsize)
        return self._sums if fits and columns <= self._norm.MAX_HIDDEN else None

    def sum_add_rms_norm(
        self, residual: torch.Tensor, part: Part, weight: torch.Tensor, eps: float, dtype: torch.dtype, *, early: bool
    ) -> torch.Tensor:
        """As `LayerOps.sum_add_rms_norm`."""
        return self._sum.sum_add_rms_norm(self._sums, residual, part.x, weight, eps, dtype, early, part.sent)

    def gather_place(self, rows: int, columns: int) -> torch.Tensor | None:
        """Where this rank's part of a gathered float32 matrix belongs, [rows, columns]; None if it is too large."""
        count = rows * columns
        if not 0 < count * torch.float32.itemsize <= GATHER_BYTES:
            return None
        return self._part[: count * torch.float32.itemsize].view(torch.float32).view(rows, columns)

    def gather_columns(self, part: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The ranks' parts, of which this rank's is a `gather_place`, side by side in out; returns it."""
        return self._gather.gather_columns(self._gathers, part.shape[1], out)

    def sample_place(self, rows: int, columns: int) -> torch.Tensor | None:
        """A `gather_place` from which `sample` can draw; None if there are too many rows."""
        fits = self._sampling.supports(rows, columns, self._samples.ranks)
        return self.gather_place(rows, columns) if fits else None

    def sample(
        self, part: torch.Tensor, vocab: int, temperature: torch.Tensor, u: torch.Tensor, out: SampleWorkspace
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Sampler.sample_plain`, of logits of which this rank's part is a `sample_place`; the same on every rank.

        Args:
            vocab: columns of all parts; what is behind them is padding.
        """
        return self._sampling.fused_sample(self._samples, self._gathers.addresses, part, vocab, temperature, u, out)


def memory_bytes(size: int) -> int:
    """Of each rank's memory, for so many ranks."""
    return _memory_places(size)[-1]


def clear(own: torch.Tensor, size: int) -> None:
    """Make a rank's memory, uint8, what the first launches expect."""
    from radixrt.kernels.triton.rank_memory import mark

    sums, end, *_ = _memory_places(size)
    mark(own[sums:end])
    own[end:].zero_()


def _memory_places(size: int) -> list[int]:
    """Where in it sums, gathers and draws begin, and where the last ends."""
    from radixrt.kernels.triton import rank_gather, rank_sampling, rank_sum

    wanted = (
        rank_sum.memory_bytes(PART_BYTES[size], size),
        rank_gather.memory_bytes(GATHER_BYTES, size),
        rank_sampling.memory_bytes(size),
    )
    places = [0]
    for each in wanted:
        places.append(places[-1] + -(-each // PLACE_BYTES) * PLACE_BYTES)
    return places


def make_one_shot(rank: int, size: int, device: torch.device) -> OneShot | None:
    """A `OneShot` that was seen to work on every rank; None where it is not to be had, and the log says why.

    The ranks agree after each thing that may fail on one of them alone, before they do anything that all must do.
    """
    own: torch.Tensor | None = None
    said = f"not for {size} ranks"
    if size in PART_BYTES:
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        try:
            import torch.distributed._symmetric_memory as symm_mem

            if not _has_native_atomics(device, size):
                raise RuntimeError("the GPUs' links have no native atomics, which flags need")
            own = symm_mem.empty(memory_bytes(size), dtype=torch.uint8, device=device)
        except (ImportError, AttributeError, RuntimeError) as error:
            said = str(error)
    made: OneShot | None = None
    if _all_agree(own is not None, device) and own is not None:
        try:
            made = OneShot(rank, size, own, _addresses(own, rank, size))
        except (AttributeError, RuntimeError) as error:
            said = str(error)
        clear(own, size)
    if _all_agree(made is not None, device) and made is not None:
        said = "what it gave was wrong"
        if _all_agree(works(made, rank, size, device), device):
            return made
    logger.info("all_reduce=one_shot is not to be had here, NCCL sums instead: %s", said)
    return None


def _addresses(own: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """int64 [size], where this process finds every rank's memory; `own` keeps it mapped. All ranks call it."""
    import torch.distributed._symmetric_memory as symm_mem

    group = dist.group.WORLD
    assert group is not None
    handle = symm_mem.rendezvous(own, group)
    found = [handle.get_buffer(each, (len(own),), torch.uint8).data_ptr() for each in range(size)]
    if found[rank] != own.data_ptr():
        raise RuntimeError("symmetric memory is mapped twice here")
    return torch.tensor(found, dtype=torch.int64, device=own.device)


def _has_native_atomics(device: torch.device, size: int) -> bool:
    """Whether this GPU's links to the first `size` of this machine have them, as NVLink does and PCIe need not; True
    where the driver cannot be asked."""
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuDeviceGetP2PAttribute
    except (OSError, AttributeError):
        return True
    found = ctypes.c_int(1)
    others = (other for other in range(size) if other != device.index)
    asked = (ask(ctypes.byref(found), NATIVE_ATOMICS, device.index, other) != 0 or found.value for other in others)
    return all(asked)


def _all_agree(good: bool, device: torch.device) -> bool:
    """Whether all ranks say so. What each has launched before is done on all of them by then."""
    agreed = torch.tensor(good, dtype=torch.int64, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return bool(agreed)


def works(made: OneShot, rank: int, size: int, device: torch.device) -> bool:
    """Whether a few sums, a gather and draws of whole numbers, which are exact, are right. Whatever is wrong, all of
    them are launched: the others wait for each."""
    from radixrt.distributed.partial_sum import Part
    from radixrt.kernels.triton.sampling import SampleWorkspace

    good = []
    hidden, weight = 4096, torch.ones(4096, device=device)
    for rows, dtype in itertools.product((1, 3, 64), (torch.float32, torch.bfloat16)):
        numbers = (torch.arange(rows * hidden, device=device) % 16).to(dtype).view(rows, hidden)
        residual = numbers.clone()
        made.sum_add_rms_norm(residual, Part(numbers + rank), weight, 1e-6, dtype, early=False)
        good.append(torch.equal(residual, (size + 1) * numbers + size * (size - 1) // 2))
    columns, vocab = 24, 24 * size - 5
    place = made.sample_place(3, columns)
    assert place is not None
    expected = torch.arange(vocab, device=device).float().repeat(3, 1)
    place.copy_(torch.arange(columns, device=device).repeat(3, 1) + columns * rank)
    good.append(torch.equal(made.gather_columns(place, torch.empty_like(expected)), expected))
    # The last token is the best by so much that it is drawn too, and lies in the last rank's part.
    temperature, u = torch.tensor([0.0, 0.01, 0.01], device=device), torch.full((3,), 0.5, device=device).double()
    token_ids, _ = made.sample(place, vocab, temperature, u, SampleWorkspace(3, vocab, device))
    good.append(torch.equal(token_ids, torch.full_like(token_ids, vocab - 1)))
    return all(good)
