"""Copies through staging memory, on a link that copies as late as it may: a piece, a slot or a row that is used again
too early then has the wrong bytes. Also the registration of the arena, piece by piece."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import MAX_MOVES
from radixrt.messages.wire import Int32Array
from radixrt.parts.tiers.runner import arena as arena_module
from radixrt.parts.tiers.runner import staging
from radixrt.parts.tiers.runner.arena import Arena, Pinning, chunk_slices
from radixrt.parts.tiers.runner.pool_copies import Ended
from radixrt.parts.tiers.runner.staging import MAX_BEGUN, StagedCopies
from tests.parts.tiers.late_link import Device, LateLink

PAGE, ROW_BYTES, NUM_ROWS, NUM_SLOTS = 4, 10, 4 * 40, 300


class Pool:
    """A pool of one tensor, uint8 [slots, row_bytes]; rows with plain torch."""

    row_bytes = ROW_BYTES

    def __init__(self, device: Device) -> None:
        self.slots = torch.randint(256, (NUM_SLOTS, ROW_BYTES), dtype=torch.uint8)
        self._device = device

    def upload(self, slots: Int32Array) -> Int32Array:
        return slots

    def gather(self, slots: Int32Array, rows: torch.Tensor) -> None:
        self._device.launch("compute", lambda: rows.copy_(self.slots[torch.from_numpy(slots).long()]))

    def scatter(self, slots: Int32Array, rows: torch.Tensor) -> None:
        self._device.launch(
            self._device.current, lambda: self.slots.index_copy_(0, torch.from_numpy(slots).long(), rows)
        )

    def step(self, work: Callable[[], object]) -> None:
        """Launch a step."""
        self._device.launch("compute", work)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    file = MemoryFile(str(tmp_path / "arena"))
    yield Arena(str(tmp_path / "arena"), NUM_ROWS, ROW_BYTES)
    file.close()


@pytest.fixture
def link(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> LateLink:
    monkeypatch.setattr(staging, "MOVE_BYTES", 8 * ROW_BYTES)
    monkeypatch.setattr(arena_module, "CHUNK_BYTES", 64)  # no multiple of a row
    torch.manual_seed(0)
    return LateLink(arena)


def copies(pool: Pool, link: LateLink) -> StagedCopies:
    return StagedCopies(pool, link, PAGE, torch.device("cpu"))


def numbers(first: int, count: int = PAGE) -> Int32Array:
    return np.arange(first, first + count, dtype=np.int32)


def test_slots_are_free_as_soon_as_they_are_gathered(link: LateLink) -> None:
    pool = Pool(link)
    moves = copies(pool, link)
    expected = pool.slots[20:24].clone()
    moves.out(1, numbers(20), numbers(8))
    pool.slots.zero_()
    assert moves.poll() == []
    assert moves.is_busy
    link.run("out")
    assert moves.poll() == [Ended(1, True, 0.5)]
    assert not moves.is_busy
    assert link.arena.rows[8:12].equal(expected)


def test_slots_are_written_when_the_copy_is_reported(link: LateLink) -> None:
    pool = Pool(link)
    moves = copies(pool, link)
    link.arena.rows.random_(0, 256)
    before = pool.slots.clone()
    link.late = True
    pool.step(lambda: pool.slots.copy_(before))  # a step before the order, which still uses the slots
    moves.into(1, np.array([8, 9, 30, 31], np.int32), np.array([5, 2, 90, 4], np.int32))
    link.run("in", 4)
    assert moves.poll() == []
    assert pool.slots.equal(before)
    link.run("compute", 2)
    link.run("in", 4)
    assert moves.poll() == [Ended(1, False, 0.5)]
    before[[5, 2, 90, 4]] = link.arena.rows[[8, 9, 30, 31]]
    assert pool.slots.equal(before)


def test_a_long_copy_into_slots_reuses_its_piece(link: LateLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """One order, whose 20 rows go through a piece of eight rows; reported once, behind the last part."""
    monkeypatch.setattr(staging, "RECEIVED_MOVES", 1)
    pool = Pool(link)
    moves = copies(pool, link)
    link.arena.rows.random_(0, 256)
    expected = pool.slots.clone()
    slots = np.random.default_rng(0).permutation(NUM_SLOTS).astype(np.int32)[:20]
    places = np.concatenate([numbers(40, 12), numbers(8, 8)])
    moves.into(1, places, slots)
    link.run("in", 9)
    assert moves.poll() == []
    link.run("in")
    assert moves.poll() == [Ended(1, False, 0.5)]
    expected[slots] = link.arena.rows[places]
    assert pool.slots.equal(expected)


def test_moves_are_as_long_as_the_scheduler_orders(link: LateLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens as MOVE_BYTES has, which are no whole pages; pieces of an order into slots are whole pages."""
    monkeypatch.setattr(staging, "MOVE_BYTES", 11 * ROW_BYTES - 1)
    monkeypatch.setattr(staging, "RECEIVED_MOVES", 1)
    pool = Pool(link)
    moves = copies(pool, link)
    expected = pool.slots[20:30].clone()
    moves.out(1, numbers(20, 10), numbers(8, 10))
    link.run("out")
    assert moves.poll() == [Ended(1, True, 0.5)]
    assert link.arena.rows[8:18].equal(expected)
    moves.into(2, numbers(8, 10), numbers(100, 10))
    assert len(link.streams["in"]) == 7, "eight rows, then two"
    link.run("in", 7)
    assert moves.poll() == [Ended(2, False, 0.5)]
    assert pool.slots[100:110].equal(expected)


