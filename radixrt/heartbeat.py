"""Heartbeats: counters in a small shared file by which the main process sees that each worker's loop advances.

The main process creates the file and reads it; each worker has one slot and is its only writer. A slot holds the number
of beats, and the longest time until the next one, so that a worker about to do something long can announce it.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass

from radixrt.portable import allocate

WORDS = 8
"""64-bit words of a slot: a cache line, so that workers do not slow each other down."""
BEATS, ALLOWANCE_MS = 0, 1
IDLE_WAKE_S = 1.0
"""Longest time that a worker's loop sleeps without a message."""


@dataclass(frozen=True)
class Beats:
    """Content of a slot.

    Attributes:
        count: number of beats so far.
        allowance_s: longest time until the next beat after which the worker counts as hung.
    """

    count: int
    allowance_s: float


class Heartbeat:
    """A worker's end of its slot.

    Args:
        words: the slot; None for a worker without a watchdog.
    """

    def __init__(self, words: memoryview | None = None) -> None:
        self._words = memoryview(bytearray(8 * WORDS)).cast("Q") if words is None else words
        self._count = self._words[BEATS]
        self._last = time.perf_counter()
        self._longest_s = 0.0

    def beat(self) -> None:
        """Report progress."""
        now = time.perf_counter()
        if now - self._last > self._longest_s:
            self._longest_s = now - self._last
        self._last = now
        self._count += 1
        self._words[BEATS] = self._count

    def expect(self, allowance_s: float) -> None:
        """Report progress, and that from now on the next beat may take so long."""
        self._words[ALLOWANCE_MS] = int(allowance_s * 1000)
        self.beat()

    def lap(self) -> float:
        """Return the longest time between two beats since the last call, in seconds."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest


class HeartbeatFile:
    """The main process's end of all slots.

    Args:
        path: file to create, or a `MemoryFile`.
        slots: number of workers.

    Raises:
        OSError: no space is left for the file. A page of a file without space would end its writer by SIGBUS.
    """

    def __init__(self, path: str, slots: int) -> None:
        size = 8 * WORDS * slots
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            allocate(fd, size)
            self._words = memoryview(mmap.mmap(fd, size)).cast("Q")
        finally:
            os.close(fd)

    def reset(self, slot: int, allowance_s: float) -> None:
        """Prepare a slot for a new worker, whose first beat may take so long. The old worker must be dead."""
        self._words[WORDS * slot + BEATS] = 0
        self._words[WORDS * slot + ALLOWANCE_MS] = int(allowance_s * 1000)

    def read(self, slot: int) -> Beats:
        return Beats(self._words[WORDS * slot + BEATS], self._words[WORDS * slot + ALLOWANCE_MS] / 1000)


def open_heartbeat(path: str, slot: int) -> Heartbeat:
    """Map the slot of a worker in the main process's file."""
    fd = os.open(path, os.O_RDWR)
    try:
        words = memoryview(mmap.mmap(fd, 0)).cast("Q")
    finally:
        os.close(fd)
    return Heartbeat(words[WORDS * slot : WORDS * (slot + 1)])
