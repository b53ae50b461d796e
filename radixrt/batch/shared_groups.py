"""`SharedGroups`: which decode rows of a step have which positions in common, for backends that read these once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.messages import I32, Int32Array, unpack_i32

START, LENGTH, FIRST, COUNT = range(4)
"""Columns of `SharedGroups.segments`."""


@dataclass(frozen=True)
class SharedGroups:
    """Positions [start, start + length) hold the same slots for rows[first : first + count], two or more: a group.

    Groups of one row are disjoint in positions and together cover a prefix of its sequence, without its newest token.
    Groups nest, and `rows` are in depth-first order: the rows of two groups are apart, or those of the one that begins
    further down are a part of the other's.

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

    def from_row(self, first: int) -> SharedGroups:
        """The same for the step's rows from `first` on alone, before which no row shares anything."""
        return self if first == 0 else SharedGroups(self.segments, self.rows - first)

    def among(self, chosen: npt.NDArray[np.bool_]) -> SharedGroups | None:
        """The same for the step's rows that are set in `chosen` (bool [B]) alone; None if one that shares is not."""
        if not chosen[self.rows].all():
            return None
        places = np.cumsum(chosen, dtype=I32) - 1
        return SharedGroups(self.segments, places[self.rows])

    def ends(self, num_rows: int) -> Int32Array:
        """int32 [num_rows], by row of the step: positions [0, end) are covered by groups; 0 for rows of none."""
        start, length, first, count = self.segments.T
        before = np.cumsum(count) - count
        members = self.rows[np.arange(count.sum()) + np.repeat(first - before, count)]
        ends = np.zeros(num_rows, I32)
        np.maximum.at(ends, members, np.repeat(start + length, count))
        return ends
