"""`SharedGroups`: which rows of a step have which positions in common, for backends that read these once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.messages.wire import I32, Int32Array, unpack_i32

START, LENGTH, FIRST, COUNT = range(4)
"""Columns of `SharedGroups.segments`."""


@dataclass(frozen=True)
class SharedGroups:
    """Positions [start, start + length) hold the same slots for rows[first : first + count], two or more: a group.

    Groups of one row are disjoint in positions and together cover a prefix of its sequence, without its new tokens.
    Groups nest, and `rows` are in depth-first order: the rows of two groups are apart, or those of the one that begins
    further down are a part of the other's. In an EXTEND step the rows of a group have either several new tokens each,
    or one each.

    Attributes:
        segments: int32 [G, 4], start, length, first, count; a group stands after those that it lies below.
        rows: int32 [N], indices of the step's rows.
    """

    segments: Int32Array
    rows: Int32Array

    @staticmethod
    def from_columns(segments: bytes, rows: bytes) -> SharedGroups | None:
        """From a `ForwardStep`'s columns; None if it shares nothing."""
        return SharedGroups(unpack_i32(segments).reshape(-1, 4), unpack_i32(rows)) if segments else None

    def between(self, first: int, end: int) -> SharedGroups | None:
        """The groups of the step's rows [first, end), numbered from 0; None if there are none. No group is cut."""
        kept = (self.rows >= first) & (self.rows < end)
        return self if first == 0 and kept.all() else self._of(kept, self.rows - first)

    def among(self, chosen: npt.NDArray[np.bool_]) -> SharedGroups | None:
        """The same for the step's rows that are set in `chosen` (bool [B]) alone; None if a group has others."""
        if (self.ends(len(chosen)) > 0)[~chosen].any():
            return None
        return self._of(chosen[self.rows], np.cumsum(chosen, dtype=I32)[self.rows] - 1)

    def _of(self, kept: npt.NDArray[np.bool_], places: Int32Array) -> SharedGroups | None:
        """The groups of the entries of `rows` that are kept (bool [N]), each with its row's new number (int32 [N])."""
        segments = self.segments[kept[self.segments[:, FIRST]]]
        if not len(segments):
            return None
        segments[:, FIRST] = (np.cumsum(kept, dtype=I32) - 1)[segments[:, FIRST]]
        return SharedGroups(segments, places[kept])

    def ends(self, num_rows: int) -> Int32Array:
        """int32 [num_rows], by row of the step: positions [0, end) are covered by groups; 0 for rows of none."""
        start, length, first, count = self.segments.T
        before = np.cumsum(count) - count
        members = self.rows[np.arange(count.sum()) + np.repeat(first - before, count)]
        ends = np.zeros(num_rows, I32)
        np.maximum.at(ends, members, np.repeat(start + length, count))
        return ends
