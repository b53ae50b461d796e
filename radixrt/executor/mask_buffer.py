"""`MaskBuffer`: grammar masks on their way to runners of this machine, in memory that both sides map.

64 rows over a vocabulary of 128 k are one megabyte a step; a message names an offset instead of carrying them. Two
halves are written in turn: a runner answers step N after it has read mask N, and mask N + 1 is written after that
answer, so the half that is written is never being read, even where the copy to a device is still under way.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from radixrt.constrained.grammar import Bitmask

HALVES = 2


class MaskBuffer:
    """The scheduler's end. The file lies in the engine's private folder and goes with it.

    Args:
        path: the file to make; only this user can read it.
        max_rows: most constrained rows of one step.
        words: uint32 words of one row.
    """

    def __init__(self, path: str, max_rows: int, words: int) -> None:
        size = HALVES * max_rows * words * 4
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._halves = np.frombuffer(self._map, np.uint32).reshape(HALVES, max_rows, words)
        self._half = 0

    def next_rows(self, num_rows: int) -> tuple[Bitmask, int]:
        """Rows to fill for the next mask, with their offset in bytes, which the message carries."""
        self._half = (self._half + 1) % HALVES
        rows = self._halves[self._half]
        return rows[:num_rows], self._half * rows.nbytes


class MaskReader:
    """A runner's end; maps the file when the first mask comes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def read(self, offset: int, num_rows: int, words: int) -> Bitmask:
        """uint32 [num_rows, words], a view that is good until the runner has answered the step."""
        if self._map is None:
            fd = os.open(self._path, os.O_RDWR)
            try:
                self._map = mmap.mmap(fd, 0)
            finally:
                os.close(fd)
        return np.frombuffer(self._map, np.uint32, num_rows * words, offset).reshape(num_rows, words)
