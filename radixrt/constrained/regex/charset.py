"""Sets of Unicode code points: the alphabet on which regular languages are built.

Surrogates (U+D800 to U+DFFF) are in no set: they are not characters of any text that can be encoded. A set is kept
as the sorted edges where membership changes, so that a test is one bisection and each operation one merge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Final

LAST: Final = 0x10FFFF
_UNIVERSE: Final = (0, 0xD800, 0xE000, LAST + 1)


class CharSet:
    """An immutable set of code points; equal sets compare and hash equal.

    Attributes:
        edges: sorted; code point c is in the set where the number of edges <= c is odd.
    """

    __slots__ = ("_hash", "edges")

    def __init__(self, edges: tuple[int, ...]) -> None:
        self.edges = edges
        self._hash = hash(edges)

    @staticmethod
    def of(text: Iterable[str]) -> CharSet:
        """The characters of the text, or of several one-character strings."""
        return CharSet.ranges((ord(char), ord(char)) for char in text)

    @staticmethod
    @lru_cache(maxsize=4096)
    def single(char: str) -> CharSet:
        """One character."""
        return CharSet.of(char)

    @staticmethod
    def span(first: int, last: int) -> CharSet:
        """The code points from first to last, both included."""
        return CharSet.ranges([(first, last)])

    @staticmethod
    def ranges(pairs: Iterable[tuple[int, int]]) -> CharSet:
        """The union of inclusive ranges in any order, without surrogates."""
        edges: list[int] = []
        for first, last in sorted(pairs):
            if edges and first <= edges[-1]:
                edges[-1] = max(edges[-1], last + 1)
            else:
                edges += (first, last + 1)
        made = tuple(edges)
        if any(low < 0xE000 and high > 0xD800 for low, high in zip(made[::2], made[1::2])):
            return CharSet(_merge(made, _UNIVERSE, 3))
        return CharSet(made)

    def pairs(self) -> list[tuple[int, int]]:
        """Sorted, disjoint inclusive ranges."""
        edges = self.edges
        return [(edges[at], edges[at + 1] - 1) for at in range(0, len(edges), 2)]

    def __contains__(self, item: str | int) -> bool:
        return bool(bisect_right(self.edges, ord(item) if isinstance(item, str) else item) & 1)

    def __iter__(self) -> Iterator[str]:
        for first, last in self.pairs():
            yield from map(chr, range(first, last + 1))

    def __len__(self) -> int:
        return sum(self.edges[1::2]) - sum(self.edges[::2])

    def __bool__(self) -> bool:
        return bool(self.edges)

    def is_empty(self) -> bool:
        return not self.edges

    def __or__(self, other: CharSet) -> CharSet:
        return _combine(self, other, 2)

    def __and__(self, other: CharSet) -> CharSet:
        return _combine(self, other, 3)

    def __sub__(self, other: CharSet) -> CharSet:
        return _combine(self, other, 1)

    def __invert__(self) -> CharSet:
        return _combine(EVERY, self, 1)

    union = __or__
    intersection = __and__
    difference = __sub__
    complement = __invert__

    def issubset(self, other: CharSet) -> bool:
        return not _combine(self, other, 1).edges

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CharSet) and self.edges == other.edges)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        shown = ",".join(f"{first:x}" if first == last else f"{first:x}-{last:x}" for first, last in self.pairs()[:8])
        return f"CharSet({shown}{',...' if len(self.edges) > 16 else ''})"


def _merge(left: tuple[int, ...], right: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """Edges of the union (wanted 2), intersection (3) or difference (1) of two edge lists."""
    edges: list[int] = []
    inside = False
    at_left = at_right = 0
    end = LAST + 2
    while at_left < len(left) or at_right < len(right):
        next_left = left[at_left] if at_left < len(left) else end
        next_right = right[at_right] if at_right < len(right) else end
        edge = min(next_left, next_right)
        at_left += next_left == edge
        at_right += next_right == edge
        in_left, in_right = at_left & 1, at_right & 1
        now = bool(in_left | in_right if wanted == 2 else in_left & in_right if wanted == 3 else in_left & ~in_right)
        if now != inside:
            edges.append(edge)
            inside = now
    return tuple(edges)


@lru_cache(maxsize=4096)
def _combine(left: CharSet, right: CharSet, wanted: int) -> CharSet:
    return CharSet(_merge(left.edges, right.edges, wanted))


def partition(sets: Iterable[CharSet]) -> list[CharSet]:
    """The coarsest partition of all code points on which each of the sets is constant; the first holds the smallest.

    Holds: every member of the result is inside or outside of each set, and the members together are `EVERY`.
    """
    return _partition(frozenset(sets))


@lru_cache(maxsize=4096)
def _partition(distinct: frozenset[CharSet]) -> list[CharSet]:
    changes: dict[int, int] = {0: 0, 0xD800: 0, 0xE000: 0}
    for bit, charset in enumerate(distinct):
        for edge in charset.edges:
            changes[edge] = changes.get(edge, 0) ^ (1 << bit)
    groups: dict[int, list[int]] = {}
    signature = 0
    points = sorted(changes)
    for at, point in enumerate(points):
        signature ^= changes[point]
        if point <= LAST and point != 0xD800:
            edges = groups.setdefault(signature, [])
            if edges and edges[-1] == point:
                edges.pop()
            else:
                edges.append(point)
            edges.append(points[at + 1] if at + 1 < len(points) else LAST + 1)
    return [CharSet(tuple(edges)) for edges in groups.values()]


NONE: Final = CharSet(())
EVERY: Final = CharSet(_UNIVERSE)
DIGITS: Final = CharSet.of("0123456789")


# --- named classes of ECMA-262 patterns ---

WORD: Final = CharSet.ranges([(48, 57), (65, 90), (95, 95), (97, 122)])
LINE_TERMINATORS: Final = CharSet.of("\n\r\u2028\u2029")
SPACE: Final = CharSet.of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | CharSet.span(0x2000, 0x200A)
DOT: Final = EVERY - LINE_TERMINATORS


@cache
def _case_groups() -> dict[int, CharSet]:
    """For each cased character, the characters with the same simple case folding."""
    groups: dict[str, list[int]] = {}
    for point in range(0x1EA00):
        char = chr(point)
        folded = char.casefold()
        if len(folded) > 1:
            folded = char.lower()
        if len(folded) == 1 and folded != char:
            groups.setdefault(folded, [ord(folded)]).append(point)
    return {
        point: CharSet.ranges((member, member) for member in members)
        for members in groups.values()
        for point in members
    }


@lru_cache(maxsize=1024)
def ignoring_case(charset: CharSet) -> CharSet:
    """Return the set closed under case folding, as with ECMA-262's flags i and u together."""
    widened = charset
    for point, group in _case_groups().items():
        if point in charset:
            widened = widened | group
    return widened