def test_few_copies_into_slots_are_launched_at_a_time(link: LateLink) -> None:
    """Between two launches the host may launch a step."""
    pool = Pool(link)
    moves = copies(pool, link)
    for move in range(MAX_BEGUN + 2):
        moves.into(move, numbers(8 + 4 * move), numbers(20 + 4 * move))
    assert len(link.streams["in"]) == 4 * MAX_BEGUN
    link.run("in", 4)
    assert [each.move for each in moves.poll()] == [0]
    assert len(link.streams["in"]) == 4 * (MAX_BEGUN - 1)
    assert moves.poll() == []
    assert len(link.streams["in"]) == 4 * MAX_BEGUN
    while moves.is_busy:
        link.run("in", 4)
        moves.poll()
    last = MAX_BEGUN + 1
    assert pool.slots[20 + 4 * last : 24 + 4 * last].equal(link.arena.rows[8 + 4 * last : 12 + 4 * last])


def test_a_dropped_copy_never_writes_a_slot(link: LateLink) -> None:
    """After the drop: the device scatters what it has begun before the steps that follow."""
    pool = Pool(link)
    moves = copies(pool, link)
    link.ready = False
    moves.into(1, numbers(8), numbers(20))
    before = pool.slots.clone()
    moves.drop()
    link.ready = True
    assert moves.poll() == []
    link.run("in", 4)
    assert pool.slots.equal(before)
    link.late = True
    moves.into(2, numbers(12), numbers(24))
    moves.drop()
    pool.step(lambda: pool.slots.copy_(before))
    link.close()
    assert moves.poll() == []
    assert not moves.is_busy
    assert pool.slots.equal(before)


def test_rows_of_a_dropped_copy_are_used_again(link: LateLink) -> None:
    """By a copy out of the pool, and by another thread after the fence."""
    pool = Pool(link)
    moves = copies(pool, link)
    for move in range(MAX_MOVES):
        moves.out(move, numbers(20 + 4 * move), numbers(8 + 4 * move))
    moves.drop()
    fence = moves.fence()
    for move in range(MAX_MOVES):  # in all pieces again
        moves.out(10 + move, numbers(60 + 4 * move), numbers(8 + 4 * move))
    fence()
    link.run("out", MAX_MOVES)
    assert [each.move for each in moves.poll()] == [*range(10, 10 + MAX_MOVES)]
    assert link.arena.rows[8 : 8 + 4 * MAX_MOVES].equal(pool.slots[60 : 60 + 4 * MAX_MOVES])
    moves.out(1, numbers(0), numbers(8))
    moves.drop()
    moves.fence()()
    link.arena.rows.zero_()
    link.run("out", MAX_MOVES)
    assert not link.arena.rows.any()


