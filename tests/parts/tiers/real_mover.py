"""`RealHost`: the runner end of tiers as it is, over a pool whose keys and values are cells, with arena and files.

The copies are of host memory, or of a device whose streams do their work when the test wants.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from radixrt.distributed.rank_info import RankInfo
from radixrt.messages.kv_moves import KVIn, KVOpen, arena_path
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.parts.tiers.runner.arena import Arena
from radixrt.parts.tiers.runner.mover import Mover
from radixrt.parts.tiers.runner.page_file import PageError, PageFile
from radixrt.parts.tiers.runner.pool_copies import HostCopies, PoolCopies
from radixrt.parts.tiers.runner.staging import StagedCopies
from radixrt.parts.tiers.settings import data_path, page_stride
from tests.parts.tiers.fake_mover import Cells, FakeHost, FakeMover, Move, decode_order
from tests.parts.tiers.late_link import LateLink

ROW_BYTES = 16
"""A cell: the digest up to the token stands for its keys, the digest before the token for its values."""


READY: list[bool | OSError] = [*[True] * 8, False, OSError()]
"""Whether the device can copy rows of the arena, each time that something is asked of the link."""


class RealHost(FakeHost):
    """Arena and files of each rank, as the main process makes them.

    Args:
        late: copies go through staging memory, on streams that are late; otherwise host memory is copied.
    """

    def __init__(self, ranks: int, num_places: int, page: int, random: Random, *, late: bool) -> None:
        self.late = late
        self.random = random
        self._folder = tempfile.TemporaryDirectory()
        self.disk = self._folder.name
        self._boots = 0
        super().__init__(ranks, num_places, page)

    def make_mover(self, rank: int, cells: Cells, write: Callable[[Int32Array, Cells], None]) -> FakeMover:
        return RealMover(rank, cells, write, self)

    def reboot(self) -> None:
        self._boots += 1
        self.arena = f"{self._folder.name}/arena-{self._boots}"
        self.arenas = []
        for rank in range(self.ranks):
            path = Path(arena_path(self.arena, rank))
            path.touch(0o600)
            rows = Arena(str(path), self.num_places + self.page, ROW_BYTES).rows
            self.arenas.append(rows.numpy().view(np.int64))

    def file_page(self, rank: int, number: int, key: bytes) -> Cells | None:
        if not os.path.exists(data_path(self.disk, rank)):
            return None
        layout = self.mover_of(rank)._layout(KVOpen("", 0, self.page))
        file = PageFile(data_path(self.disk, rank), self.page * ROW_BYTES, layout)
        try:
            file.read(number, key)
        except PageError:
            return None
        finally:
            file.close()
        return file.page.view(np.int64).reshape(-1, 2)

    def mover_of(self, rank: int) -> Mover:
        cells = np.zeros((1, 2), np.int64)
        return RealMover(rank, cells, lambda slots, cells: None, self).mover

    def damage_file(self, rank: int, number: int) -> None:
        path, stride = data_path(self.disk, rank), page_stride(self.page * ROW_BYTES)
        if not os.path.exists(path):
            return
        pages = os.path.getsize(path) // stride
        if pages < 2:
            return
        page, other = 1 + number % (pages - 1), 1 + number // 7 % (pages - 1)
        with open(path, "r+b") as file:
            match number % 4:
                case 0:
                    file.seek(page * stride + number % stride)
                    byte = file.read(1) or b"\0"
                    file.seek(-len(byte), os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 1]))
                case 1:
                    file.truncate(page * stride + number % stride)
                case 2:
                    file.seek(page * stride)
                    file.write(bytes(stride))
                case _:
                    file.seek(other * stride)
                    data = file.read(stride)
                    file.seek(page * stride)
                    file.write(data)

    def close(self) -> None:
        self._folder.cleanup()


class RealMover(FakeMover):
    """A `Mover` whose work is done when the test wants, as a `FakeMover`."""

    def __init__(self, rank: int, cells: Cells, write: Callable[[Int32Array, Cells], None], host: RealHost) -> None:
        super().__init__(rank, cells, write, host)
        self.mover = _Mover(RankInfo(rank=rank, size=host.ranks), self._make_copies)
        self.link: LateLink | None = None
        self._random, self._late = host.random, host.late
        numbers = torch.from_numpy(cells)
        pool: Any = SimpleNamespace(k=[numbers[:, :1]], v=[numbers[:, 1:]])
        self.mover.use(pool, torch.device("cpu"))

    def _make_copies(self, tensors: list[torch.Tensor], rows: torch.Tensor) -> PoolCopies:
        if not self._late:
            return HostCopies(tensors, rows)
        arena: Any = SimpleNamespace(memory=rows.view(-1), rows=rows)
        self.link = LateLink(arena)
        return StagedCopies(_Rows(self, tensors), self.link, self._host.page, torch.device("cpu"))

    @property
    def moves(self) -> list[Move]:
        return [Move(0, "any", False, iter(()))] if self.mover.is_busy else []

    @moves.setter
    def moves(self, moves: list[Move]) -> None: ...

    def order(self, data: bytes) -> None:
        if self.link is not None:
            self.link.ready = self._random.choice(READY)
        self.mover.order(data)
        order = decode_order(data)
        if isinstance(order, KVIn) and not self._late:
            self.wrote(unpack_i32(order.slots))

    def wrote(self, slots: Int32Array) -> None:
        self._write(slots, self._cells[slots])

    def poll(self) -> bytes | None:
        return self.mover.poll()

    def reset(self) -> None:
        self.mover.reset()

    def kill(self) -> None:
        if self.link is not None:
            for stream in self.link.streams.values():
                for launch in stream:
                    launch.is_done = True  # nothing waits for a device that is gone
                stream.clear()
        self.mover.close()

    def step(self, move: Move) -> None:
        if self.link is None or self._random.random() < 0.2:
            time.sleep(1e-4)  # for the thread of the files
            return
        self.link.ready = self._random.choice(READY)
        self.link.run(self._random.choice(["out", "in"]))

    def fail(self, move: Move) -> None:
        self.step(move)


class _Mover(Mover):
    def __init__(self, rank_info: RankInfo, make: Callable[[list[torch.Tensor], torch.Tensor], PoolCopies]) -> None:
        super().__init__(rank_info)
        self._make = make

    def _open(self, opening: KVOpen) -> None:
        super()._open(opening)
        if isinstance(self._copies, HostCopies):
            arena = Arena(arena_path(opening.arena, self._rank_info.rank), opening.page + opening.num_places, ROW_BYTES)
            self._copies = self._make(self._tensors, arena.rows)


class _Rows:
    """The pool as rows. Gathering is done at once, as the steps of the compute stream, and scattering by its stream."""

    row_bytes = ROW_BYTES

    def __init__(self, mover: RealMover, tensors: list[torch.Tensor]) -> None:
        self._mover = mover
        self._keys, self._values = tensors

    def upload(self, slots: Int32Array) -> Int32Array:
        return slots

    def gather(self, slots: Int32Array, rows: torch.Tensor) -> None:
        index = torch.from_numpy(slots.astype(np.int64))
        for tensor, part in self._parts(rows):
            part.copy_(tensor[index].view(torch.uint8))

    def scatter(self, slots: Int32Array, rows: torch.Tensor) -> None:
        assert self._mover.link is not None
        self._mover.link.launch(self._mover.link.current, partial(self._write, slots, rows))

    def _write(self, slots: Int32Array, rows: torch.Tensor) -> None:
        index = torch.from_numpy(slots.astype(np.int64))
        for tensor, part in self._parts(rows):
            tensor[index] = part.contiguous().view(torch.int64)
        self._mover.wrote(slots)

    def _parts(self, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self._keys, rows[:, :8]), (self._values, rows[:, 8:])]
