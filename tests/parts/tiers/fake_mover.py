"""Memory of a host, files and movers without tensors, for tests of the part `tiers` on `FakeRunner`.

A *cell* is what a slot, a place of the arena or a token of a file page holds: two int64 numbers, the digest of all
tokens up to the cell's token (`tests.scheduler.fake_runner.digest`) and the digest before the token. So a run of cells
is correct exactly if each cell continues the cell before it and the last digest is the expected one. A row of a state
is a cell with the digest of the state, and STATE_CELL less the number of the row.

A mover executes orders as the contract of `radixrt.messages.kv_moves` allows, and no better: a move takes several
units of work, which the test hands out in any order; half a move may be in the arena; a failed move leaves whatever it
has written; moves of one link overtake each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from radixrt.messages.kv_moves import (
    KEY_BYTES,
    MAX_MOVES,
    STATE_TOKEN,
    KVConnectorOutput,
    KVDrop,
    KVIn,
    KVLoad,
    KVOpen,
    KVOrder,
    KVOut,
    KVPull,
    KVSave,
)
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.parts.tiers.records import SharedRecords
from tests.scheduler.fake_runner import digest

Cells = npt.NDArray[np.int64]
"""int64[n, 2]: digest up to the token and before the token; -1 for what was never written."""

decode_order = msgspec.msgpack.Decoder(KVOrder).decode


def no_cells(count: int) -> Cells:
    return np.full((count, 2), -1, np.int64)


STATE_CELL = -2
"""Second number of the cell of a state's first row."""


def state_cells(state: int, rows: int) -> Cells:
    """Return the cells of a state with a digest."""
    return np.stack([np.full(rows, state, np.int64), STATE_CELL - np.arange(rows, dtype=np.int64)], axis=1)


