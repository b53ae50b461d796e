"""`GroupRow`: what a row of a scoring or embedding request reads from the forward passes, instead of sampling."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from radixrt.messages.parts import Pooling
from radixrt.messages.wire import Int32Array, pack_f32, unpack_f32


class GroupRow(ABC):
    """One row of a group; see `radixrt.scheduler.request_group`.

    Attributes:
        rid: id of the group.
        shared_len: number of leading tokens that an earlier row of the same group has too.
        fork_len: number of leading tokens that later rows of the same group have too.
    """

    __slots__ = ("fork_len", "rid", "shared_len")

    def __init__(self, rid: str, shared_len: int = 0, fork_len: int = 0) -> None:
        self.rid = rid
        self.shared_len = shared_len
        self.fork_len = fork_len

    @property
    @abstractmethod
    def first_read(self) -> int:
        """Position of the first token whose hidden state is still needed, so that it must not come from the cache."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """True once everything has been read."""

    @abstractmethod
    def take(self, values: bytes, count: int) -> None:
        """Take the values that one step has computed.

        Args:
            values: a float32 column.
            count: number of targets, or of positions, that they belong to.
        """

    @abstractmethod
    def restart(self) -> None:
        """Prepare for being computed again from the first position that is still needed."""

    @abstractmethod
    def answer(self) -> bytes:
        """Return the row's part of the group's answer, a float32 column; once `is_done`."""


class ScoredRow(GroupRow):
    """Targets and scores of one row of a scoring request; see `messages.ScoreRow`.

    Attributes:
        positions, targets: int32[q].
    """

    __slots__ = ("_answered", "_values", "positions", "targets")

    def __init__(
        self, rid: str, positions: Int32Array, targets: Int32Array, shared_len: int = 0, fork_len: int = 0
    ) -> None:
        super().__init__(rid, shared_len, fork_len)
        self.positions = positions
        self.targets = targets
        self._answered = 0
        self._values: list[bytes] = []

    @property
    def first_read(self) -> int:
        """Position of the first target without a score. Read only while there is one."""
        return int(self.positions[self._answered])

    @property
    def is_done(self) -> bool:
        return self._answered == len(self.positions)

    def within(self, start: int, end: int) -> slice:
        """The targets without a score at positions [start, end)."""
        first, last = np.searchsorted(self.positions, [start, end])
        return slice(max(int(first), self._answered), max(int(last), self._answered))

    def take(self, values: bytes, count: int) -> None:
        self._values.append(values)
        self._answered += count

    def restart(self) -> None:
        """Do nothing: a target is scored once, and its score is kept."""

    def answer(self) -> bytes:
        return b"".join(self._values)


class PooledRow(GroupRow):
    """Prompt of an embedding request, whose final hidden states at positions [start, length) are averaged.

    Attributes:
        start: the last position for "last", 0 for "mean".
    """

    __slots__ = ("_read", "_sum", "length", "start")

    def __init__(self, rid: str, length: int, pooling: Pooling) -> None:
        super().__init__(rid)
        self.length = length
        self.start = length - 1 if pooling == "last" else 0
        self._read = self.start
        self._sum: npt.NDArray[np.float64] = np.zeros(1)  # [hidden size] once there is a value

    @property
    def first_read(self) -> int:
        return self.start

    @property
    def is_done(self) -> bool:
        return self._read == self.length

    def within(self, start: int, end: int) -> range:
        """The positions among [start, end) that are averaged."""
        return range(max(start, self.start), end)

    def take(self, values: bytes, count: int) -> None:
        self._sum = self._sum + unpack_f32(values)
        self._read += count

    def restart(self) -> None:
        self._read = self.start
        self._sum = np.zeros(1)

    def answer(self) -> bytes:
        return pack_f32(self._sum / (self.length - self.start))
