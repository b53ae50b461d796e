"""The runner's end of tiers on the CPU: bytes out of a pool and in again, pages of files, every fault, drops, reset."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.distributed.rank_info import RankInfo
from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import (
    KVConnectorOutput,
    KVDrop,
    KVIn,
    KVLoad,
    KVOpen,
    KVOrder,
    KVOut,
    KVSave,
    arena_path,
)
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.tiers.runner import file_moves, page_file
from radixrt.parts.tiers.runner.file_moves import FileMoves
from radixrt.parts.tiers.runner.mover import Mover
from radixrt.parts.tiers.runner.page_file import PageFile
from radixrt.parts.tiers.settings import PAGE_HEADER_BYTES, data_path, page_stride

PAGE = 64
NUM_PLACES, NUM_FILES = 6 * PAGE, 9
LAYERS = [AttentionLayer(i, 4, heads, dim, 1.0) for i, (heads, dim) in enumerate([(2, 16), (2, 16), (1, 20)])]
KEYS = [bytes([i]) * 16 for i in range(8)]


def random_pool(dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> KVCache:
    """A pool of 500 slots of random bytes, NaNs among them."""
    pool = KVCache(LAYERS, 500, 1, dtype, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*pool.k, *pool.v):
        tensor.view(torch.uint8).random_(0, 256, generator=generator)
    return pool


def rows(pool: KVCache, slots: Int32Array) -> torch.Tensor:
    """uint8 [n, row_bytes] in the documented order: [layer][k, v][head][dim]."""
    at = torch.from_numpy(slots).long()
    parts = [each[at].view(torch.uint8).flatten(1) for k, v in zip(pool.k, pool.v, strict=True) for each in (k, v)]
    return torch.cat(parts, dim=1)


class Rank:
    """A mover with its pool, and the reports that it has given."""

    def __init__(self, pool: KVCache, rank_info: RankInfo) -> None:
        self.pool = pool
        self.mover = Mover(rank_info)
        self.mover.use(pool, torch.device("cpu"))
        self.reports: list[KVConnectorOutput] = []

    def order(self, order: KVOrder) -> None:
        self.mover.order(msgspec.msgpack.encode(order))

    def poll(self) -> None:
        while (data := self.mover.poll()) is not None:
            self.reports.append(msgspec.msgpack.decode(data, type=KVConnectorOutput))

    def settle(self) -> KVConnectorOutput:
        """Poll until nothing is under way; return all reports since the last call as one."""
        deadline = time.monotonic() + 30
        while self.mover.is_busy:
            assert time.monotonic() < deadline
            self.poll()
            time.sleep(0.001)
        reports, self.reports = self.reports, []
        sums: dict[str, list[Any]] = {name: [] for name in KVConnectorOutput.__struct_fields__}
        for report in reports:
            for name, values in sums.items():
                values += getattr(report, name)
        return KVConnectorOutput(**sums)


Make = Callable[..., Rank]


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[KVOpen]:
    """Memory of two ranks."""
    prefix = str(tmp_path / "arena")
    files = [MemoryFile(arena_path(prefix, rank)) for rank in range(2)]
    (tmp_path / "disk").mkdir()
    yield KVOpen(prefix, NUM_PLACES, PAGE, str(tmp_path / "disk"), NUM_FILES, b"model")
    for file in files:
        file.close()


@pytest.fixture
def make(opening: KVOpen) -> Iterator[Make]:
    ranks = []

    def made(pool: KVCache | None = None, rank_info: RankInfo = RankInfo(), opening: KVOpen = opening) -> Rank:  # noqa: B008
        ranks.append(Rank(pool or random_pool(), rank_info))
        ranks[-1].order(opening)
        return ranks[-1]

    yield made
    for rank in ranks:
        rank.mover.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "radixrt-tiers"]


def some(count: int, below: int, seed: int = 1) -> Int32Array:
    return np.random.default_rng(seed).permutation(np.arange(1, below, dtype=np.int32))[:count]


def page(*numbers: int) -> Int32Array:
    """Places of pages of the arena."""
    return np.concatenate([np.arange(n * PAGE, (n + 1) * PAGE, dtype=np.int32) for n in numbers])


def out(rank: Rank, move: int, slots: Int32Array, places: Int32Array) -> None:
    rank.order(KVOut(move, pack_i32(slots), pack_i32(places)))


def into(rank: Rank, move: int, places: Int32Array, slots: Int32Array) -> None:
    rank.order(KVIn(move, pack_i32(places), pack_i32(slots)))


def save(rank: Rank, move: int, pages: list[int], files: list[int], keys: list[bytes]) -> None:
    rank.order(KVSave(move, pack_i32(pages), pack_i32(files), b"".join(keys)))


def load(rank: Rank, move: int, files: list[int], keys: list[bytes], pages: list[int]) -> None:
    rank.order(KVLoad(move, pack_i32(files), b"".join(keys), pack_i32(pages)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "slots", [some(128, 500), np.arange(37, 165, dtype=np.int32)], ids=["scattered", "consecutive"]
)
@pytest.mark.parametrize("pages", [(2, 3), (5, 1)])
def test_bytes_come_back_into_other_slots(
    make: Make, opening: KVOpen, dtype: torch.dtype, slots: Int32Array, pages: tuple[int, int]
) -> None:
    rank = make(random_pool(dtype))
    whole = rows(rank.pool, np.arange(501, dtype=np.int32))
    out(rank, 1, slots, page(*pages))
    for tensor in (*rank.pool.k, *rank.pool.v):
        tensor.view(torch.uint8).bitwise_not_()  # a later step overwrites every slot
    found = np.fromfile(arena_path(opening.arena, 0), np.uint8)
    assert torch.from_numpy(found).view(NUM_PLACES + PAGE, -1)[page(*pages)].equal(whole[slots])

    target = some(128, 500, seed=2)
    into(rank, 2, page(*pages), target)
    expected = ~whole
    expected[target] = whole[slots]
    assert rows(rank.pool, np.arange(501, dtype=np.int32)).equal(expected)
    report = rank.settle()
    assert (report.finished_sending, report.finished_recving) == ([1], [2])
    assert len(report.seconds) == 2
    assert not report.failed_sending
    assert not report.failed_recving
    assert not rank.mover.is_busy
    assert rank.mover.poll() is None


def test_the_arena_outlives_the_rank(make: Make) -> None:
    first = make()
    out(first, 1, some(64, 500), page(4))
    first.settle()
    first.mover.close()
    second = make(random_pool(seed=5))
    into(second, 1, page(4), some(64, 500, seed=3))
    assert second.settle().finished_recving == [1]
    assert rows(second.pool, some(64, 500, seed=3)).equal(rows(first.pool, some(64, 500)))


def test_each_rank_has_its_arena_and_file(make: Make) -> None:
    ranks = [make(random_pool(seed=i), RankInfo(i, 2)) for i in range(2)]
    for rank in ranks:
        out(rank, 1, page(1), page(2))
        rank.settle()
        save(rank, 2, [2], [1], KEYS[:1])
        assert rank.settle().finished_sending == [2]
    for rank in ranks:
        expected = rows(rank.pool, page(1))
        load(rank, 3, [1], KEYS[:1], [5])
        rank.settle()
        into(rank, 4, page(5), page(3))
        rank.settle()
        assert rows(rank.pool, page(3)).equal(expected)


def test_opening_again_keeps_what_is_open(make: Make, opening: KVOpen) -> None:
    rank = make()
    out(rank, 1, page(1), page(2))
    rank.order(opening)
    assert rank.settle().finished_sending == [1]
    (thread,) = [each for each in threading.enumerate() if each.name == "radixrt-tiers"]
    rank.order(msgspec.structs.replace(opening, disk=""))
    assert not thread.is_alive()
    save(rank, 2, [2], [1], KEYS[:1])
    assert rank.settle().failed_sending == [2]


def test_a_missing_arena_fails_every_move(make: Make, opening: KVOpen, caplog: pytest.LogCaptureFixture) -> None:
    before = random_pool()
    rank = make(random_pool(), opening=msgspec.structs.replace(opening, arena=opening.arena + "-none"))
    out(rank, 1, page(1), page(2))
    into(rank, 2, page(2), page(3))
    save(rank, 3, [2], [1], KEYS[:1])
    load(rank, 4, [1], KEYS[:1], [2])
    report = rank.settle()
    assert (report.failed_sending, report.failed_recving, report.seconds) == ([1, 3], [2, 4], [])
    assert rows(rank.pool, page(3)).equal(rows(before, page(3)))
    assert "cannot open the host tier" in caplog.text
    assert not os.path.exists(arena_path(opening.arena + "-none", 0))


@pytest.mark.parametrize(("slots", "places"), [([501], [64]), ([-1], [64]), ([1], [7 * PAGE]), ([1, 2], [64])])
def test_indices_that_do_not_exist_end_the_rank(make: Make, slots: list[int], places: list[int]) -> None:
    rank = make()
    with pytest.raises(ValueError, match=r"is not below|for \d slots"):
        out(rank, 1, np.array(slots, np.int32), np.array(places, np.int32))


# --- files ---


def saved(make: Make) -> tuple[Rank, Path, torch.Tensor]:
    """A rank that has saved two pages with KEYS[:2] into file pages 7 and 3; the file; and the bytes."""
    rank = make()
    out(rank, 1, page(1, 2), page(4, 1))
    rank.settle()
    save(rank, 2, [4, 1], [7, 3], KEYS[:2])
    report = rank.settle()
    assert report.finished_sending == [2]
    assert report.seconds[0] > 0
    out(rank, 3, page(0, 0), page(4, 1))  # other bytes, so that only the file has the saved bytes
    rank.settle()
    folder = rank.mover._opening.disk  # type: ignore[union-attr]
    return rank, Path(data_path(folder, 0)), rows(rank.pool, page(1, 2))


def test_pages_come_back_from_the_file(make: Make) -> None:
    rank, path, expected = saved(make)
    assert path.stat().st_mode & 0o777 == 0o600
    load(rank, 4, [7, 3], KEYS[:2], [5, 2])
    report = rank.settle()
    assert report.finished_recving == [4]
    assert report.seconds[0] > 0
    into(rank, 5, page(5, 2), some(128, 500))
    rank.settle()
    assert rows(rank.pool, some(128, 500)).equal(expected)


def test_files_outlive_the_rank(make: Make) -> None:
    first, _, expected = saved(make)
    first.mover.close()
    second = make(random_pool(seed=9))
    load(second, 1, [3], KEYS[1:2], [6])
    assert second.settle().finished_recving == [1]
    into(second, 2, page(6), page(1))
    assert rows(second.pool, page(1)).equal(expected[PAGE:])


def cut(path: Path, start: int) -> None:
    os.truncate(path, start + PAGE_HEADER_BYTES + 100)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "too short"),
        (lambda path, start: os.truncate(path, 0), "too short"),
        (lambda path, start: flip(path, start), "header is damaged"),
        (lambda path, start: flip(path, start + 9), "of another model"),
        (lambda path, start: flip(path, start + 25), "other tokens"),
        (lambda path, start: flip(path, start + 41), "checksum"),
        (lambda path, start: flip(path, start + PAGE_HEADER_BYTES + 5000), "checksum"),
    ],
    ids=["cut", "empty", "magic", "layout", "key", "checksum", "bit"],
)
def test_a_damaged_page_never_reaches_the_arena(
    make: Make, damage: Callable[[Path, int], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    rank, path, _ = saved(make)
    damage(path, 7 * page_stride(PAGE * rows(rank.pool, page(1)).shape[1]))
    arena = Path(arena_path(rank.mover._opening.arena, 0))  # type: ignore[union-attr]
    before = np.fromfile(arena, np.uint8)
    load(rank, 4, [7], KEYS[:1], [5])
    load(rank, 5, [7], KEYS[:1], [5])
    report = rank.settle()
    assert (report.failed_recving, report.finished_recving) == ([4, 5], [])
    assert np.array_equal(np.fromfile(arena, np.uint8), before)
    assert reason in caplog.text
    assert len(caplog.records) == 1  # one warning for both


def test_a_page_of_other_tokens_is_refused(make: Make) -> None:
    rank, _, _ = saved(make)
    load(rank, 4, [7, 3], [KEYS[0], KEYS[2]], [5, 2])
    load(rank, 5, [8], KEYS[:1], [5])  # never written
    assert rank.settle().failed_recving == [4, 5]


@pytest.mark.parametrize(
    ("rank_info", "model"), [(RankInfo(0, 2, stages=2), b"model"), (RankInfo(0, 2), b"model"), (RankInfo(), b"other")]
)
def test_pages_of_another_model_or_split_are_refused(
    make: Make, opening: KVOpen, rank_info: RankInfo, model: bytes
) -> None:
    saved(make)[0].mover.close()
    other = make(random_pool(), rank_info, msgspec.structs.replace(opening, model=model))
    load(other, 1, [7], KEYS[:1], [5])
    assert other.settle().failed_recving == [1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_failing_disk_fails_moves_and_nothing_else(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    rank, _, expected = saved(make)

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        patch.setattr(os, "preadv", fail)
        save(rank, 4, [4], [1], KEYS[2:3])
        save(rank, 5, [4], [2], KEYS[2:3])
        load(rank, 6, [7], KEYS[:1], [5])
        report = rank.settle()
    assert (sorted(report.failed_sending), report.failed_recving) == ([4, 5], [6])
    assert os.strerror(code) in caplog.text
    assert len(caplog.records) == 1
    load(rank, 7, [7, 3], KEYS[:2], [5, 6])  # the disk works again
    assert rank.settle().finished_recving == [7]
    into(rank, 8, page(5, 6), some(128, 500))
    assert rows(rank.pool, some(128, 500)).equal(expected)


def test_a_folder_that_vanishes_or_is_no_folder(make: Make, opening: KVOpen, tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    os.symlink(tmp_path / "target", data_path(opening.disk, 1))
    for rank_info, disk in ((RankInfo(), str(tmp_path / "none")), (RankInfo(1, 2), opening.disk)):
        rank = make(random_pool(), rank_info, msgspec.structs.replace(opening, disk=disk))
        save(rank, 1, [2], [1], KEYS[:1])
        load(rank, 2, [1], KEYS[:1], [2])
        report = rank.settle()
        assert (report.failed_sending, report.failed_recving) == ([1], [2])
    assert not (tmp_path / "target").read_bytes()


def test_the_file_system_keeps_free_space(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rank, path, _ = saved(make)
    before = path.read_bytes()
    monkeypatch.setattr(page_file, "FREE_SHARE", 1.0)
    monkeypatch.setattr(page_file, "FREE_BYTES", 2**60)
    save(rank, 4, [4], [1], KEYS[2:3])
    assert rank.settle().failed_sending == [4]
    assert "would be free" in caplog.text
    assert path.read_bytes() == before


def test_short_writes_are_continued(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, start: write(fd, data[:1000], start))
    rank, _, _ = saved(make)
    load(rank, 4, [7, 3], KEYS[:2], [5, 2])
    assert rank.settle().finished_recving == [4]


# --- drops ---


class Stall:
    """Stops the file thread at the beginning of a call, until the stall is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.entered, self._release = threading.Event(), threading.Event()
        call = getattr(owner, name)

        def stalled(*args: object) -> object:
            self.entered.set()
            assert self._release.wait(30)
            return call(*args)

        monkeypatch.setattr(owner, name, stalled)

    def release(self) -> None:
        self._release.set()