@lru_cache(maxsize=4096)
def _cells_of(tokens: bytes) -> Cells:
    """Cells of int32 tokens from position 0 on."""
    last = len(tokens) - 4 * ((len(tokens) // 4 - 1) % 64 + 1) if tokens else 0
    before = _cells_of(tokens[:last]) if last else no_cells(0)
    state = int(before[-1, 0]) if len(before) else 0
    found = []
    for token in np.frombuffer(tokens[last:], np.int32).tolist():
        found.append((digest(state, token), state))
        state = found[-1][0]
    cells = np.concatenate([before, np.array(found, np.int64).reshape(-1, 2)])
    cells.flags.writeable = False
    return cells


def cells_of(tokens: Int32Array, state_rows: int = 0) -> Cells:
    """Return the correct cells of tokens from position 0 on, and of the state and the padding behind them if there are
    any, read-only."""
    count = without_state(tokens)
    cells = _cells_of(np.ascontiguousarray(tokens[:count], np.int32).tobytes())
    if count == len(tokens):
        return cells
    assert (tokens[count:] == STATE_TOKEN).all()
    behind = np.concatenate([state_cells(int(cells[-1, 0]), state_rows), no_cells(len(tokens))])
    return np.concatenate([cells, behind[: len(tokens) - count]])


def without_state(tokens: Int32Array) -> int:
    """Return the number of tokens before the state behind them."""
    found = np.flatnonzero(tokens == STATE_TOKEN)
    return int(found[0]) if len(found) else len(tokens)


@dataclass
class FilePage:
    """Page of a rank's file: key, cells, and the checksum that was written with them."""

    key: bytes
    cells: Cells
    checksum: int

    @classmethod
    def of(cls, key: bytes, cells: Cells) -> FilePage:
        return cls(key, cells, zlib.crc32(cells.tobytes()))

    @property
    def is_whole(self) -> bool:
        return zlib.crc32(self.cells.tobytes()) == self.checksum


class FakeHost:
    """Arena and files of each rank. They outlive runners and schedulers; the files outlive the machine's memory.

    Attributes:
        arenas: for each rank the cells of all places.
        files: for each rank the file pages that were written, by number.
        arena, disk: paths for `KVOpen`.
        receiving: moves towards the pool that a rank takes at a time.
        others: hosts of other replicas, by their arenas.
        state_rows: see `KVOpen`.
    """

    arena = "arena"
    disk = "disk"

    def __init__(self, ranks: int, num_places: int, page: int, receiving: int = MAX_MOVES, state_rows: int = 0) -> None:
        self.ranks = ranks
        self.state_rows = state_rows
        self.receiving = receiving
        self.page = page
        self.num_places = num_places
        self.others: dict[str, FakeHost] = {}
        self.arenas: list[Cells] = []
        self.files: list[dict[int, FilePage]] = [{} for _ in range(ranks)]
        self.reboot()

    def make_mover(self, rank: int, cells: Cells, write: Callable[[Int32Array, Cells], None]) -> FakeMover:
        """Return a rank's end of the part; see `FakeMover`."""
        return FakeMover(rank, cells, write, self)

    def reboot(self) -> None:
        """Lose the memory of the host, but not the files."""
        self.arenas = [no_cells(self.num_places + self.page) for _ in range(self.ranks)]

    def file_page(self, rank: int, number: int, key: bytes) -> Cells | None:
        """Return the cells that a load of a file page would find; None if it would fail."""
        found = self.files[rank].get(number)
        return found.cells if found is not None and found.key == key and found.is_whole else None

    def damage_file(self, rank: int, number: int) -> None:
        """Flip a bit of a file page, or lose it, or put another page into its place.

        Args:
            number: chooses page and damage.
        """
        files = self.files[rank]
        if not files:
            return
        pages = sorted(files)
        page, other = pages[number % len(pages)], pages[number // 7 % len(pages)]
        match number % 3:
            case 0:
                files[page].cells[number % self.page, 0] ^= 1
            case 1:
                del files[page]
            case _:
                files[page] = files[other]

    def close(self) -> None:
        """Release what the host holds."""


Work = Callable[[], None]


class LinkError(Exception):
    """A move cannot be finished."""


@dataclass
class Move:
    """A move under way on a rank.

    Attributes:
        work: units of work that are left; the last one may raise `LinkError`.
        sends: the move is out of the pool or to the files.
    """

    number: int
    link: str
    sends: bool
    work: Iterator[None] = field(repr=False)


class FakeMover:
    """End of the part `tiers` in a rank.

    Args:
        cells: cells of the rank's slots, then of the rows of states, the last row first, because their slots are
            negative.
        write: called with slots and cells for each write into the pool, after the write into `cells`.
        host: arena and files.
    """

    def __init__(self, rank: int, cells: Cells, write: Callable[[Int32Array, Cells], None], host: FakeHost) -> None:
        self._cells = cells
        self._write = write
        self._host = host
        self._rank = rank
        self._done: list[tuple[Move, bool]] = []
        self.opened: KVOpen | None = None
        self.moves: list[Move] = []

    @property
    def _arena(self) -> Cells:
        return self._host.arenas[self._rank]

    # --- the worker calls these ---

    def order(self, data: bytes) -> None:
        order = decode_order(data)
        if isinstance(order, KVOpen):
            assert self.opened in (None, order), "the memory of a scheduler changes"
            assert (order.num_places, order.page) == (self._host.num_places, self._host.page)
            assert order.state_rows == self._host.state_rows
            self.opened = order
            return
        if isinstance(order, KVDrop):
            self.moves.clear()
            self._done.clear()
            return
        assert self.opened is not None, "an order before KVOpen"
        assert all(move.number != order.move for move in self.moves), "a number twice"
        link, work = self._begin(order)
        begun = Move(order.move, link, isinstance(order, KVOut | KVSave), work)
        self.moves.append(begun)
        beside = sum(move.sends == begun.sends for move in self.moves)
        assert beside <= (MAX_MOVES if begun.sends else self._host.receiving), f"{beside} moves in a direction at once"

    def _begin(self, order: KVOut | KVIn | KVSave | KVLoad | KVPull) -> tuple[str, Iterator[None]]:
        if isinstance(order, KVOut):
            slots, places = unpack_i32(order.slots), self._places(order.places)
            assert len(slots) == len(places)
            assert len(places) % self._host.page == 0, "not whole pages"
            return "out", self._out(self._cells[slots].copy(), places)
        if isinstance(order, KVIn):
            slots, places = unpack_i32(order.slots), self._places(order.places)
            assert len(slots) == len(places)
            return "in", self._in(places, slots)
        if isinstance(order, KVPull):
            return "pull", self._pull(order)
        pages, files = unpack_i32(order.pages), unpack_i32(order.files)
        keys = [order.keys[at : at + KEY_BYTES] for at in range(0, len(order.keys), KEY_BYTES)]
        assert len(pages) == len(files) == len(keys) > 0
        assert pages.min() > 0
        assert files.min() > 0
        moved = list(zip(pages.tolist(), files.tolist(), keys, strict=True))
        return ("save", self._save(moved)) if isinstance(order, KVSave) else ("load", self._load(moved))

    def _places(self, data: bytes) -> Int32Array:
        places = unpack_i32(data)
        assert self._host.page <= places.min() <= places.max() < len(self._arena)
        return places

    def poll(self) -> bytes | None:
        """Return a report on all moves that have ended; None if there are none."""
        done, self._done = self._done, []
        if not done:
            return None

        def numbers(*, sends: bool, ok: bool) -> list[int]:
            return [move.number for move, fine in done if (move.sends, fine) == (sends, ok)]

        report = KVConnectorOutput(
            finished_sending=numbers(sends=True, ok=True),
            failed_sending=numbers(sends=True, ok=False),
            finished_recving=numbers(sends=False, ok=True),
            failed_recving=numbers(sends=False, ok=False),
            seconds=[0.001 for _, fine in done if fine],
        )
        return msgspec.msgpack.encode(report)

    def kill(self) -> None:
        """The rank dies with all moves."""

    def reset(self) -> None:
        """A new scheduler begins."""
        self.moves.clear()
        self._done.clear()
        self.opened = None

    # --- the test calls these ---

    def step(self, move: Move) -> None:
        """Do a unit of work of a move."""
        try:
            next(move.work)
        except StopIteration:
            self._end(move, ok=True)
        except LinkError:
            self._end(move, ok=False)

    def fail(self, move: Move) -> None:
        """End a move where it is: its copy was refused, or an error of the file system."""
        self._end(move, ok=False)

    def _end(self, move: Move, *, ok: bool) -> None:
        self.moves.remove(move)
        self._done.append((move, ok))

    # --- units of work of each move ---

    def _out(self, staged: Cells, places: Int32Array) -> Iterator[None]:
        for half in _halves(len(places)):
            yield
            self._arena[places[half]] = staged[half]

    def _in(self, places: Int32Array, slots: Int32Array) -> Iterator[None]:
        staged = no_cells(len(places))
        for half in _halves(len(places)):
            yield
            staged[half] = self._arena[places[half]]
        yield
        # Scatter, between two steps.
        self._cells[slots] = staged
        self._write(slots, staged)

    def _save(self, moved: list[tuple[int, int, bytes]]) -> Iterator[None]:
        files = self._host.files[self._rank]
        for page, file, key in moved:
            staged = no_cells(self._host.page)
            for half in _halves(self._host.page):
                yield
                staged[half] = self._arena[self._page(page)][half]
            files.pop(file, None)  # half of it is overwritten
            yield
            files[file] = FilePage.of(key, staged)

    def _load(self, moved: list[tuple[int, int, bytes]]) -> Iterator[None]:
        files = self._host.files[self._rank]
        for page, file, key in moved:
            yield
            found = files.get(file)
            if found is None:
                raise LinkError
            for half in _halves(self._host.page):
                self._arena[self._page(page)][half] = found.cells[half]
                yield
            if found.key != key or not found.is_whole or files.get(file) is not found:
                raise LinkError

    def _pull(self, order: KVPull) -> Iterator[None]:
        other, records = self._host.others[order.arena], SharedRecords(order.records)
        for i, (theirs, page) in enumerate(zip(unpack_i32(order.theirs).tolist(), unpack_i32(order.pages).tolist())):
            key = order.keys[i * KEY_BYTES : (i + 1) * KEY_BYTES]
            before = records.changes(theirs, key)
            if before is None:
                raise LinkError
            for half in _halves(self._host.page):
                yield
                self._arena[self._page(page)][half] = other.arenas[self._rank][self._page(theirs)][half]
            yield
            if records.changes(theirs, key) != before:
                raise LinkError

    def _page(self, page: int) -> slice:
        return slice(page * self._host.page, (page + 1) * self._host.page)


def _halves(count: int) -> tuple[slice, slice]:
    return slice(0, count // 2), slice(count // 2, count)
