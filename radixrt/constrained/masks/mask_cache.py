"""`MaskCache`: masks and forced tokens by parser state, shared by all requests that reach the state.

Everything that may follow a text depends on its parser state alone. Requests with one schema, and the characters of a
long string, reach the same few states again and again. A mask then costs a lookup instead of a walk through the
vocabulary, and all rows in that state share one array.
"""

from __future__ import annotations

from collections import OrderedDict

from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.masks.closing import ParserState

MAX_BYTES = 64 * 1024 * 1024
STATE_BYTES = 512
"""Approximate size of a state without its mask."""


class CachedState:
    """Results for one parser state; None where nothing was computed yet.

    Attributes:
        row: the mask, read only.
        forced: the tokens that the grammar forces.
        may_end, must_end: see `Matcher`.
    """

    __slots__ = ("forced", "may_end", "must_end", "row")

    def __init__(self) -> None:
        self.row: Bitmask | None = None
        self.forced: list[int] | None = None
        self.may_end: bool | None = None
        self.must_end: bool | None = None

    def remember(self, row: Bitmask) -> None:
        """Store the mask, which is read-only from now on."""
        row.flags.writeable = False
        self.row = row


class MaskCache:
    """An LRU cache of the parser states of all grammars of one vocabulary. Belongs to the scheduler's thread.

    Args:
        max_bytes: approximate size of all states.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[ParserState, CachedState] = OrderedDict()
        self._num_bytes = 0

    def at(self, state: ParserState) -> CachedState:
        """The entry of a parser state, made if need be. States of different recognizers are different keys."""
        known = self._known.get(state)
        if known is not None:
            self._known.move_to_end(state)
            return known
        known = self._known[state] = CachedState()
        self._num_bytes += STATE_BYTES
        self._shrink()
        return known

    def put(self, state: ParserState, row: Bitmask) -> CachedState:
        """Store the mask of a parser state; returns its entry."""
        known = self.at(state)
        self._num_bytes += row.nbytes if known.row is None else 0
        known.remember(row)
        self._shrink()
        return known

    def _shrink(self) -> None:
        while self._num_bytes > self._max_bytes and self._known:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= STATE_BYTES + (0 if oldest.row is None else oldest.row.nbytes)

    @property
    def num_bytes(self) -> int:
        """Approximate size of all entries."""
        return self._num_bytes
