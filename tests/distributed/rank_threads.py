"""Ranks as threads of one process, so that what is split over ranks is tested without starting any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from radixrt.distributed.parallel import TPGroup

T = TypeVar("T")


class Meeting:
    """A barrier at which the threads of a group exchange values."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=240)
        self._brought: list[Any] = [None] * size

    def exchange(self, rank: int, mine: Any) -> list[Any]:
        self._brought[rank] = mine
        self.barrier.wait()
        everyones = list(self._brought)
        self.barrier.wait()
        return everyones


class ThreadGroup(TPGroup):
    """A TPGroup whose ranks are threads. Counts the collectives."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size = rank, meeting.size
        self.calls: list[str] = []
        self._meeting = meeting

    def _all(self, name: str, mine: Any) -> list[Any]:
        self.calls.append(name)
        return self._meeting.exchange(self.rank, mine)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(sum(self._all("all_reduce", x.clone())))

    def all_gather_columns(self, x: torch.Tensor, columns: int, out: torch.Tensor | None = None) -> torch.Tensor:
        everyones = torch.cat(self._all("all_gather_columns", x), dim=1)[:, :columns].contiguous()
        return everyones if out is None else out.copy_(everyones)

    def all_gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all("all_gather_rows", x))

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(self._all("broadcast", x.clone())[0])

    def minimum(self, value: int) -> int:
        return min(self._all("minimum", value))


def on_ranks(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """Run the work as each rank; its results in rank order."""
    meeting = Meeting(size)

    def one(rank: int) -> T:
        try:
            return work(ThreadGroup(rank, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        tasks = [pool.submit(one, rank) for rank in range(size)]
    failed = [e for t in tasks if (e := t.exception()) is not None and not isinstance(e, threading.BrokenBarrierError)]
    if failed:
        raise failed[0]
    return [task.result() for task in tasks]
