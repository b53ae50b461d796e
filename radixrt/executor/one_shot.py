"""`OneShotSum`: small sums over GPUs of one machine in a single kernel each, through torch's symmetric memory.

Each rank copies what it has into a buffer that all ranks map, and adds up all of them itself. For the sums of a decode
step, which are latency and not bandwidth, that is quicker than NCCL's ring. It needs no multicast, and asks for none.
"""

from __future__ import annotations

import logging
import os

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

MAX_BYTES = {2: 1 << 20, 4: 1 << 19, 8: 1 << 18}
"""By ranks, the largest sum that goes this way: every rank reads all of the others' data, so more ranks gain less."""

ALIGN_BYTES = 16
DTYPES = (torch.bfloat16, torch.float32)


class OneShotSum:
    """One rank's end; build it on every rank at the same time, with `make_one_shot`."""

    def __init__(self, size: int, device: torch.device) -> None:
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        import torch.distributed._symmetric_memory as symmetric_memory

        group = dist.group.WORLD
        assert group is not None
        self._max_bytes = MAX_BYTES[size]
        self._group_name = group.group_name
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        for dtype in DTYPES:
            buffer = symmetric_memory.empty(self._max_bytes // dtype.itemsize, dtype=dtype, device=device)
            symmetric_memory.rendezvous(buffer, group)
            self._buffers[dtype] = buffer

    def takes(self, x: torch.Tensor) -> bool:
        """Whether x is of a dtype and size for this; the same answer on every rank."""
        size = x.numel() * x.itemsize
        return (
            0 < size <= self._max_bytes and size % ALIGN_BYTES == 0 and x.dtype in self._buffers and x.is_contiguous()
        )

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Sum x over the ranks, in place and in rank order, so that all ranks get the same bits."""
        flat = x.view(-1)
        buffer = self._buffers[x.dtype][: flat.numel()]
        torch.ops.symm_mem.one_shot_all_reduce_copy_out(buffer, flat, "sum", self._group_name, flat)
        return x


def make_one_shot(rank: int, size: int, device: torch.device) -> OneShotSum | None:
    """A `OneShotSum` that was seen to add up on every rank; None, with a warning, where it is not to be had."""
    made: OneShotSum | None = None
    said = f"not for {size} ranks"
    if size in MAX_BYTES:
        try:
            made = OneShotSum(size, device)
        except (ImportError, AttributeError, RuntimeError) as error:
            said = str(error)
    ready = torch.tensor(made is not None, dtype=torch.int64, device=device)
    dist.all_reduce(ready, dist.ReduceOp.MIN)
    if int(ready) and made is not None:
        good = all(_adds_up(made, rank, size, dtype, device) for dtype in DTYPES)
        ready.fill_(good)
        dist.all_reduce(ready, dist.ReduceOp.MIN)
        said = "its sums were wrong"
    if int(ready):
        return made
    logger.warning("all_reduce=one_shot is not to be had here, NCCL sums instead: %s", said)
    return None


def _adds_up(one_shot: OneShotSum, rank: int, size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Sums of whole numbers are exact, so one that differs is wrong."""
    for count in (ALIGN_BYTES, 4096 + ALIGN_BYTES, MAX_BYTES[size] // dtype.itemsize):
        x = (torch.arange(count, device=device) % 16 + rank).to(dtype)
        expected = size * (torch.arange(count, device=device) % 16).to(dtype) + size * (size - 1) // 2
        if not torch.equal(one_shot.sum(x), expected):
            return False
    return True
