"""`MaskBuffer`: shared memory that carries grammar masks from the scheduler to the runners of the same machine.

The masks of 64 rows over a vocabulary of 128 k take one megabyte a step, so messages carry an offset into the buffer
instead of the masks. The two halves of the buffer are written in turn: a runner answers step N after it has read mask
N, and mask N + 1 is written after that answer, so the half being written is never being read, even while a copy to a
device is still running.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.messages.runner import GrammarMask
from radixrt.messages.wire import Int32Array, unpack_i32

HALVES = 2


class MaskBuffer:
    """The scheduler's end of the buffer. The file lies in the engine's private folder and is deleted with it.

    A scheduler that is started anew opens the file of the one before, which runners may have mapped.

    Args:
        path: file to create or open, readable by this user only.
        max_rows: maximum number of constrained rows in one step.
        words: uint32 words of one mask.

    Raises:
        OSError: the file system is full.
    """

    def __init__(self, path: str, max_rows: int, words: int) -> None:
        size = HALVES * max_rows * words * 4
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._halves = np.frombuffer(self._map, np.uint32).reshape(HALVES, max_rows, words)
        self._half = 0

    def next_rows(self, num_rows: int) -> tuple[Bitmask, int]:
        """Return the rows to fill for the next step (uint32 [num_rows, words]) and their offset in bytes."""
        self._half = (self._half + 1) % HALVES
        rows = self._halves[self._half]
        return rows[:num_rows], self._half * rows.nbytes


def _allocate(fd: int, size: int) -> None:
    """Make the file so large, with all of its blocks: a page that has no block would end its writer by SIGBUS."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.ftruncate(fd, 0)
        raise


@dataclass(frozen=True)
class Mask:
    """The content of a `GrammarMask`: u masks for m of a step's sampling rows.

    Attributes:
        rows: int32 [m], the constrained rows, as indices of the step's sampling rows.
        index: int32 [m], index of each row's mask in `bits`.
        bits: uint32 [u, ceil(vocab / 32)], the masks.
    """

    rows: Int32Array
    index: Int32Array
    bits: npt.NDArray[np.uint32]


class MaskReader:
    """The runner's end of the buffer; it maps the file when the first mask arrives.

    Args:
        path: the scheduler's file; None where messages carry the masks themselves.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def unpack(self, message: GrammarMask | None, vocab_size: int) -> Mask | None:
        """Return the mask that a message describes; None where every row may sample anything."""
        if message is None or not message.rows:
            return None
        if message.bits or self._path is None:
            bits = np.frombuffer(message.bits, np.uint32).reshape(message.num_masks, -1)
        else:
            bits = self.read(message.offset, message.num_masks, bitmask_words(vocab_size))
        return Mask(unpack_i32(message.rows), unpack_i32(message.index), bits)

    def read(self, offset: int, num_rows: int, words: int) -> Bitmask:
        """Return uint32 [num_rows, words], a view that is valid until the runner has answered the step."""
        assert self._path is not None
        if self._map is None:
            fd = os.open(self._path, os.O_RDWR)
            try:
                self._map = mmap.mmap(fd, 0)
            finally:
                os.close(fd)
        return np.frombuffer(self._map, np.uint32, num_rows * words, offset).reshape(num_rows, words)
