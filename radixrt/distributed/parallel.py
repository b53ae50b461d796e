"""`TPGroup`: the collectives of the ranks that share a model or a pipeline stage.

A step has three kinds of collectives: the all-reduce of partial sums, the all-gather of logits, and the broadcast of
the token ids that rank 0 sampled. The collectives run on the current stream, and a CUDA graph can capture their
allocations. Between GPUs of the same machine, `device_communicator` replaces the collectives. All ranks must capture
and launch the same work in the same order. Therefore no decision may depend on local facts such as a rank's clock or
free memory.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from radixrt.distributed.device_communicator import DeviceCommunicator, create_device_communicator
from radixrt.distributed.rank_info import RankInfo
from radixrt.errors import ConfigError, EngineError

Store = Any
"""A `torch.distributed.Store`, whose type torch does not export."""


class TPGroup:
    """A rank's handle of the group. With size 1, every collective of the group is the identity.

    Args:
        rank: rank of this process in the group, from 0.
        size: number of ranks in the group.
        device: device of the exchanged tensors.
        group: torch's process group of the ranks, needed with several pipeline stages; None for all ranks.
        first_rank: global rank of the group's rank 0.
        world_size: number of all ranks; None if the group has all ranks.
        one_shot: on CUDA, try to create a `DeviceCommunicator`.

    Attributes:
        device: device of the exchanged tensors.
        communicator: the `DeviceCommunicator`; None where NCCL or gloo runs all collectives.
    """

    communicator: DeviceCommunicator | None = None

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        *,
        first_rank: int = 0,
        world_size: int | None = None,
        one_shot: bool = False,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._group, self._first_rank = group, first_rank
        self._world_size = world_size or size
        if size == 1:
            return
        # The older name is deprecated where there is the newer one.
        name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
        self._all_gather: Callable[..., Any] = getattr(dist, name)
        if device.type == "cuda" and one_shot:
            self.communicator = create_device_communicator(rank, size, device, group)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum x over the ranks, in place; returns x."""
        if self.size > 1:
            dist.all_reduce(x, group=self._group)
        return x

    def gather_buffer(self, rows: int, columns: int) -> torch.Tensor | None:
        """Return memory for a float32 shard [rows, columns] that `all_gather_columns` gathers without a copy; None if
        there is no such memory."""
        return None if self.communicator is None else self.communicator.gather_buffer(rows, columns)

    def all_gather_columns(self, x: torch.Tensor, columns: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Concatenate the shards of all ranks along columns, in rank order.

        Every rank gets the result, not only rank 0. Through NVLink this takes no longer, a single collective replaces
        sends and receives, and every rank scores prompts with the same code.

        Args:
            x: float32 [S, n], this rank's shard.
            columns: number of columns to return, at most size * n; further columns are padding.
            out: float32 [S, columns], filled and returned if given.

        Returns:
            float32 [S, columns], contiguous.
        """
        rows, each = x.shape
        if out is None:
            out = x.new_empty(rows, columns)
        buffer = self.gather_buffer(rows, each)
        if self.communicator is not None and buffer is not None:
            if buffer.data_ptr() != x.data_ptr():
                buffer.copy_(x)
            return self.communicator.all_gather_columns(buffer, out)
        parts = x.new_empty(self.size * rows, each)
        self._all_gather(parts, x.contiguous(), group=self._group)
        widths = [min(each, max(0, columns - rank * each)) for rank in range(self.size)]
        shown = [part[:, :width] for part, width in zip(torch.split(parts, rows), widths, strict=True)]
        return torch.cat(shown, dim=1, out=out)

    def all_gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Concatenate [S, n] of all ranks along rows, in rank order; every rank brings as many rows. Returns
        [size * S, n]."""
        if self.size == 1:
            return x
        rows = x.new_empty(self.size * x.shape[0], x.shape[1])
        self._all_gather(rows, x.contiguous(), group=self._group)
        return rows

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Copy rank 0's x to every rank, in place; returns x."""
        if self.size > 1:
            dist.broadcast(x, src=self._first_rank, group=self._group)
        return x

    def minimum(self, value: int) -> int:
        """Return the minimum of a value over all ranks of all pipeline stages. Synchronizes the ranks."""
        if self._world_size == 1:
            return value
        smallest = torch.tensor(value, dtype=torch.int64, device=self.device)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def close(self) -> None:
        """Destroy the process group; a collective call."""
        if self._world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(info: RankInfo, device: torch.device) -> TPGroup:
    """Join the group of a rank: NCCL on CUDA, gloo elsewhere; waits for all ranks.

    Raises:
        EngineError: the other ranks cannot be reached in time.
    """
    if info.size == 1:
        return TPGroup(0, 1, device)
    one_shot = info.one_shot
    if info.store is None:
        store = launcher_store(info)
        if one_shot:
            one_shot = _on_one_machine(info, store)
    else:
        # All ranks are on this machine, so the rendezvous needs no port. Connections stay on the loopback interface
        # unless the environment names another interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        store = dist.FileStore(info.store, info.size)  # type: ignore[attr-defined]
    _join_all(info, device, store)
    group = None
    if info.stages > 1 and info.tp > 1:
        for first in range(0, info.size, info.tp):  # every rank takes part in the creation of every group
            made = dist.new_group(list(range(first, first + info.tp)))
            group = made if first == info.rank - info.tp_rank else group
    return TPGroup(
        info.tp_rank,
        info.tp,
        device,
        group,
        first_rank=info.rank - info.tp_rank,
        world_size=info.size,
        one_shot=one_shot,
    )


def _join_all(info: RankInfo, device: torch.device, store: Store) -> None:
    """Create torch's default process group, of all ranks.

    Raises:
        EngineError: the other ranks cannot be reached in time.
    """
    cuda = device.type == "cuda"
    try:
        # With a device id, NCCL connects now instead of within the first step or the first graph capture.
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=store,
            rank=info.rank,
            world_size=info.size,
            timeout=timedelta(seconds=info.timeout_s),
            device_id=device if cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"rank {info.rank} of {info.size} cannot reach the others: {error}") from error


