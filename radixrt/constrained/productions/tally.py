"""`Tally`: how often each part of an `AnyOrder` has occurred, packed into an integer.

Occurrences of a part up to its lower bound are *owed*; all others are *extra*. Because what is owed may come at any
time, the bounds on the total are bounds on the extra occurrences alone, and from every state that can be reached the
bounds can still be met. So the shortest completion is known without a search, and no state is a dead end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from radixrt.constrained.productions.expressions import AnyOrder

Bounds = tuple[int, "int | None"]
Field = tuple[int, int]
"""Offset and number of the bits of a count."""
NO_FIELD: Final[Field] = (0, 0)


class Tally:
    """Counts of the parts of one `AnyOrder`. The state before the first part is 0.

    Args:
        parts: bounds on the occurrences of each part.
        low, high: bounds on all occurrences together.

    Attributes:
        parts: as above.
        least, most: bounds on the extra occurrences; None where nothing bounds them. A negative `most` allows no text.
        fields: the bits of each part's count, which stops at the upper bound, or without one at the lower bound.
        extra: the bits of the number of extra occurrences, which stops at `most`, or without one at `least`.
    """

    def __init__(self, parts: tuple[Bounds, ...], low: int, high: int | None) -> None:
        owed = sum([least for least, _ in parts])
        self.parts = parts
        self.least = max(0, low - owed) if low > 1 else 0  # a text has one part in any case
        self.most = None if high is None else high - owed
        self.caps = [least if most is None else most for least, most in parts]
        self.extra_cap = self.least if self.most is None else max(0, self.most)
        self.fields: list[Field] = []
        offset = 0
        for cap in self.caps:
            self.fields.append((offset, cap.bit_length()))
            offset += cap.bit_length()
        self.extra: Field = (offset, self.extra_cap.bit_length())

    @staticmethod
    def of(expr: AnyOrder) -> Tally:
        """Return the tally of an expression."""
        return _tally(tuple([(part.low, part.high) for part in expr.parts]), expr.low, expr.high)

    def after(self, state: int, part: int) -> int | None:
        """Return the state after one more occurrence of a part; None if the part may not occur."""
        offset, width = self.fields[part]
        count = state >> offset & (1 << width) - 1
        low, high = self.parts[part]
        if count < low:
            return state + (1 << offset)
        at, bits = self.extra
        extra = state >> at & (1 << bits) - 1
        if count == high or extra == self.most or (self.most is not None and self.most < 0):
            return None
        if high is not None:
            state += 1 << offset
        return state + (1 << at) if extra < self.extra_cap else state

    def moves(self, state: int) -> Iterator[tuple[int, int]]:
        """Yield the parts that may occur next, each with the state after it."""
        for part in range(len(self.parts)):
            after = self.after(state, part)
            if after is not None:
                yield part, after

    def may_end(self, state: int) -> bool:
        """Return True if all lower bounds are met."""
        return next(self._owed(state), None) is None and self._missing_extra(state) == 0

    def missing(self, state: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Return the parts of a shortest completion, and how often each occurs.

        Args:
            lengths: characters of a shortest text of each part.
        """
        found = list(self._owed(state))
        needed = self._missing_extra(state)
        for part in sorted(range(len(lengths)), key=lengths.__getitem__) if needed else ():
            room = self._room(state, part)
            taken = needed if room is None else min(room, needed)
            if taken:
                found.append((part, taken))
            needed -= taken
            if not needed:
                break
        return found

    def shortest_length(self, firsts: Sequence[int | None], laters: Sequence[int | None]) -> int | None:
        """Return the characters of a shortest text, given those of each part as the first and as a later part."""
        alive = [first is not None and later is not None for first, later in zip(firsts, laters, strict=True)]
        if any(low and not lives for (low, _), lives in zip(self.parts, alive, strict=True)):
            return None
        rooms = [self._room(0, part) for part, lives in enumerate(alive) if lives]
        least = self.least if self.least or any(low for low, _ in self.parts) else 1
        if (self.most is not None and self.most < least) or (
            None not in rooms and sum([room or 0 for room in rooms]) < least
        ):
            return None
        known = [_UNREACHABLE if later is None or not lives else later for later, lives in zip(laters, alive)]
        chosen = self.shortest(known)
        saved = known[chosen[0][0]] - (firsts[chosen[0][0]] or 0)
        return sum([known[part] * times for part, times in chosen]) - saved

    def shortest(self, laters: Sequence[int]) -> list[tuple[int, int]]:
        """Return the parts of a shortest text, and how often each occurs, the first of all at the beginning."""
        chosen = self.missing(0, laters)
        if not chosen:
            possible = [part for part, (_, high) in enumerate(self.parts) if high != 0]
            chosen = [(min(possible, key=laters.__getitem__), 1)]
        return chosen

    def _owed(self, state: int) -> Iterator[tuple[int, int]]:
        """Yield the parts that have not reached their lower bound, and how many occurrences are missing."""
        for part, (low, _) in enumerate(self.parts):
            if low:
                offset, width = self.fields[part]
                count = state >> offset & (1 << width) - 1
                if count < low:
                    yield part, low - count

    def _missing_extra(self, state: int) -> int:
        at, bits = self.extra
        return max(0, self.least - (state >> at & (1 << bits) - 1)) if self.least else 0

    def _room(self, state: int, part: int) -> int | None:
        """Return how many extra occurrences of a part are left; None if there is no bound."""
        low, high = self.parts[part]
        if high is None:
            return None
        offset, width = self.fields[part]
        return high - max(low, state >> offset & (1 << width) - 1)


_UNREACHABLE: Final = 1 << 62


@lru_cache(maxsize=256)
def _tally(parts: tuple[Bounds, ...], low: int, high: int | None) -> Tally:
    return Tally(parts, low, high)
