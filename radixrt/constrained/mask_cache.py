"""`MaskCache`: what was worked out once for a place of a grammar, for every request that comes to that place again.

Where a text stands in a grammar is a state of its recognizer, and everything that may follow depends on that state
alone. Requests with one schema, and the characters of a long string, are at the same few places over and over: then a
mask costs a lookup, in place of a walk through the vocabulary, and all rows that stand there have it in common.
"""

from __future__ import annotations

from collections import OrderedDict

from radixrt.constrained.closing import Place
from radixrt.constrained.grammar import Bitmask

MAX_BYTES = 64 * 1024 * 1024
PLACE_BYTES = 512
"""Of a place without its mask, about."""


class Known:
    """What is known about a place; None where nobody has asked yet.

    Attributes:
        row: the mask, read only.
        forced: the tokens that the grammar leaves no choice about.
        may_end, must_end: see `Matcher`.
    """

    __slots__ = ("forced", "may_end", "must_end", "row")

    def __init__(self) -> None:
        self.row: Bitmask | None = None
        self.forced: list[int] | None = None
        self.may_end: bool | None = None
        self.must_end: bool | None = None

    def remember(self, row: Bitmask) -> None:
        """The mask, which nobody may change from now on."""
        row.flags.writeable = False
        self.row = row


class MaskCache:
    """The places used last, of all grammars of one vocabulary. Belongs to the scheduler's thread.

    Args:
        max_bytes: of all places, about.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[Place, Known] = OrderedDict()
        self._num_bytes = 0

    def at(self, place: Place) -> Known:
        """What is known about a place, to be added to. States of different recognizers are different places."""
        known = self._known.get(place)
        if known is not None:
            self._known.move_to_end(place)
            return known
        known = self._known[place] = Known()
        self._num_bytes += PLACE_BYTES
        self._shrink()
        return known

    def put(self, place: Place, row: Bitmask) -> Known:
        """Remember a place's mask; returns all that is known there."""
        known = self.at(place)
        self._num_bytes += row.nbytes if known.row is None else 0
        known.remember(row)
        self._shrink()
        return known

    def _shrink(self) -> None:
        while self._num_bytes > self._max_bytes and self._known:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= PLACE_BYTES + (0 if oldest.row is None else oldest.row.nbytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of what is remembered, about."""
        return self._num_bytes
