"""`TPGroup`: the ranks that share one model, and the few things that they say to each other.

What a step says is here (the sums of partial products, the gathered logits, and the ids that rank 0 sampled) or,
between GPUs of one machine, in `one_shot`. It runs on the current stream and allocates nothing that a CUDA graph could
not capture. What is captured or launched must be the same on all ranks in the same order, so a rank may decide nothing
by what only it knows (its clock, its free memory).
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

from radixrt.distributed.one_shot import OneShot, make_one_shot
from radixrt.distributed.rank_place import RankPlace
from radixrt.errors import ConfigError, EngineError

Store = Any
"""A `torch.distributed.Store`, whose type torch does not export."""


class TPGroup:
    """One rank's end. With size 1 there is no process group, and nothing here does anything.

    Args:
        rank: of this process, below size.
        size: ranks that share the model.
        device: of the tensors that are exchanged; NCCL on CUDA, gloo elsewhere.
        store: where the ranks find each other; needed with more than one.
        timeout_s: the longest that ranks wait for each other, while loading too.
        one_shot: on CUDA, try `radixrt.distributed.one_shot`.

    Attributes:
        one_shot: None where NCCL or gloo does everything.

    Raises:
        EngineError: the others did not come.
    """

    one_shot: OneShot | None = None

    def __init__(
        self, rank: int, size: int, device: torch.device, store: Store | None = None, timeout_s: float = 600.0,
        *, one_shot: bool = False,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = size
        self._device = device
        if size == 1:
            return
        if store is None:
            raise ValueError("a group of more than one rank needs a store")
        # The older name is deprecated where there is the newer one.
        name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
        self._all_gather: Callable[[torch.Tensor, torch.Tensor], Any] = getattr(dist, name)
        cuda = device.type == "cuda"
        try:
            # With a device id NCCL connects now, not within the first step or the first graph capture.
            dist.init_process_group(
                "nccl" if cuda else "gloo", store=store, rank=rank, world_size=size,
                timeout=timedelta(seconds=timeout_s), device_id=device if cuda else None,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"rank {rank} of {size} cannot reach the others: {error}") from error
        if cuda and one_shot:
            self.one_shot = make_one_shot(rank, size, device)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum x over the ranks, in place; returns x."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gather_place(self, rows: int, columns: int) -> torch.Tensor | None:
        """Where this rank's float32 [rows, columns] is best written for `gather_columns`; None if anywhere is."""
        return None if self.one_shot is None else self.one_shot.gather_place(rows, columns)

    def gather_columns(self, x: torch.Tensor, columns: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Each rank's float32 [S, n] side by side in rank order, on every rank -> [S, columns], contiguous.

        Every rank gets them, not rank 0 alone: through NVLink that takes no longer, it is one collective in place of
        sends and receives, and what scores a prompt is the same code on every rank.

        Args:
            columns: at most size * n; what is behind them is padding.
            out: filled and returned, if given.
        """
        rows, each = x.shape
        if out is None:
            out = x.new_empty(rows, columns)
        place = self.gather_place(rows, each)
        if self.one_shot is not None and place is not None:
            if place.data_ptr() != x.data_ptr():
                place.copy_(x)
            return self.one_shot.gather_columns(place, out)
        parts = x.new_empty(self.size * rows, each)
        self._all_gather(parts, x.contiguous())
        widths = [min(each, max(0, columns - rank * each)) for rank in range(self.size)]
        shown = [part[:, :width] for part, width in zip(torch.split(parts, rows), widths, strict=True)]
        return torch.cat(shown, dim=1, out=out)

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's x on every rank, in place; returns x."""
        if self.size > 1:
            dist.broadcast(x, src=0)
        return x

    def minimum(self, value: int) -> int:
        """The smallest of the ranks' values; waits for all of them."""
        if self.size == 1:
            return value
        smallest = torch.tensor(value, dtype=torch.int64, device=self._device)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def close(self) -> None:
        """Leave the group; all ranks do."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(place: RankPlace, device: torch.device) -> TPGroup:
    """The group of a rank; waits until all have come. Raises EngineError as `TPGroup` does."""
    if place.size == 1:
        return TPGroup(0, 1, device)
    one_shot = place.one_shot
    if place.store is None:
        store = launcher_store(place)
        if one_shot:
            one_shot = _on_one_machine(place, store)
    else:
        # The ranks are on this machine: no port, and their connections stay on the loopback interface, unless the
        # environment names another.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        store = dist.FileStore(place.store, place.size)  # type: ignore[attr-defined]
    return TPGroup(place.rank, place.size, device, store, place.timeout_s, one_shot=one_shot)


def _on_one_machine(place: RankPlace, store: Store) -> bool:
    """Whether all ranks run on one, by what the ranks themselves say: launchers need not tell."""
    store.set(f"radixrt/machine/{place.rank}", f"{socket.gethostname()} {_boot_id()}")
    try:
        return len({store.get(f"radixrt/machine/{rank}") for rank in range(place.size)}) == 1
    except RuntimeError as error:
        raise EngineError(f"rank {place.rank} of {place.size} cannot reach the others: {error}") from error


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def launcher_store(place: RankPlace) -> Store:
    """The store at MASTER_ADDR and MASTER_PORT: torchrun's own, or one that rank 0 opens now. It lives as long as the
    process, because others read it.

    Raises:
        EngineError: it cannot be opened or reached.
    """
    return _launcher_store(place.rank, place.size, place.timeout_s)


@functools.cache
def _launcher_store(rank: int, size: int, timeout_s: float) -> Store:
    from torch.distributed.rendezvous import rendezvous

    try:
        found = rendezvous("env://", rank, size, timeout=timedelta(seconds=timeout_s))
        return next(found)[0]
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"rank {rank} of {size} cannot reach the others: {error}") from error


def rank_device(device: torch.device, place: RankPlace) -> torch.device:
    """The device of a rank, made current where there is more than one.

    Raises:
        ConfigError: this machine has too few.
    """
    if device.type != "cuda" or place.size == 1:
        return device
    count = torch.cuda.device_count()
    if place.local_rank >= count:
        raise ConfigError(
            f"tp={place.size}: rank {place.rank} needs a CUDA device of its own, and this machine shows {count};"
            " lower tp, or show more devices (CUDA_VISIBLE_DEVICES)"
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)
