"""`OneShot`: what GPUs of one machine do together by kernels of ours, over memory that they map from each other.

They add up, gather logits, and sample from logits that each has a part of. torch's symmetric memory maps the memory; no
multicast is used, and none asked for. The kernels are `kernels/triton/rank_*`; what they do not take goes through NCCL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from radixrt.executor.sample_result import SampleResult

if TYPE_CHECKING:
    from radixrt.kernels.triton.sampling import SampleWorkspace

logger = logging.getLogger(__name__)

SUM_BYTES = {2: 4 << 20, 4: 2 << 20, 8: 1 << 20}
"""By ranks, the largest sum that goes this way: every rank sends all it has to each other one, so more gain less."""

GATHER_BYTES = 64 << 20
"""Of the largest part of a gathered matrix."""


MapMemory = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
"""From a number of bytes, the same on every rank, to so many zeros of this rank's, uint8, and the addresses at which
this process finds every rank's, int64 [ranks]."""


class OneShot:
    """One rank's end; build it on every rank at the same time, with `make_one_shot`.

    Args:
        map_memory: keeps alive what it has mapped.

    Raises:
        ImportError, AttributeError, RuntimeError: it cannot be had here.
    """

    def __init__(self, rank: int, size: int, map_memory: MapMemory) -> None:
        from radixrt.kernels.triton import norm, rank_gather, rank_sampling, rank_sum
        from radixrt.kernels.triton.rank_memory import RankMemory

        self._norm, self._gather, self._sum, self._sampling = norm, rank_gather, rank_sum, rank_sampling
        self._map_memory = map_memory
        part = SUM_BYTES[size]
        _, addresses = map_memory(rank_sum.memory_bytes(part, size))
        self._sums = RankMemory(addresses, rank, part)
        self._part, addresses = map_memory(rank_gather.memory_bytes(GATHER_BYTES, size))
        self._gathers = RankMemory(addresses, rank, GATHER_BYTES)
        _, addresses = map_memory(rank_sampling.memory_bytes(size))
        self._samples = RankMemory(addresses, rank, 0)

    def takes(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `sum_add_rms_norm` takes these; the same answer on every rank."""
        return self._norm.supports(residual, x, weight) and self._sum.supports(self._sums, x)

    def sum_add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, *,
        early: bool,
    ) -> torch.Tensor:  # fmt: skip
        """As `LayerOps.sum_add_rms_norm`."""
        return self._sum.sum_add_rms_norm(self._sums, residual, x, weight, eps, dtype, early)

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
    ) -> SampleResult:
        """As `Sampler.sample_plain`, of logits of which this rank's part is a `sample_place`; the same on every rank.

        Args:
            vocab: columns of all parts; what is behind them is padding.
        """
        found = self._sampling.fused_sample(self._samples, self._gathers.addresses, part, vocab, temperature, u, out)
        return SampleResult(*found)


def symmetric_memory(rank: int, device: torch.device) -> MapMemory:
    """Memory of the GPUs of one machine, by torch's symmetric memory."""
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    import torch.distributed._symmetric_memory as symm_mem

    group = dist.group.WORLD
    assert group is not None
    kept: list[object] = []

    def map_memory(size_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        own = symm_mem.empty(size_bytes, dtype=torch.uint8, device=device)
        handle = symm_mem.rendezvous(own, group)
        own.zero_()
        kept.extend((own, handle))
        everyones = [handle.get_buffer(each, (size_bytes,), torch.uint8) for each in range(group.size())]
        addresses = [each.data_ptr() for each in everyones]
        if addresses[rank] != own.data_ptr():
            raise RuntimeError("symmetric memory is mapped twice here")
        return own, torch.tensor(addresses, dtype=torch.int64, device=device)

    return map_memory


def make_one_shot(rank: int, size: int, device: torch.device) -> OneShot | None:
    """A `OneShot` that was seen to work on every rank; None where it is not to be had, and the log says why."""
    made: OneShot | None = None
    said = f"not for {size} ranks"
    if size in SUM_BYTES:
        try:
            made = OneShot(rank, size, symmetric_memory(rank, device))
        except (ImportError, AttributeError, RuntimeError) as error:
            said = str(error)
    # Also: nobody writes into memory that its owner has still to clear.
    torch.cuda.synchronize(device)
    ready = torch.tensor(made is not None, dtype=torch.int64, device=device)
    dist.all_reduce(ready, dist.ReduceOp.MIN)
    if int(ready) and made is not None:
        ready.fill_(works(made, rank, size, device))
        dist.all_reduce(ready, dist.ReduceOp.MIN)
        said = "what it gave was wrong"
    if int(ready):
        return made
    logger.info("all_reduce=one_shot is not to be had here, NCCL sums instead: %s", said)
    return None


def works(made: OneShot, rank: int, size: int, device: torch.device) -> bool:
    """Whether a few sums, a gather and a draw of whole numbers, which are exact, are right."""
    from radixrt.kernels.triton.sampling import SampleWorkspace

    hidden, weight = 4096, torch.ones(4096, device=device)
    for rows in (1, 3, SUM_BYTES[size] // (hidden * 4)):
        numbers = (torch.arange(rows * hidden, device=device) % 16).float().view(rows, hidden)
        residual = numbers.clone()
        made.sum_add_rms_norm(residual, numbers + rank, weight, 1e-6, torch.float32, early=False)
        if not torch.equal(residual, (size + 1) * numbers + size * (size - 1) // 2):
            return False
    columns, vocab = 24, 24 * size - 5
    place = made.sample_place(3, columns)
    assert place is not None
    place.copy_(torch.arange(columns, device=device).repeat(3, 1) + columns * rank)
    expected = torch.arange(vocab, device=device).float().repeat(3, 1)
    if not torch.equal(made.gather_columns(place, torch.empty_like(expected)), expected):
        return False
    greedy, u = torch.zeros(3, device=device), torch.zeros(3, dtype=torch.float64, device=device)
    found = made.sample(place, vocab, greedy, u, SampleWorkspace(3, vocab, device))
    return torch.equal(found.token_ids, torch.full_like(found.token_ids, vocab - 1))
