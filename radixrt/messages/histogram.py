"""`Histogram`: numbers of values by bucket, counted in one process and shown to Prometheus by another."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

TOKEN_GAPS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Bounds for seconds between two tokens of a request."""

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Bounds for the tokens that one step computes."""

COMPILE_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds for the seconds that it takes to compile a constraint."""

MOVE_TIMES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds for the seconds that keys and values are on the way between two memories."""


class Histogram(msgspec.Struct, array_like=True):
    """Numbers of values by bucket; the process that counts them sends copies.

    Attributes:
        bounds: largest value of each bucket, ascending.
        counts: number of values in each bucket; one more than there are bounds, for larger values.
        total: sum of all values.
    """

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        """Create a histogram without values."""
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that has occurred `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> Histogram:
        """Return a copy that later values do not change."""
        return Histogram(self.bounds, self.counts[:], self.total)