@pytest.mark.parametrize("how", ["drop", "reset"])
def test_dropped_moves_are_not_reported_and_leave_the_arena(
    make: Make, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    rank, _, expected = saved(make)
    stall = Stall(monkeypatch, PageFile, "read")
    load(rank, 4, [7], KEYS[:1], [5])
    load(rank, 5, [3], KEYS[1:2], [6])
    save(rank, 6, [1], [1], KEYS[3:4])
    out(rank, 7, page(3), page(2))
    assert stall.entered.wait(30)
    if how == "drop":
        rank.order(KVDrop())
    else:
        rank.mover.reset()
    assert not rank.mover.is_busy
    assert rank.mover.poll() is None
    out(rank, 8, page(3), page(5))  # the page of the dropped load is used again
    assert rank.mover.poll() is not None
    stall.release()
    load(rank, 9, [7], KEYS[:1], [1])
    report = rank.settle()
    assert (report.finished_recving, report.finished_sending, report.failed_recving) == ([9], [], [])
    into(rank, 10, page(5, 1), some(128, 500))
    assert rows(rank.pool, some(128, 500)).equal(torch.cat([rows(random_pool(), page(3)), expected[:PAGE]]))


class DroppedPage:
    """Page of the arena that drops all moves while its second part is copied."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)
        self.moves: FileMoves | None = None
        self.parts = 0

    def __len__(self) -> int:
        return len(self.data)

    def _drop(self) -> None:
        self.parts += 1
        if self.parts == 2 and self.moves is not None:
            self.moves.drop()

    def __getitem__(self, part: slice) -> npt.NDArray[np.uint8]:
        self._drop()
        return self.data[part]

    def __setitem__(self, part: slice, data: npt.NDArray[np.uint8]) -> None:
        self._drop()
        self.data[part] = data


@pytest.mark.parametrize("saves", [True, False])
def test_a_move_dropped_within_a_page_copies_no_further_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    """The scheduler may use the page of the arena for other tokens from then on."""
    monkeypatch.setattr(file_moves, "COPIED_BYTES", 1000)
    file = PageFile(str(tmp_path / "file"), 5000, bytes(16))
    file.page[:] = 1
    file.write(1, KEYS[0])
    before = (tmp_path / "file").read_bytes()
    page = DroppedPage(5000)
    moves = FileMoves(file, [page])  # type: ignore[arg-type]
    page.moves = moves
    order = (
        KVSave(1, pack_i32([0]), pack_i32([1]), KEYS[1]) if saves else KVLoad(1, pack_i32([1]), KEYS[0], pack_i32([0]))
    )
    moves.begin(order, lambda: None)
    ended = threading.Event()
    while page.parts < 2:
        time.sleep(0.001)
    moves.begin(KVLoad(2, pack_i32([1]), KEYS[7], pack_i32([0])), ended.set)
    assert ended.wait(30)
    moves.close()
    assert page.parts == 2
    assert not page.data[2000:].any()
    assert (tmp_path / "file").read_bytes() == before


def test_loads_overtake_saves(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, _, _ = saved(make)
    stall = Stall(monkeypatch, PageFile, "write")
    save(rank, 4, [4], [1], KEYS[2:3])
    assert stall.entered.wait(30)
    save(rank, 5, [4], [2], KEYS[2:3])
    load(rank, 6, [7], KEYS[:1], [5])
    stall.release()
    order: list[int] = []
    deadline = time.monotonic() + 30
    while rank.mover.is_busy:
        assert time.monotonic() < deadline
        data = rank.mover._files.poll() if rank.mover._files is not None else []
        order += [each.move for each in data]
    assert order == [4, 6, 5]


def test_closing_waits_no_longer_than_it_must_for_a_stalled_disk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, _, _ = saved(make)
    monkeypatch.setattr(file_moves, "CLOSE_S", 0.01)
    stall = Stall(monkeypatch, PageFile, "read")
    load(rank, 4, [7], KEYS[:1], [5])
    assert stall.entered.wait(30)
    assert rank.mover._files is not None
    thread = rank.mover._files._thread
    rank.mover.close()
    assert thread.is_alive()  # close has given up
    stall.release()
    thread.join(30)
    assert not thread.is_alive()