def test_a_move_without_a_piece_fails(link: LateLink, caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(link)
    moves = copies(pool, link)
    for move in range(MAX_MOVES + 1):
        moves.out(move, numbers(20), numbers(8 + 4 * move))
        moves.into(100 + move, numbers(80), numbers(100 + 4 * move))
    moves.out(50, numbers(20, 9), numbers(8, 9))
    assert moves.poll() == [Ended(MAX_MOVES, True, None), Ended(50, True, None)]
    assert "no piece of staging memory is free" in caplog.text
    link.run("out", MAX_MOVES)
    ended = []
    for _ in range(MAX_MOVES):
        link.run("in", 4 * MAX_BEGUN)
        ended += moves.poll()
    link.run("in", 4 * MAX_BEGUN)
    ended += moves.poll()
    assert len(ended) == 2 * MAX_MOVES + 1, "copies into the pool share one piece"
    moves.out(60, numbers(20, 9), numbers(8, 9))  # larger than a piece
    assert moves.poll() == [Ended(60, True, None)]
    assert not moves.is_busy


def test_moves_wait_for_the_arena_but_slots_do_not(link: LateLink) -> None:
    pool = Pool(link)
    moves = copies(pool, link)
    expected = pool.slots[20:24].clone()
    link.ready = False
    moves.out(1, numbers(20), numbers(8))
    moves.into(2, numbers(12), numbers(40))
    pool.slots[20:24] = 0
    assert moves.poll() == []
    assert not link.streams["out"]
    link.ready = True
    assert moves.poll() == []
    link.run("out")
    link.run("in", 4)
    assert [each.move for each in moves.poll()] == [1, 2]
    assert link.arena.rows[8:12].equal(expected)


def test_moves_fail_if_the_arena_cannot_be_registered(link: LateLink) -> None:
    pool = Pool(link)
    moves = copies(pool, link)
    before = pool.slots.clone()
    link.ready = OSError("refused")
    for move in range(2 * MAX_MOVES):
        moves.out(2 * move, numbers(20), numbers(8))
        moves.into(2 * move + 1, numbers(8), numbers(20))
        assert moves.poll() == [Ended(2 * move, True, None), Ended(2 * move + 1, False, None)]
    assert pool.slots.equal(before)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_copies_steps_and_drops(link: LateLink, seed: int) -> None:
    """Random events, while the streams run as late and as unevenly as they may. Each step overwrites all slots that no
    move has. A model keeps the bytes of each page of the arena whose move was reported."""
    choose = random.Random(seed)
    pool, link.late = Pool(link), True
    moves = copies(pool, link)
    known: dict[int, torch.Tensor] = {}
    under_way: dict[int, tuple[bool, int, Int32Array, torch.Tensor]] = {}
    content = pool.slots.clone()  # of slots, in the order of launches
    free_slots = [*range(NUM_SLOTS)]
    move = checked = 0

    def overwrite(slots: list[int]) -> None:
        at, values = torch.tensor(slots), torch.randint(256, (len(slots), ROW_BYTES), dtype=torch.uint8)
        content[at] = values
        pool.step(lambda: pool.slots.index_copy_(0, at, values))

    def check_slots(slots: Int32Array, expected: torch.Tensor) -> None:
        assert pool.slots[slots].equal(expected)

    for _ in range(3000):
        event = choose.choice(["out", "out", "in", "in", *["run"] * 8, "poll", "poll", "step", "drop"])
        outs = sum(each[0] for each in under_way.values())
        if event == "out" and outs < MAX_MOVES:
            busy = {each[1] for each in under_way.values()}
            page = choose.choice([each for each in range(1, NUM_ROWS // PAGE) if each not in busy])
            slots = np.array(choose.sample(free_slots, PAGE), np.int32)
            under_way[move] = (True, page, slots, content[slots].clone())
            known.pop(page, None)
            moves.out(move, slots, numbers(page * PAGE))
            move += 1
        elif event == "in" and known and len(under_way) - outs < 2 * MAX_MOVES:
            page = choose.choice([*known])
            slots = np.array(choose.sample(free_slots, PAGE), np.int32)
            free_slots = [each for each in free_slots if each not in slots]
            under_way[move] = (False, page, slots, known[page])
            moves.into(move, numbers(page * PAGE), slots)
            move += 1
        elif event == "run":
            link.run(choose.choice([*link.streams]), choose.randint(1, 8))
        elif event == "poll":
            for ended in moves.poll():
                sends, page, slots, expected = under_way.pop(ended.move)
                assert (ended.sends, ended.seconds) == (sends, 0.5)
                checked += 1
                if sends:
                    known[page] = expected
                    assert link.arena.rows[page * PAGE : (page + 1) * PAGE].equal(expected)
                else:
                    pool.step(partial(check_slots, slots, expected))
                    content[slots] = expected
                    free_slots += slots.tolist()
        elif event == "step":
            overwrite(free_slots)
        elif event == "drop" and choose.random() < 0.1:
            moves.drop()
            free_slots += [slot for sends, _, slots, _ in under_way.values() if not sends for slot in slots.tolist()]
            under_way.clear()
            overwrite(free_slots)
    moves.close()
    assert pool.slots[free_slots].equal(content[free_slots])
    assert checked > 100


# --- registration ---


def test_chunks_are_registered_when_they_are_needed(link: LateLink) -> None:
    registered: list[tuple[int, int]] = []
    released: list[int] = []
    enough = threading.Semaphore(0)

    def register(address: int, size: int) -> None:
        registered.append((address, size))
        enough.release()

    memory = torch.zeros(1000, dtype=torch.uint8)
    start = memory.data_ptr()
    pinning = Pinning(memory, torch.device("cpu"), register, released.append)
    assert not pinning.is_ready(130, 250)
    for _ in range(3):
        assert enough.acquire(timeout=30)
    while not pinning.is_ready(130, 250):
        pass
    assert registered == [(start + 128, 64), (start + 192, 64), (start + 256, 64)]  # the next one too
    pinning.is_ready(990, 1000)
    assert enough.acquire(timeout=30)
    assert registered[3:] == [(start + 960, 40)]
    pinning.close()
    assert sorted(released) == sorted(address for address, _ in registered)


def test_a_refused_registration_fails_what_needs_it(link: LateLink, caplog: pytest.LogCaptureFixture) -> None:
    memory = torch.zeros(1000, dtype=torch.uint8)

    def register(address: int, size: int) -> None:
        if address == memory.data_ptr() + 128:
            raise RuntimeError("operation not permitted")

    pinning = Pinning(memory, torch.device("cpu"), register, lambda address: None)
    pinning.is_ready(130, 131)
    pinning.is_ready(0, 10)
    while not pinning.is_ready(0, 10):
        pass
    with pytest.raises(OSError, match="cannot register"):
        pinning.is_ready(100, 140)
    assert "operation not permitted" in caplog.text
    pinning.close()


def test_copies_are_cut_where_registrations_meet(link: LateLink, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(part.start, part.stop) for part in chunk_slices(10, 130)] == [(10, 64), (64, 128), (128, 130)]
    assert [(part.start, part.stop) for part in chunk_slices(64, 128)] == [(64, 128)]
    monkeypatch.setattr(arena_module, "COPY_BYTES", 50)
    assert [(part.start, part.stop) for part in chunk_slices(10, 128)] == [(10, 60), (60, 64), (64, 114), (114, 128)]


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.write_bytes(b"x" * 5000)])
def test_an_ordinary_file_is_allocated_whole(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Without blocks, writing into a mapping kills the process once the disk is full."""
    make(tmp_path / "arena")
    arena = Arena(str(tmp_path / "arena"), 1000, 10)
    assert (tmp_path / "arena").stat().st_blocks * 512 >= 10_000
    assert arena.rows.shape == (1000, 10)