def _on_one_machine(info: RankInfo, store: Store) -> bool:
    """Return True if all ranks of the stage run on the same machine, by a comparison of boot ids. Launchers do not
    reliably say how many ranks share a machine."""
    store.set(f"radixrt/machine/{info.rank}", f"{socket.gethostname()} {_boot_id()}")
    try:
        first = info.rank - info.tp_rank
        return len({store.get(f"radixrt/machine/{rank}") for rank in range(first, first + info.tp)}) == 1
    except RuntimeError as error:
        raise EngineError(f"rank {info.rank} of {info.size} cannot reach the others: {error}") from error


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def launcher_store(info: RankInfo) -> Store:
    """Return the store at MASTER_ADDR and MASTER_PORT. torchrun serves a store; otherwise the launcher's rank 0 opens
    the store now, on the socket `store_descriptor` if given. The store exists until the process ends, because other
    ranks read from it.

    Raises:
        EngineError: the store cannot be opened or reached.
    """
    return _launcher_store(info.known_as, info.size, info.timeout_s, info.store_descriptor)


@functools.cache
def _launcher_store(rank: int, size: int, timeout_s: float, descriptor: int | None) -> Store:
    from torch.distributed.rendezvous import rendezvous

    try:
        if descriptor is not None:
            return dist.TCPStore(  # type: ignore[attr-defined]
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                size,
                is_master=True,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                master_listen_fd=descriptor,
            )
        found = rendezvous("env://", rank, size, timeout=timedelta(seconds=timeout_s))
        return next(found)[0]
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"rank {rank} of {size} cannot reach the others: {error}") from error


def rank_device(device: torch.device, info: RankInfo) -> torch.device:
    """Return the device of a rank. With several ranks or replicas, also make the device the current one.

    Raises:
        ConfigError: this machine has too few devices.
    """
    alone = info.size == info.local_size == 1 and not info.local_rank  # a replica added later has a local rank above 0
    if device.type != "cuda" or alone:
        return device
    count = torch.cuda.device_count()
    if info.local_rank >= count:
        raise ConfigError(
            f"tp * pp = {info.size}: rank {info.rank} needs a CUDA device of its own (number {info.local_rank}), and"
            f" this machine shows {count}; lower tp, pp or replicas, or show more devices (CUDA_VISIBLE_DEVICES)"
        )
    torch.cuda.set_device(info.local_rank)
    return torch.device("cuda", info.local_rank)
