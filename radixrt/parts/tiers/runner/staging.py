"""`StagedCopies`: copies between a pool in device memory and the arena, through staging memory on the device.

Out: a kernel on the compute stream gathers slots into a piece of staging memory, so that the next step may write the
slots. A side stream then copies the piece into the arena. In: a side stream copies rows into a piece; once they are
there, a kernel on the compute stream scatters the piece into the slots, between two steps.

A link copies long runs of bytes near its full rate, and short runs at a sixth of that. Gathering and scattering within
the device's memory takes 3 % of the time on the link.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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

STAGING_BYTES = 2 * MAX_MOVES * MOVE_BYTES
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

    def load(self, places: Int32Array, piece: torch.Tensor, after: Any | None) -> Transfer:
        """Begin to copy n rows of the arena into a piece, after a mark."""

    def close(self) -> None:
        """Wait for all transfers, and release the arena."""


class DeviceRows(Protocol):
    """The pool as rows.

    Attributes:
        row_bytes: bytes of one token.
    """

    row_bytes: int

    def gather(self, slots: Int32Array, rows: torch.Tensor) -> None:
        """Launch: set rows, uint8 [n, row_bytes], to the bytes of n slots."""

    def scatter(self, slots: Int32Array, rows: torch.Tensor) -> None:
        """Launch: write rows into n distinct slots."""


@dataclass
class _Piece:
    """Staging memory of one move.

    Attributes:
        read: mark after the last scatter, which reads the piece.
    """

    memory: torch.Tensor
    read: Any | None = None


@dataclass
class _Copy:
    move: int
    piece: _Piece
    rows: torch.Tensor
    places: Int32Array
    slots: Int32Array
    gathered: Any | None = None
    transfer: Transfer | None = None


@dataclass
class _Direction:
    """Pieces and copies of one direction, in the order of the moves."""

    free: deque[_Piece]
    copies: deque[_Copy] = field(default_factory=deque)


class StagedCopies(PoolCopies):
    """See the module's docstring. The scheduler counts the moves under way; a move for which no piece is free fails.

    Args:
        page: tokens of a page of the arena, the smallest move.
    """

    def __init__(self, rows: DeviceRows, link: Link, page: int, device: torch.device) -> None:
        self._rows = rows
        self._link = link
        size = max(MOVE_BYTES // rows.row_bytes, page) * rows.row_bytes
        self._out, self._in = (
            _Direction(deque(_Piece(torch.empty(size, dtype=torch.uint8, device=device)) for _ in range(MAX_MOVES)))
            for _ in range(2)
        )
        self._ended: list[Ended] = []
        self._draining: list[Transfer] = []  # dropped transfers into the arena

    @property
    def is_busy(self) -> bool:
        return bool(self._out.copies or self._in.copies or self._ended)

    def out(self, move: int, slots: Int32Array, places: Int32Array) -> None:
        copy = self._begin(self._out, move, slots, places)
        if copy is None:
            self._ended.append(Ended(move, True, None))
            return
        self._rows.gather(slots, copy.rows)
        copy.gathered = self._link.mark()
        self._launch(self._out, self._store)

    def into(self, move: int, places: Int32Array, slots: Int32Array) -> None:
        if self._begin(self._in, move, slots, places) is None:
            self._ended.append(Ended(move, False, None))
            return
        self._launch(self._in, self._load)

    def _begin(self, direction: _Direction, move: int, slots: Int32Array, places: Int32Array) -> _Copy | None:
        size = len(slots) * self._rows.row_bytes
        if not direction.free or size > direction.free[0].memory.nbytes:
            reason = "no piece of staging memory is free" if not direction.free else f"it has {size} bytes"
            logger.error("move %d of keys and values cannot begin: %s", move, reason)
            return None
        piece = direction.free.popleft()
        copy = _Copy(move, piece, piece.memory[:size].view(-1, self._rows.row_bytes), places, slots)
        direction.copies.append(copy)
        return copy

    def _store(self, copy: _Copy) -> Transfer:
        return self._link.store(copy.rows, copy.places, copy.gathered)

    def _load(self, copy: _Copy) -> Transfer:
        return self._link.load(copy.places, copy.rows, copy.piece.read)

    def _launch(self, direction: _Direction, begin: Callable[[_Copy], Transfer]) -> None:
        """Begin the transfers whose rows of the arena are ready."""
        for copy in [each for each in direction.copies if each.transfer is None]:
            try:
                if not self._link.is_ready(copy.places):
                    return
                copy.transfer = begin(copy)
            except OSError:
                self._ended.append(Ended(copy.move, direction is self._out, None))
                direction.copies.remove(copy)
                direction.free.append(copy.piece)

    def poll(self) -> list[Ended]:
        self._launch(self._out, self._store)
        self._launch(self._in, self._load)
        for copy, transfer in _done(self._out):
            self._ended.append(Ended(copy.move, True, transfer.seconds))
        for copy, transfer in _done(self._in):
            self._rows.scatter(copy.slots, copy.rows)
            copy.piece.read = self._link.mark()
            self._ended.append(Ended(copy.move, False, transfer.seconds))
        self._draining = [each for each in self._draining if not each.is_done]
        ended, self._ended = self._ended, []
        return ended

    def drop(self) -> None:
        for direction in (self._out, self._in):
            for copy in direction.copies:
                direction.free.append(copy.piece)
                # The piece may be used again at once. A transfer that still writes into it, or reads later bytes from
                # it, writes before the next transfer on its stream, into a piece or rows that nobody reads before.
                if direction is self._out and copy.transfer is not None:
                    self._draining.append(copy.transfer)
            direction.copies.clear()
        self._ended.clear()

    def fence(self) -> Callable[[], None]:
        draining = list(self._draining)

        def wait() -> None:
            for transfer in draining:
                transfer.wait()

        return wait

    def close(self) -> None:
        self._link.close()
        for direction in (self._out, self._in):
            direction.free.clear()


def _done(direction: _Direction) -> Iterator[tuple[_Copy, Transfer]]:
    """Remove copies whose transfers are done, in order, and free their pieces after the caller has handled each."""
    while direction.copies:
        copy = direction.copies[0]
        if copy.transfer is None or not copy.transfer.is_done:
            return
        direction.copies.popleft()
        yield copy, copy.transfer
        direction.free.append(copy.piece)


class CudaTransfer:
    """A `Transfer` between two events of a stream."""

    def __init__(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        self._began, self.ended = began, ended

    @property
    def is_done(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        return float(self._began.elapsed_time(self.ended)) / 1e3

    def wait(self) -> None:
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
        return self._copy(
            self._out, after, [(arena, staged) for staged, arena in equal_parts(piece, self._arena, places)]
        )

    def load(self, places: Int32Array, piece: torch.Tensor, after: torch.cuda.Event | None) -> CudaTransfer:
        return self._copy(self._in, after, equal_parts(piece, self._arena, places))

    def _copy(
        self,
        stream: torch.cuda.Stream,
        after: torch.cuda.Event | None,
        parts: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> CudaTransfer:
        if after is not None:
            stream.wait_event(after)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            began.record(stream)
            for target, source in parts:
                target.copy_(source, non_blocking=True)
            ended.record(stream)
        return CudaTransfer(began, ended)

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

        slots, rows = np.zeros(1, np.int32), torch.empty(1, self.row_bytes, dtype=torch.uint8, device=self._device)
        with compiling():
            self.gather(slots, rows)
            self.scatter(slots, rows)

    def gather(self, slots: Int32Array, rows: torch.Tensor) -> None:
        from radixrt.kernels.triton.pool_rows import gather_rows

        gather_rows(self._pool, upload(slots.copy(), self._device), rows)

    def scatter(self, slots: Int32Array, rows: torch.Tensor) -> None:
        from radixrt.kernels.triton.pool_rows import scatter_rows

        scatter_rows(self._pool, upload(slots.copy(), self._device), rows)


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
