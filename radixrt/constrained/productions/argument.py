"""`Argument`: a tally in the 64 bits that a parametric rule of llguidance may carry.

A call of such a rule can make one change only. So where the extra occurrences of all parts together are bounded, each
of them sets a bit of its own, and their number is the number of these bits; otherwise each part has a counter.
"""

from __future__ import annotations

from typing import Final

from radixrt.constrained.productions.tally import Tally

MAX_BITS: Final = 64
MAX_DEPTH: Final = 900
"""Calls within one another; each takes up to two items of a row of llguidance's parser, which has 2,000."""

Bits = tuple[int, int]
"""The first bit of a field, and the bit after its last."""


class Argument:
    """The fields of the argument.

    Attributes:
        bounds: of each part, as narrow as the bounds on all parts together make them.
        counts: the counter of each part that has one; a single bit where the part occurs at most once.
        caps: the value at which each counter stops.
        extra_bits: a bit for each extra occurrence of a part, where they are bounded together; set from the first on.
        single: the bits of parts that occur exactly once.
        extra: all bits of `extra_bits`.
        together: the extra occurrences are bounded together.
    """

    def __init__(self, tally: Tally) -> None:
        most = tally.most
        self.bounds = [
            (low, high if most is None else low + most if high is None else min(high, low + most))
            for low, high in tally.parts
        ]
        self.together = tally.extra_cap > 0
        self.counts: dict[int, Bits] = {}
        self.caps: dict[int, int] = {}
        self.extra_bits: dict[int, Bits] = {}
        self._end = 0
        self._depth = 0
        # Parts that occur exactly once come first, to ask for all of them with one condition.
        for part, bounds in enumerate(self.bounds):
            if bounds == (1, 1):
                self._count(part, 1)
        self.single = (0, self._end)
        for part, (low, high) in enumerate(self.bounds):
            if (low, high) != (1, 1):
                self._count(part, low if self.together or high is None else high)
        first = self._end
        for part, (low, high) in enumerate(self.bounds):
            if self.together and high != low:
                size = tally.least if high is None else high - low
                self.extra_bits[part] = self._field(size, size)
        self.extra = (first, self._end)

    @property
    def problem(self) -> str | None:
        """The reason why llguidance cannot carry the tally; None if it can."""
        if self._end > MAX_BITS:
            return f"parts in any order whose counts take {self._end} bits; llguidance has {MAX_BITS}"
        if self._depth > MAX_DEPTH:
            return f"parts in any order that are counted to {self._depth}; llguidance takes {MAX_DEPTH}"
        return None

    def _count(self, part: int, cap: int) -> None:
        if cap:
            self.caps[part] = cap
            self.counts[part] = self._field(cap.bit_length(), cap)

    def _field(self, width: int, cap: int) -> Bits:
        first, self._end = self._end, self._end + width
        self._depth += cap
        return first, self._end
