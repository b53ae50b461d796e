"""`PoolCopies`: copies between the KV pool and the arena. `HostCopies`: for a pool in host memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.attention.kv_cache import KVCache
from radixrt.messages.wire import Int32Array
from radixrt.parts.tiers.runner.state_rows import StateRows, kinds

Items = npt.NDArray[np.void]


@dataclass(frozen=True)
class Ended:
    """A move that has ended in this rank.

    Attributes:
        sends: the move went out of the pool, or to a file.
        seconds: seconds on the link; None if the move has failed.
    """

    move: int
    sends: bool
    seconds: float | None


class PoolCopies(ABC):
    """Copies between slots of the KV pool and rows of the arena. No method waits for a copy.

    Both copies are ordered with the steps: `out` reads slots before a later step writes them, and a copy `into` slots
    is before the steps that follow the report of its end.
    """

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """True while `poll` may return something."""

    @abstractmethod
    def out(self, move: int, slots: Int32Array, places: Int32Array) -> None:
        """Begin a copy of slots into rows `places` of the arena."""

    @abstractmethod
    def into(self, move: int, places: Int32Array, slots: Int32Array) -> None:
        """Begin a copy of rows `places` of the arena into slots. The slots are distinct."""

    @abstractmethod
    def poll(self) -> list[Ended]:
        """Return the copies that have ended since the last call."""

    @abstractmethod
    def drop(self) -> None:
        """End all copies. A dropped copy is not reported, and writes into the pool before the steps that are launched
        later, or not at all. A later copy may use the same rows of the arena: the device makes its accesses after those
        of dropped copies."""

    def fence(self) -> Callable[[], None]:
        """Return a function that waits until no dropped copy writes into the arena; for other threads."""
        return lambda: None

    @abstractmethod
    def close(self) -> None:
        """Wait for the device, and release all memory. Call `drop` before."""


def pool_tensors(kv_cache: KVCache) -> list[torch.Tensor]:
    """Return the tensors of a pool in the order of a row of the arena: keys, then values, of each layer."""
    return [tensor for pair in zip(kv_cache.k, kv_cache.v, strict=True) for tensor in pair]


class HostCopies(PoolCopies):
    """Copies within host memory. `out` and `into` return when the copy has ended.

    Each tensor and each column of the arena is an array of items, the bytes of one slot in one tensor. numpy copies
    items whole, at 0.5 to 1 of the speed of memory for consecutive slots and 0.3 to 0.6 for scattered slots, while
    `torch.index_copy_` copies element by element, at 0.1 to 0.4 (`python -m benchmarks.kernels.kv_moves`).

    Args:
        tensors: see `pool_tensors`.
        rows: uint8 [places, bytes of a row], the arena.
        states: rows of states; None for a model without recurrent layers.
    """

    def __init__(self, tensors: list[torch.Tensor], rows: torch.Tensor, states: StateRows | None = None) -> None:
        self._rows, self._states = rows, states
        self._pairs: list[tuple[Items, Items]] = []
        self._ended: list[Ended] = []
        arena, start = rows.numpy(), 0
        for tensor in tensors:
            size = tensor[0].nbytes
            self._pairs.append(
                (_items(tensor.view(torch.uint8).flatten(1).numpy()), _items(arena[:, start : start + size]))
            )
            start += size

    @property
    def is_busy(self) -> bool:
        return bool(self._ended)

    def out(self, move: int, slots: Int32Array, places: Int32Array) -> None:
        started = time.perf_counter()
        for part, is_state in self._kinds(slots):
            (self._state_out if is_state else self._out)(slots[part], places[part])
        self._ended.append(Ended(move, True, time.perf_counter() - started))

    def _out(self, slots: Int32Array, places: Int32Array) -> None:
        source, target = _index(slots), _index(places)
        for pool, arena in self._pairs:
            if isinstance(target, slice) and not isinstance(source, slice):
                np.take(pool, source, out=arena[target], mode="clip")  # other modes copy twice
            else:
                arena[target] = pool[source]

    def _state_out(self, slots: Int32Array, places: Int32Array) -> None:
        assert self._states is not None
        rows = torch.empty(len(slots), self._rows.shape[1], dtype=torch.uint8)
        self._states.read(slots, rows)
        self._rows.numpy()[_index(places)] = rows.numpy()

    def into(self, move: int, places: Int32Array, slots: Int32Array) -> None:
        started = time.perf_counter()
        for part, is_state in self._kinds(slots):
            (self._state_into if is_state else self._into)(places[part], slots[part])
        self._ended.append(Ended(move, False, time.perf_counter() - started))

    def _into(self, places: Int32Array, slots: Int32Array) -> None:
        source, target = _index(places), _index(slots)
        for pool, arena in self._pairs:
            pool[target] = arena[source]

    def _state_into(self, places: Int32Array, slots: Int32Array) -> None:
        assert self._states is not None
        self._states.write(slots, torch.from_numpy(self._rows.numpy()[_index(places)]))

    def _kinds(self, slots: Int32Array) -> Iterable[tuple[slice, bool]]:
        return ((slice(None), False),) if self._states is None else kinds(slots)

    def poll(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def drop(self) -> None:
        self._ended.clear()

    def close(self) -> None:
        self._pairs.clear()


def _items(rows: npt.NDArray[np.uint8]) -> Items:
    """Return [n, size] bytes, each row contiguous, as n items."""
    items: Items = rows.view(np.dtype((np.void, rows.shape[1])))[:, 0]
    return items


def _index(numbers: Int32Array) -> slice | npt.NDArray[np.intp]:
    """Return a slice if the numbers are consecutive."""
    first = int(numbers[0]) if len(numbers) else 0
    if np.array_equal(numbers, np.arange(first, first + len(numbers), dtype=np.int32)):
        return slice(first, first + len(numbers))
    return numbers.astype(np.intp)
