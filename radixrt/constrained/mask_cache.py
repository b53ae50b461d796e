"""`MaskCache`: what was worked out once for a place of a grammar, for every request that comes to that place again.

Where a text stands in a grammar is a state of its recognizer, and everything that may follow depends on that state
alone. Requests with one schema, and the characters of a long string, are at the same few places over and over: then a
mask costs a lookup and a copy of some kilobytes, in place of a walk through the vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from radixrt.constrained.closing import Place
from radixrt.constrained.grammar import Bitmask

MAX_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Known:
    """What is known about a place.

    Attributes:
        row: the mask; not to be changed.
        forced: the tokens that the grammar leaves no choice about; None where nobody has asked yet.
    """

    row: Bitmask
    forced: list[int] | None = None


class MaskCache:
    """The places used last, of all grammars of one vocabulary. Belongs to the scheduler's thread.

    Args:
        max_bytes: of the masks, about.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[Place, Known] = OrderedDict()
        self._num_bytes = 0

    def get(self, place: Place) -> Known | None:
        """What is known about a place. States of different recognizers are different places."""
        known = self._known.get(place)
        if known is not None:
            self._known.move_to_end(place)
        return known

    def put(self, place: Place, row: Bitmask) -> None:
        """Keep a copy of the mask."""
        if place not in self._known:
            self._num_bytes += row.nbytes
        self._known[place] = Known(row.copy())
        while self._num_bytes > self._max_bytes:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= oldest.row.nbytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the masks."""
        return self._num_bytes
