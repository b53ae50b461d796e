"""`DeviceCommunicator`: collectives between the GPUs of a machine, by Triton kernels over memory mapped by all ranks.

The collectives are an all-reduce fused with the residual sum and RMSNorm, an all-gather of logits, and sampling from
logits that are sharded over ranks. torch's symmetric memory maps the memory; multicast is neither used nor requested.
The kernels are in `kernels/triton/all_reduce.py`, `all_gather.py` and `sharded_sampling.py`. NCCL computes shapes that
the kernels do not support.
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
    from radixrt.distributed.partial_sum import PartialSum
    from radixrt.kernels.triton.sampling import SampleWorkspace
    from radixrt.kernels.triton.symmetric_memory import SymmetricMemory

logger = logging.getLogger(__name__)

PART_BYTES = {2: 64 << 20, 4: 32 << 20, 8: 16 << 20}
"""By number of ranks, the bytes that a launch of the all-reduce can receive from every other rank."""

GATHER_BYTES = 64 << 20
"""Largest shard of a gathered matrix, in bytes."""

NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""

REGION_ALIGN_BYTES = 256


class DeviceCommunicator:
    """A rank's handle of the collectives. `create_device_communicator` creates the handles of all ranks collectively.

    Args:
        own: uint8 [`memory_bytes`], this rank's memory, mapped by all ranks and filled by `initialize`.
        addresses: int64 [ranks], addresses at which this process maps the memory of each rank.
    """

    def __init__(self, rank: int, size: int, own: torch.Tensor, addresses: torch.Tensor) -> None:
        from radixrt.kernels.triton import all_gather, all_reduce, norm, sharded_sampling
        from radixrt.kernels.triton.symmetric_memory import SymmetricMemory

        self._norm, self._gather, self._sum, self._sampling = norm, all_gather, all_reduce, sharded_sampling
        sums, gathers, samples, end = _region_offsets(size)
        self._sums = SymmetricMemory(addresses + sums, rank, PART_BYTES[size])
        self._gathers = SymmetricMemory(addresses + gathers, rank, GATHER_BYTES)
        self._shard = own[gathers:samples]
        self._samples = SymmetricMemory(addresses + samples, rank, 0)
        assert end <= len(own)

    def supports(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Return True if `all_reduce_add_rms_norm` supports these arguments. The result is the same on all ranks."""
        rows, columns = x.shape
        one_shot = self._sum.num_shots(self._sums, rows, columns, x.itemsize) == 1
        return (
            self._norm.supports(residual, x, weight)
            and x.is_contiguous()
            and (one_shot or residual.dtype == x.dtype)
            and self._sum.rows_per_launch(self._sums, rows, columns, x.itemsize) > 0
        )

    def send_buffer(self, rows: int, columns: int, dtype: torch.dtype) -> SymmetricMemory | None:
        """Return the memory into which a GEMM writes its output [rows, columns] for the next all-reduce; None if the
        all-reduce itself must send the output. The residual has the same dtype as the output.

        On some ranks the GEMM may send and on others the all-reduce: the receivers get the same bytes.
        """
        fits = 0 < rows <= self._sum.rows_per_launch(self._sums, rows, columns, dtype.itemsize)
        return self._sums if fits and columns <= self._norm.MAX_HIDDEN else None

    def all_reduce_add_rms_norm(
        self,
        residual: torch.Tensor,
        added: PartialSum,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        *,
        early: bool,
    ) -> torch.Tensor:
        """See `LayerOps.all_reduce_add_rms_norm`."""
        return self._sum.all_reduce_add_rms_norm(self._sums, residual, added.x, weight, eps, dtype, early, added.sent)

    def gather_buffer(self, rows: int, columns: int) -> torch.Tensor | None:
        """Return memory [rows, columns] for this rank's shard of a gathered float32 matrix; None if the shard is larger
        than GATHER_BYTES."""
        count = rows * columns
        if not 0 < count * torch.float32.itemsize <= GATHER_BYTES:
            return None
        return self._shard[: count * torch.float32.itemsize].view(torch.float32).view(rows, columns)

    def all_gather_columns(self, shard: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Concatenate the shards of all ranks along columns into `out`; return `out`.

        Args:
            shard: this rank's shard, in a `gather_buffer`.
            out: float32 [rows, columns of all shards].
        """
        return self._gather.all_gather_columns(self._gathers, shard.shape[1], out)

    def sample_buffer(self, rows: int, columns: int) -> torch.Tensor | None:
        """Return a `gather_buffer` from which `sample` can draw; None if there are too many rows."""
        fits = self._sampling.supports(rows, columns, self._samples.ranks)
        return self.gather_buffer(rows, columns) if fits else None

    def sample(
        self, shard: torch.Tensor, vocab: int, temperature: torch.Tensor, u: torch.Tensor, out: SampleWorkspace
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample like `Sampler.sample_plain`, from sharded logits. Every rank gets the same tokens.

        Args:
            shard: this rank's logits, in a `sample_buffer`.
            vocab: total number of columns of all shards without padding.
        """
        return self._sampling.fused_sample(self._samples, self._gathers.addresses, shard, vocab, temperature, u, out)


def memory_bytes(size: int) -> int:
    """Bytes of symmetric memory on each of `size` ranks."""
    return _region_offsets(size)[-1]


def initialize(own: torch.Tensor, size: int) -> None:
    """Fill a rank's memory, uint8, with the initial contents that the kernels expect."""
    from radixrt.kernels.triton.symmetric_memory import fill_with_sentinels

    sums, end, *_ = _region_offsets(size)
    fill_with_sentinels(own[sums:end])
    own[end:].zero_()


def _region_offsets(size: int) -> list[int]:
    """Byte offsets at which the regions of all-reduce, all-gather and sampling begin, and the end of the last."""
    from radixrt.kernels.triton import all_gather, all_reduce, sharded_sampling

    wanted = (
        all_reduce.memory_bytes(PART_BYTES[size], size),
        all_gather.memory_bytes(GATHER_BYTES, size),
        sharded_sampling.memory_bytes(size),
    )
    offsets = [0]
    for each in wanted:
        offsets.append(offsets[-1] + -(-each // REGION_ALIGN_BYTES) * REGION_ALIGN_BYTES)
    return offsets


def create_device_communicator(
    rank: int, size: int, device: torch.device, group: dist.ProcessGroup | None = None
) -> DeviceCommunicator | None:
    """Create and test a communicator on every rank. A collective call.

    Args:
        rank, size: this rank, and the number of ranks in the group.
        group: process group of the ranks; None for all ranks.

    Returns:
        The communicator; None, on all ranks, if a communicator cannot be created or computes wrong results. Then the
        log gives the reason.
    """
    # An operation may fail on a single rank. The ranks agree on the outcome before each next collective operation,
    # because a rank that had given up would leave the others waiting.
    own: torch.Tensor | None = None
    reason = f"{size} ranks are not supported"
    if size in PART_BYTES:
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        try:
            import torch.distributed._symmetric_memory as symm_mem

            if not _has_native_atomics(device, rank, size):
                raise RuntimeError("the links between the GPUs have no native atomics, which flags need")
            own = symm_mem.empty(memory_bytes(size), dtype=torch.uint8, device=device)
        except (ImportError, AttributeError, RuntimeError) as error:
            reason = str(error)
    created: DeviceCommunicator | None = None
    if _all_agree(own is not None, device, group) and own is not None:
        try:
            created = DeviceCommunicator(rank, size, own, _addresses(own, rank, size, group))
        except (AttributeError, RuntimeError) as error:
            reason = str(error)
        initialize(own, size)
    if _all_agree(created is not None, device, group) and created is not None:
        reason = "the self-test gave wrong results"
        if _all_agree(self_test(created, rank, size, device), device, group):
            return created
    logger.info("all_reduce=one_shot is not available here, NCCL is used instead: %s", reason)
    return None


def _addresses(own: torch.Tensor, rank: int, size: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Map every rank's memory into this process. A collective call.

    Returns:
        int64 [size], the address of each rank's memory, valid as long as `own` exists.
    """
    import torch.distributed._symmetric_memory as symm_mem

    group = group or dist.group.WORLD
    assert group is not None
    handle = symm_mem.rendezvous(own, group)
    found = [handle.get_buffer(each, (len(own),), torch.uint8).data_ptr() for each in range(size)]
    if found[rank] != own.data_ptr():
        raise RuntimeError("symmetric memory is mapped twice here")
    return torch.tensor(found, dtype=torch.int64, device=own.device)


def _has_native_atomics(device: torch.device, rank: int, size: int) -> bool:
    """Return True if the links from this GPU to the GPUs of the other ranks on this machine have native atomics.

    NVLink has native atomics, PCIe may not. True if the driver cannot be asked.
    """
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuDeviceGetP2PAttribute
    except (OSError, AttributeError):
        return True
    found = ctypes.c_int(1)
    first = (device.index or 0) - rank
    others = (other for other in range(first, first + size) if other != device.index)
    asked = (ask(ctypes.byref(found), NATIVE_ATOMICS, device.index, other) != 0 or found.value for other in others)
    return all(asked)


def _all_agree(good: bool, device: torch.device, group: dist.ProcessGroup | None = None) -> bool:
    """Return True if `good` is true on all ranks. On return, all earlier launches of all ranks have completed."""
    agreed = torch.tensor(good, dtype=torch.int64, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN, group=group)
    return bool(agreed)


def self_test(
    communicator: DeviceCommunicator, rank: int, size: int, device: torch.device, all_rows: tuple[int, ...] = (1, 3, 64)
) -> bool:
    """Return True if a few all-reduces, an all-gather and a draw give the right results. A collective call.

    The inputs are whole numbers, so that the right results are exact. All operations are launched even after a wrong
    result, because the other ranks wait for each operation.
    """
    from radixrt.distributed.partial_sum import PartialSum
    from radixrt.kernels.triton.sampling import SampleWorkspace

    good = []
    hidden, weight = 4096, torch.ones(4096, device=device)
    for rows, dtype in itertools.product(all_rows, (torch.float32, torch.bfloat16)):
        numbers = (torch.arange(rows * hidden, device=device) % 16).to(dtype).view(rows, hidden)
        residual = numbers.clone()
        added = PartialSum(numbers + rank)
        communicator.all_reduce_add_rms_norm(residual, added, weight, 1e-6, dtype, early=False)
        good.append(torch.equal(residual, (size + 1) * numbers + size * (size - 1) // 2))
    columns, vocab = 24, 24 * size - 5
    shard = communicator.sample_buffer(3, columns)
    assert shard is not None
    expected = torch.arange(vocab, device=device).float().repeat(3, 1)
    shard.copy_(torch.arange(columns, device=device).repeat(3, 1) + columns * rank)
    good.append(torch.equal(communicator.all_gather_columns(shard, torch.empty_like(expected)), expected))
    # The last token has a logit so large that every draw returns this token. The token is in the last rank's shard.
    temperature, u = torch.tensor([0.0, 0.01, 0.01], device=device), torch.full((3,), 0.5, device=device).double()
    token_ids, _ = communicator.sample(shard, vocab, temperature, u, SampleWorkspace(3, vocab, device))
    good.append(torch.equal(token_ids, torch.full_like(token_ids, vocab - 1)))
    return all(good)
