"""The fake mover finds what it is there to find."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from radixrt.messages.kv_moves import KVConnectorOutput, KVDrop, KVIn, KVLoad, KVOpen, KVOrder, KVOut, KVSave
from radixrt.messages.wire import pack_i32
from tests.parts.tiers.fake_mover import FakeHost, FakeMover, cells_of, no_cells

PAGE = 4
TOKENS = np.arange(1, 9, dtype=np.int32)
SLOTS = np.arange(10, 18, dtype=np.int32)
PLACES = np.array([8, 9, 10, 11, 4, 5, 6, 7], np.int32)
KEYS = b"a" * 16 + b"b" * 16


class Rank:
    def __init__(self) -> None:
        self.host = FakeHost(1, 16, PAGE)
        self.cells = no_cells(32)
        self.cells[SLOTS] = cells_of(TOKENS)
        self.mover = FakeMover(0, self.cells, lambda slots, cells: None, self.host)
        self.order(KVOpen("", 16, PAGE, "disk", 8))

    def order(self, order: KVOrder) -> None:
        self.mover.order(msgspec.msgpack.encode(order))

    def finish(self) -> KVConnectorOutput:
        while self.mover.moves:
            self.mover.step(self.mover.moves[0])
        report = self.mover.poll()
        assert report is not None
        assert self.mover.poll() is None
        return msgspec.msgpack.decode(report, type=KVConnectorOutput)

    def out(self) -> None:
        self.order(KVOut(1, pack_i32(SLOTS), pack_i32(PLACES)))


def test_a_cell_continues_the_cell_before_it() -> None:
    long = np.arange(200, dtype=np.int32)
    cells = cells_of(long)
    assert cells[0, 1] == 0
    assert np.array_equal(cells[1:, 1], cells[:-1, 0])
    for length in (1, 63, 64, 65, 128):
        assert np.array_equal(cells_of(long[:length]), cells[:length])


def test_slots_may_be_reused_once_they_are_gathered() -> None:
    rank = Rank()
    rank.out()
    rank.cells[SLOTS] = -1
    assert rank.finish().finished_sending == [1]
    assert np.array_equal(rank.host.arenas[0][PLACES], cells_of(TOKENS))


def test_half_a_move_may_be_in_the_arena() -> None:
    rank = Rank()
    rank.out()
    rank.mover.step(rank.mover.moves[0])
    rank.mover.step(rank.mover.moves[0])
    rank.order(KVDrop())
    assert rank.mover.poll() is None
    written = rank.host.arenas[0][PLACES, 0] >= 0
    assert written.tolist() == [True] * 4 + [False] * 4


def test_a_dropped_move_never_writes_a_slot() -> None:
    rank = Rank()
    rank.out()
    rank.finish()
    rank.order(KVIn(2, pack_i32(PLACES), pack_i32(SLOTS + 8)))
    for _ in range(3):
        rank.mover.step(rank.mover.moves[0])
    rank.order(KVDrop())
    assert (rank.cells[SLOTS + 8] == -1).all()
    rank.order(KVIn(2, pack_i32(PLACES), pack_i32(SLOTS + 8)))
    assert rank.finish().finished_recving == [2]
    assert np.array_equal(rank.cells[SLOTS + 8], cells_of(TOKENS))


@pytest.mark.parametrize("fault", ["", "key", "bytes", "missing", "another"])
def test_a_page_of_a_file_is_checked_when_it_is_loaded(fault: str) -> None:
    rank = Rank()
    rank.out()
    rank.finish()
    rank.order(KVSave(2, pack_i32([2, 1]), pack_i32([5, 3]), KEYS))
    assert rank.finish().finished_sending == [2]
    files = rank.host.files[0]
    if fault == "bytes":
        files[3].cells[2, 0] ^= 1
    elif fault == "missing":
        del files[3]
    elif fault == "another":
        files[3] = files[5]
    keys = KEYS[::-1] if fault == "key" else KEYS
    rank.host.arenas[0][:] = -1
    rank.order(KVLoad(3, pack_i32([5, 3]), keys, pack_i32([2, 1])))
    report = rank.finish()
    assert report.failed_recving == ([3] if fault else [])
    if not fault:
        assert np.array_equal(rank.host.arenas[0][PLACES], cells_of(TOKENS))


def test_a_file_page_that_is_overwritten_meanwhile_is_not_loaded() -> None:
    rank = Rank()
    rank.out()
    rank.finish()
    rank.order(KVSave(2, pack_i32([2]), pack_i32([5]), KEYS[:16]))
    rank.finish()
    rank.order(KVLoad(3, pack_i32([5]), KEYS[:16], pack_i32([1])))
    rank.order(KVSave(4, pack_i32([2]), pack_i32([5]), KEYS[:16]))
    load, save = rank.mover.moves
    rank.mover.step(load)
    rank.mover.step(load)
    while save in rank.mover.moves:
        rank.mover.step(save)
    report = rank.finish()
    assert (report.finished_sending, report.failed_recving) == ([4], [3])
