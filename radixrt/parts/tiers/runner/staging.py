"""`StagedCopies`: copies between a pool in device memory and the arena, through staging memory on the device.

Out: a kernel on the compute stream gathers slots into a piece of staging memory, so that the next step may write the
slots. A side stream then copies the piece into the arena. In: another side stream copies rows into a larger piece, and
scatters the piece into the slots once the steps have ended that were launched before the order, again and again until
all rows of the order are in their slots. Later steps do not use the slots before the end of the copy is reported, so
the copy runs beside them. The host's time counts, too: while it launches copies, it launches no step.

A link copies long runs of bytes near its full rate, and short runs at a sixth of that. Gathering and scattering within
the device's memory takes 3 % of the time on the link.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from radixrt.messages.kv_moves import MAX_MOVES, MOVE_BYTES
from radixrt.messages.wire import Int32Array
from radixrt.parts.tiers.runner.arena import Arena, Pinning, chunk_slices
from radixrt.parts.tiers.runner.pool_copies import Ended, PoolCopies
from radixrt.runner.sampling.sampling_tables import upload

logger = logging.getLogger(__name__)

RECEIVED_MOVES = 4
"""Size of the piece for copies into the pool, in pieces for copies out of it."""
MAX_BEGUN = 2
"""Largest number of copies into the pool that are launched: one keeps the link busy while the next one is launched."""
STAGING_BYTES = (MAX_MOVES + RECEIVED_MOVES) * MOVE_BYTES
"""Device memory of all pieces, unless a page of the arena is larger than MOVE_BYTES."""


class Transfer(Protocol):
    """A copy on a side stream."""

    @property
    def is_done(self) -> bool: ...

    @property
    def seconds(self) -> float:
        """Duration of a copy that is done."""

    def wait(self) -> None:
        """Wait until the copy is done."""


class Link(Protocol):
    """Side streams between staging memory and the arena. The copies of one direction are done in order.

    A *mark* is a moment on the compute stream: all launches before it.
    """

    def mark(self) -> Any:
        """Return the present moment on the compute stream."""

    def is_ready(self, places: Int32Array) -> bool:
        """Return True if rows of the arena can be copied; otherwise prepare them.

        Raises:
            OSError: they cannot be prepared.
        """

    def store(self, piece: torch.Tensor, places: Int32Array, after: Any) -> Transfer:
        """Begin to copy a piece, uint8 [n, row_bytes], into n rows of the arena, after a mark."""

    def load(
        self, places: Int32Array, piece: torch.Tensor, after: Any, then: Callable[[slice, torch.Tensor], None]
    ) -> Transfer:
        """Begin to copy rows of the arena, as many at a time as the piece, uint8 [n, row_bytes], holds.

        Args:
            then: launches work that follows a copy, after a mark, and before the next copy. Its arguments are the part
                of the places that was copied, and the rows of the piece that have it.
        """

    def hold(self, transfer: Transfer) -> None:
        """Let the compute stream wait for a transfer."""

    def close(self) -> None:
        """Wait for all transfers, and release the arena."""


class DeviceRows(Protocol):
    """The pool as rows.

    Attributes:
        row_bytes: bytes of one token.
    """

    row_bytes: int

    def upload(self, slots: Int32Array) -> Any:
        """Return slots for `gather` and `scatter` on the current stream; slices of the result are some of them."""

    def gather(self, slots: Any, rows: torch.Tensor) -> None:
        """Launch: set rows, uint8 [n, row_bytes], to the bytes of n slots."""

    def scatter(self, slots: Any, rows: torch.Tensor) -> None:
        """Launch: write rows into n distinct slots."""


@dataclass
class _Copy:
    """Copy under way.

    Attributes:
        ordered: mark after the order, and after the gathering of slots.
        piece: memory with the gathered slots; None for a copy into the pool.
    """

    move: int
    places: Int32Array
    slots: Int32Array
    ordered: Any
    piece: torch.Tensor | None = None
    transfer: Transfer | None = None


class StagedCopies(PoolCopies):
    """See the module's docstring. The scheduler counts the moves under way; a move for which no piece is free fails.

    Args:
        page: tokens of a page of the arena, the smallest move.
    """

    def __init__(self, rows: DeviceRows, link: Link, page: int, device: torch.device) -> None:
        self._rows = rows
        self._link = link
        self._most = max(MOVE_BYTES // rows.row_bytes, page)
        received = RECEIVED_MOVES * self._most
        memory = torch.empty(received + MAX_MOVES * self._most, rows.row_bytes, dtype=torch.uint8, device=device)
        # In whole pages, so that the slots of each part are aligned alike in memory, for which kernels are compiled.
        # The stream of loads orders the uses of this piece.
        self._received = memory[: received // page * page]
        self._free = deque(memory[received:].view(MAX_MOVES, self._most, rows.row_bytes))
        self._out: deque[_Copy] = deque()
        self._in: deque[_Copy] = deque()
        self._ended: list[Ended] = []
        self._draining: list[Transfer] = []  # dropped transfers into the arena

    @property
    def is_busy(self) -> bool:
        return bool(self._out or self._in or self._ended)

    def out(self, move: int, slots: Int32Array, places: Int32Array) -> None:
        if not self._can_begin(move, slots):
            self._ended.append(Ended(move, True, None))
            return
        piece = self._free.popleft()
        self._rows.gather(self._rows.upload(slots), piece[: len(slots)])
        self._out.append(_Copy(move, places, slots, self._link.mark(), piece))
        self._launch()

    def into(self, move: int, places: Int32Array, slots: Int32Array) -> None:
        self._in.append(_Copy(move, places, slots, self._link.mark()))
        self._launch()

    def _can_begin(self, move: int, slots: Int32Array) -> bool:
        if self._free and len(slots) <= self._most:
            return True
        size = len(slots) * self._rows.row_bytes
        reason = f"it has {size} bytes" if self._free else "no piece of staging memory is free"
        logger.error("move %d of keys and values cannot begin: %s", move, reason)
        return False

    def _begin(self, copy: _Copy) -> Transfer:
        if copy.piece is not None:
            return self._link.store(copy.piece[: len(copy.slots)], copy.places, copy.ordered)
        slots = functools.cache(lambda: self._rows.upload(copy.slots))  # on the stream of the scatters

        def then(part: slice, rows: torch.Tensor) -> None:
            self._rows.scatter(slots()[part], rows)

        return self._link.load(copy.places, self._received, copy.ordered, then)

    def _launch(self) -> None:
        """Begin the transfers whose rows of the arena are ready, in order. To launch an order into the pool takes about
        1 ms, so that a step would wait for many orders in a row."""
        for copies in (self._out, self._in):
            waiting = [each for each in copies if each.transfer is None]
            if copies is self._in:
                waiting = waiting[: max(MAX_BEGUN - len(copies) + len(waiting), 0)]
            for copy in waiting:
                try:
                    if not self._link.is_ready(copy.places):
                        break
                    copy.transfer = self._begin(copy)
                except OSError:
                    copies.remove(copy)
                    self._end(copy, None)

    def _end(self, copy: _Copy, seconds: float | None) -> None:
        self._ended.append(Ended(copy.move, copy.piece is not None, seconds))
        if copy.piece is not None:
            self._free.append(copy.piece)

    def poll(self) -> list[Ended]:
        self._launch()
        for copies in (self._out, self._in):
            while copies and (transfer := copies[0].transfer) is not None and transfer.is_done:
                self._end(copies.popleft(), transfer.seconds)
        self._draining = [each for each in self._draining if not each.is_done]
        ended, self._ended = self._ended, []
        return ended

    def drop(self) -> None:
        for copy in self._out:
            assert copy.piece is not None
            self._free.append(copy.piece)
            # The piece may be used again at once. A transfer that still reads the piece writes into rows that the next
            # transfer into them writes again, before anybody reads the rows.
            if copy.transfer is not None:
                self._draining.append(copy.transfer)
        # Later steps may use the slots of dropped copies, which are scattered before these steps, or not at all.
        begun = [copy.transfer for copy in self._in if copy.transfer is not None]
        if begun:
            self._link.hold(begun[-1])
        self._out.clear()
        self._in.clear()
        self._ended.clear()

    def fence(self) -> Callable[[], None]:
        draining = list(self._draining)

        def wait() -> None:
            for transfer in draining:
                transfer.wait()

        return wait

    def close(self) -> None:
        self._link.close()
        self._free.clear()
        del self._received


class CudaTransfer:
    """A `Transfer` of a stream.

    Args:
        began, copied: events around the first copy on the link.
        ended: event after all work of the transfer.
        parts: number of copies like the first one in the transfer. Between them the link waits for other work.
    """

    def __init__(
        self, began: torch.cuda.Event, copied: torch.cuda.Event, ended: torch.cuda.Event, parts: float = 1.0
    ) -> None:
        self._began, self._copied, self.ended, self._parts = began, copied, ended, parts

    @property
    def is_done(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        return float(self._began.elapsed_time(self._copied)) / 1e3 * self._parts

    def wait(self) -> None:
        with torch.cuda.device(self.ended.device):  # another thread would open a context on the first device
            self.ended.synchronize()


class CudaLink:
    """A `Link` with one stream for each direction, which the device copies at the same time."""

    def __init__(self, arena: Arena, device: torch.device) -> None:
        self._arena = arena
        self._device = device
        self._row_bytes = arena.rows.shape[1]
        self._pinning = Pinning(arena.memory, device)
        self._out, self._in = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_ready(self, places: Int32Array) -> bool:
        ranges = [(start * self._row_bytes, (start + count) * self._row_bytes) for _, start, count in _runs(places)]
        ready = [self._pinning.is_ready(first, last) for first, last in ranges]  # asks for every range
        return all(ready)

    def store(self, piece: torch.Tensor, places: Int32Array, after: torch.cuda.Event) -> CudaTransfer:
        self._out.wait_event(after)
        with torch.cuda.stream(self._out):
            began, copied = self._copy((arena, staged) for staged, arena in equal_parts(piece, self._arena, places))
        return CudaTransfer(began, copied, copied)

    def load(
        self,
        places: Int32Array,
        piece: torch.Tensor,
        after: torch.cuda.Event,
        then: Callable[[slice, torch.Tensor], None],
    ) -> CudaTransfer:
        with torch.cuda.stream(self._in):
            parts = list(parts_of(places, piece))
            part, rows = parts[0]
            began, copied = self._copy(equal_parts(rows, self._arena, places[part]))
            self._in.wait_event(after)
            then(part, rows)
            for part, rows in parts[1:]:
                _copy_all(equal_parts(rows, self._arena, places[part]))
                then(part, rows)
            ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ended.record(self._in)
        return CudaTransfer(began, copied, ended, len(places) / len(parts[0][1]))

    def _copy(self, parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Launch copies of (target, source) on the current stream; return an event before and an event after them."""
        began, copied = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        _copy_all(parts)
        copied.record()
        return began, copied

    def hold(self, transfer: Transfer) -> None:
        assert isinstance(transfer, CudaTransfer)
        torch.cuda.current_stream(self._device).wait_event(transfer.ended)

    def close(self) -> None:
        self._out.synchronize()
        self._in.synchronize()
        self._pinning.close()


