"""The maximal-munch rule, with which a greedy lexer reads a grammar correctly, and terminals that violate the rule.

    No text s of a terminal T, followed by a character c that may follow T, begins a text of any terminal U.

Then, where the lexer cannot continue, the only parse is that a terminal ended there. The rule is checked for all pairs
of terminals, wherever they stand, so two that are never possible at the same position may be reported as a violation.

Follow sets are bits of an integer; the caller chooses the meaning of a bit. They are passed up and down the rows of the
grammar's `Layout` until nothing changes: once over all rows, and then only from those that changed out of order.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from radixrt.constrained.productions.core import Productions
from radixrt.constrained.productions.expressions import Rep
from radixrt.constrained.productions.layout import AGAIN, ALL, CALL, LEAF, MIXED, Layout
from radixrt.constrained.regex import EMPTY, CharSet, Regex, derive, literal
from radixrt.constrained.regex.charset import partition
from radixrt.constrained.regex.derivatives import first

# --- follow sets ---


Terminal = str | Regex


def terminals_of(productions: Productions) -> list[Terminal]:
    """Return the texts of literals and the languages of terms, without the empty text, in the order of the rows."""
    return [one for _, one in productions.layout.terminals]


def followers(productions: Productions, begins: Mapping[Terminal, int]) -> dict[Terminal, int]:
    """Return the follow set of each terminal.

    Args:
        begins: the first set of each terminal, in the caller's bits.
    """
    layout = productions.layout
    firsts = [0] * len(layout.order)
    for row, terminal in layout.terminals:
        firsts[row] = begins[terminal]
    empty = [length == 0 for length in layout.lengths]
    inner = _inner(layout)
    _pass_up(layout, inner, empty, firsts)
    after = _pass_down(layout, inner, empty, firsts)
    return {terminal: after[row] for row, terminal in layout.terminals}


_Inner = tuple[int, tuple[int, ...]]
"""Kind and children of a row that is no leaf. The child of a call is the body of the called rule."""


def _inner(layout: Layout) -> list[_Inner | None]:
    """Return every row as `_Inner`; None for leaves."""
    called = layout.called
    return [
        None if kind == LEAF else (kind, (called[row],) if kind == CALL else below)
        for row, (kind, below) in enumerate(zip(layout.kinds, layout.below))
    ]


def _pass_up(layout: Layout, inner: list[_Inner | None], empty: list[bool], firsts: list[int]) -> None:
    """Compute the first sets of inner rows, in place."""
    # Children come first, so a single pass suffices except for recursive calls. Then update the rows above each call
    # whose set differs from the set of the rule's body.
    for row, one in enumerate(inner):
        if one is not None:
            firsts[row] = _bits_of(one, empty, firsts)
    stale = [row for row, _ in layout.calls if firsts[row] != firsts[layout.called[row]]]
    heapify(stale)
    while stale:
        row = heappop(stale)
        changed = inner[row]
        assert changed is not None
        bits = _bits_of(changed, empty, firsts)
        if bits != firsts[row]:
            firsts[row] = bits
            for user in layout.users[row]:
                heappush(stale, user)


def _bits_of(inner: _Inner, empty: list[bool], firsts: list[int]) -> int:
    kind, below = inner
    bits = 0
    for one in below[::2] if kind == MIXED else below:
        bits |= firsts[one]
        if kind == ALL and not empty[one]:
            break
    return bits


def _pass_down(layout: Layout, inner: list[_Inner | None], empty: list[bool], firsts: list[int]) -> list[int]:
    """Return the follow set of each row. Pass over all rows, parents first, then over rows whose set has grown."""
    after = [0] * len(inner)
    again: list[int] = []  # negated rows whose set has grown after their turn
    waiting = bytearray(len(inner))  # flags of the rows in `again`
    order = layout.order
    row = len(inner)
    while row > 0 or again:
        if row > 0:
            row -= 1
            place = row
        else:
            place = -heappop(again)
            waiting[place] = 0
        one = inner[place]
        if one is None:
            continue
        kind, below = one
        follow = after[place]
        if kind == AGAIN and _repeats(order[place]):
            follow |= firsts[below[0]]
        elif kind == MIXED:
            for part in below[1::2]:
                follow |= firsts[part]
        for part in reversed(below):
            if follow & ~after[part]:
                after[part] |= follow
                if part >= row and not waiting[part] and inner[part] is not None:
                    waiting[part] = 1
                    heappush(again, -part)
            if kind == ALL:
                follow = firsts[part] | follow if empty[part] else firsts[part]
    return after


def _repeats(expr: object) -> bool:
    return isinstance(expr, Rep) and (expr.high is None or expr.high > 1)


# --- the rule ---


_MAX_PAIRS: Final = 500


class MaximalMunch:
    """Checks the maximal-munch rule, and caches the results for pairs of terminals."""

    def __init__(self) -> None:
        self._known: dict[tuple[Regex, Regex, CharSet], int | None] = {}

    def violations(self, productions: Productions) -> dict[Terminal, int]:
        """Return the terminals that violate the rule in the role of U, each with the least length at which another
        terminal may have ended."""
        # A bit of the follow sets is an atom of the partition of all first sets.
        regexes = {one: literal(one) if isinstance(one, str) else one for one in terminals_of(productions)}
        begins = {one: first(regex) for one, regex in regexes.items()}
        atoms = partition(begins.values())
        bits = {
            one: sum(1 << place for place, atom in enumerate(atoms) if atom & charset)
            for one, charset in begins.items()
        }
        # Check all pairs that begin alike and in which a character after T occurs in U.
        found: dict[Terminal, int] = {}
        after = {one: _union(atoms, mask) for one, mask in followers(productions, bits).items()}
        for longer, long_regex in regexes.items():
            if long_regex.max_length == 1:
                continue
            alphabet = long_regex.alphabet()
            for shorter, short_regex in regexes.items():
                follow = after[shorter] & alphabet
                if follow and begins[shorter] & begins[longer]:
                    length = self._length(short_regex, long_regex, follow)
                    if length is not None:
                        found[longer] = min(length, found.get(longer, length))
        return found

    def _length(self, shorter: Regex, longer: Regex, after: CharSet) -> int | None:
        key = (shorter, longer, after)
        if key not in self._known:
            single = shorter.text is not None or longer.text is not None
            self._known[key] = (_goes_on_literally if single else _goes_on)(shorter, longer, after)
        return self._known[key]


def _union(atoms: list[CharSet], mask: int) -> CharSet:
    found = CharSet(())
    for place, atom in enumerate(atoms):
        if mask >> place & 1:
            found = found | atom
    return found


def _goes_on_literally(shorter: Regex, longer: Regex, after: CharSet) -> int | None:
    """Same as `_goes_on`, where at least one of the two is a single text."""
    if shorter.text is not None and longer.text is not None:
        length = len(shorter.text)
        goes_on = len(longer.text) > length and longer.text.startswith(shorter.text) and longer.text[length] in after
        return length if goes_on else None
    if shorter.text is not None:
        for char in shorter.text:
            longer = derive(longer, char)
        return len(shorter.text) if first(longer) & after else None
    assert longer.text is not None
    for length, char in enumerate(longer.text):
        if length and shorter.nullable and char in after:
            return length
        shorter = derive(shorter, char)
    return None


def _goes_on(shorter: Regex, longer: Regex, after: CharSet) -> int | None:
    """Length of a text of `shorter` that, with one more character of `after`, begins a text of `longer`."""
    pairs = [(shorter, longer)]
    seen: set[tuple[Regex, Regex]] = set()
    length = 0
    while pairs:
        length += 1
        following: list[tuple[Regex, Regex]] = []
        for left, right in pairs:
            for charset in left.classes():
                for part in (charset & other for other in right.classes()):
                    if not part:
                        continue
                    char = chr(part.edges[0])
                    pair = derive(left, char), derive(right, char)
                    if pair[0] is EMPTY or pair[1] is EMPTY or pair in seen:
                        continue
                    if pair[0].nullable and first(pair[1]) & after:
                        return length
                    seen.add(pair)
                    following.append(pair)
                    if len(seen) > _MAX_PAIRS:
                        return length
        pairs = following
    return None
