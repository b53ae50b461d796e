"""Pages that a rank copies out of the arena of another replica, in real memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixrt.distributed.rank_info import RankInfo
from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import KEY_BYTES, KVDrop, KVOpen, KVPull, arena_path
from radixrt.messages.wire import pack_i32
from radixrt.parts.tiers.namespaces import namespace_id
from radixrt.parts.tiers.records import PageRecords
from radixrt.parts.tiers.runner import file_moves
from radixrt.parts.tiers.runner.peer_pages import PeerPages
from tests.parts.tiers.test_mover import NUM_PLACES, PAGE, Rank, into, out, page, random_pool, rows

TOKENS = np.arange(3 * PAGE, dtype=np.int32)
THEIRS = [2, 5, 3]
"""Pages of the other replica that have TOKENS."""


class Two:
    """A replica with pages, another one that copies the pages, and the memory that outlives both."""

    def __init__(self, folder: Path, rank_info: RankInfo) -> None:
        self.rank = rank_info.rank
        self.arenas = [str(folder / f"arena-{i}") for i in range(2)]
        self.table = str(folder / "records")
        self.files = [MemoryFile(arena_path(arena, self.rank)) for arena in self.arenas] + [MemoryFile(self.table)]
        self.a, self.b = Rank(random_pool(), rank_info), Rank(random_pool(seed=1), rank_info)
        for rank, arena in zip((self.a, self.b), self.arenas):
            rank.order(KVOpen(arena, NUM_PLACES, PAGE))
        out(self.a, 1, page(1, 2, 3), page(*THEIRS))
        self.a.settle()
        self.bytes = rows(self.a.pool, page(1, 2, 3))
        self.records = PageRecords(self.table, NUM_PLACES // PAGE, PAGE)
        seed = namespace_id("")
        self.keys = self.records.write(np.array(THEIRS, np.int32), TOKENS, 0, seed, seed)

    def pull(self, **changes: Any) -> bool:
        """Copy the pages; return whether that has succeeded."""
        order = KVPull(1, pack_i32(THEIRS), self.keys, pack_i32([4, 1, 6]), self.arenas[0], self.table)
        self.b.order(msgspec.structs.replace(order, **changes))
        report = self.b.settle()
        assert len(report.finished_recving) + len(report.failed_recving) == 1
        assert not report.finished_sending
        assert all(seconds > 0 for seconds in report.seconds)
        return bool(report.finished_recving)

    def pulled(self) -> torch.Tensor:
        into(self.b, 9, page(4, 1, 6), page(0, 1, 2))
        self.b.settle()
        return rows(self.b.pool, page(0, 1, 2))

    def close(self) -> None:
        for rank in (self.a, self.b):
            rank.mover.close()
        for file in self.files:
            file.close()


@pytest.fixture(params=[RankInfo(), RankInfo(1, 2)], ids=["alone", "rank 1 of 2"])
def two(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Two]:
    made = Two(tmp_path, request.param)
    yield made
    made.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "radixrt-tiers"]


def test_the_bytes_are_those_of_the_other_replica(two: Two) -> None:
    assert two.pull()
    assert two.pulled().equal(two.bytes)


def test_pages_of_a_replica_whose_processes_are_gone_are_copied(two: Two) -> None:
    two.a.mover.close()
    assert two.pull()
    assert two.pulled().equal(two.bytes)


def test_what_the_other_replica_does_not_have_is_refused(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    other = two.keys[:-1] + bytes([two.keys[-1] ^ 1])
    assert not two.pull(keys=other)
    assert not two.pull(theirs=pack_i32([2, 5, 4]))
    assert not two.pull(theirs=pack_i32([2, 5, 2**31 - 1]))
    assert not two.pull(theirs=pack_i32([2, 5, -7]))
    two.records.clear(np.array([3], np.int32))
    assert not two.pull()
    assert not [each for each in caplog.records if "computed" in each.getMessage()]


@pytest.mark.parametrize("what", ["arena", "records", "short"])
def test_memory_that_is_gone_or_too_short_fails_the_move_with_one_warning(
    two: Two, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "short":
        os.truncate(arena_path(two.arenas[0], two.rank), 100)
        changes = {}
    else:
        changes = {what: "/nowhere"}
    assert not two.pull(**changes)
    assert not two.pull(**changes)
    assert ["cannot copy keys and values of another replica" in each.getMessage() for each in caplog.records] == [True]


def replaced_while_read(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other replica evicts a page in the middle of the copy, and computes the same tokens again."""

    def read(self: PeerPages, number: int, first: int, target: Any) -> None:
        if number == THEIRS[1]:
            pages, arena = np.array([number], np.int32), Path(arena_path(two.arenas[0], two.rank))
            two.records.clear(pages)
            with arena.open("r+b") as file:
                file.seek(number * self._page_bytes)
                file.write(b"\7" * self._page_bytes)
            seed = namespace_id("")
            two.records.write(pages, TOKENS[: 2 * PAGE], PAGE, two.keys[:KEY_BYTES], seed)
        real(self, number, first, target)

    real = PeerPages.read
    with monkeypatch.context() as patch:
        patch.setattr(PeerPages, "read", read)
        succeeded = two.pull()
    assert not succeeded or two.pulled().equal(two.bytes)


def test_a_page_that_is_replaced_while_it_is_read_fails_the_move(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_while_read(two, monkeypatch)


def never_again(self: PeerPages, number: int, key: bytes) -> int:
    return 0


def only_the_key(self: PeerPages, number: int, key: bytes) -> int:
    found = self._records.changes(number, key)
    assert found is not None
    return 0


@pytest.mark.parametrize("changes", [never_again, only_the_key])
def test_key_and_count_are_needed_after_the_copy(
    two: Two, changes: Callable[[PeerPages, int, bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerPages, "changes", changes)
    with pytest.raises(AssertionError):
        replaced_while_read(two, monkeypatch)


def test_a_dropped_pull_writes_nothing_more(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def changes(self: PeerPages, number: int, key: bytes) -> int:
        begun.set()
        assert go_on.wait(30)
        return real(self, number, key)

    real = PeerPages.changes
    monkeypatch.setattr(PeerPages, "changes", changes)
    arena = Path(arena_path(two.arenas[1], two.rank))
    before = arena.read_bytes()
    two.b.order(KVPull(1, pack_i32(THEIRS), two.keys, pack_i32([4, 1, 6]), two.arenas[0], two.table))
    assert begun.wait(30)
    two.b.order(KVDrop())
    go_on.set()
    assert two.pull(move=2, pages=pack_i32([2, 3, 5]))
    after = arena.read_bytes()
    size = len(before) // (NUM_PLACES // PAGE + 1)
    for number in (4, 1, 6):
        assert after[number * size : (number + 1) * size] == before[number * size : (number + 1) * size]


def test_a_rank_without_an_arena_fails_every_pull(tmp_path: Path) -> None:
    rank = Rank(random_pool(), RankInfo())
    rank.order(KVOpen(str(tmp_path / "none"), NUM_PLACES, PAGE))
    rank.order(KVPull(1, pack_i32([1]), bytes(KEY_BYTES), pack_i32([1]), "", ""))
    assert rank.settle().failed_recving == [1]
    rank.mover.close()


def test_files_and_pulls_share_one_thread(two: Two, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    two.b.order(KVOpen(two.arenas[1], NUM_PLACES, PAGE, str(tmp_path / "disk"), 4, b"model"))
    assert two.pull()
    assert file_moves.FileMoves is type(two.b.mover._files)
    assert len([thread for thread in threading.enumerate() if thread.name == "radixrt-tiers"]) == 1