class CudaRows:
    """`DeviceRows` of tensors on CUDA; see `pool_tensors`."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        from radixrt.kernels.triton.pool_rows import PoolTensors

        self._tensors = tensors
        self._device = tensors[0].device
        self._pool = PoolTensors(tensors)
        self.row_bytes = self._pool.row_bytes

    def compile_ahead(self) -> None:
        """Compile and load both kernels, so that no step waits for them."""
        from radixrt.kernels.triton.compile_ahead import compiling

        slots = self.upload(np.zeros(1, np.int32))
        rows = torch.empty(1, self.row_bytes, dtype=torch.uint8, device=self._device)
        with compiling():
            self.gather(slots, rows)
            self.scatter(slots, rows)

    def upload(self, slots: Int32Array) -> torch.Tensor:
        return upload(slots.copy(), self._device)

    def gather(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        from radixrt.kernels.triton.pool_rows import gather_rows

        gather_rows(self._pool, slots, rows)

    def scatter(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        from radixrt.kernels.triton.pool_rows import scatter_rows

        scatter_rows(self._pool, slots, rows)


def _copy_all(parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Launch copies of (target, source) on the current stream."""
    for target, source in parts:
        target.copy_(source, non_blocking=True)


def parts_of(places: Int32Array, piece: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the parts of places that a piece, uint8 [n, row_bytes], holds at a time, and the rows of each part."""
    for first in range(0, len(places), len(piece)):
        part = slice(first, min(first + len(piece), len(places)))
        yield part, piece[: part.stop - first]


def equal_parts(piece: torch.Tensor, arena: Arena, places: Int32Array) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of equal parts of a piece, uint8 [n, row_bytes], and of n rows of the arena; each part is one run of
    bytes, in one chunk of the arena."""
    parts, staged, row_bytes = [], piece.view(-1), piece.shape[1]
    for first, start, count in _runs(places):
        shift = (first - start) * row_bytes
        for part in chunk_slices(start * row_bytes, (start + count) * row_bytes):
            parts.append((staged[part.start + shift : part.stop + shift], arena.memory[part]))
    return parts


def _runs(places: Int32Array) -> Iterator[tuple[int, int, int]]:
    """Yield (index, first place, count) of each run of consecutive places."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    for first, last in pairwise(cuts):
        if last > first:
            yield first, int(places[first]), last - first
