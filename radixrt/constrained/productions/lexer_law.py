"""The law under which a greedy lexer reads a grammar rightly, and which pairs of terminals break it.

    No text s of a terminal T, followed by a character c that may follow T, begins a text of any terminal U.

Then, where the lexer cannot go on, the only reading is that a terminal ended there. The law is checked for all pairs of
terminals, wherever they stand, so it may be said to be broken by two that are never possible at the same place.
"""

from __future__ import annotations

from typing import Final

from radixrt.constrained.productions.core import Productions
from radixrt.constrained.productions.follow import Terminal, followers, terminals_of
from radixrt.constrained.regex import EMPTY, CharSet, Regex, literal
from radixrt.constrained.regex.charset import partition
from radixrt.constrained.regex.derivatives import first

_MAX_PAIRS: Final = 500


class LexerLaw:
    """Checks the law, and keeps the answers for pairs that are asked for again."""

    def __init__(self) -> None:
        self._known: dict[tuple[Regex, Regex, CharSet], int | None] = {}

    def broken(self, productions: Productions) -> dict[Terminal, int]:
        """Terminals that break it as U, with the least number of characters after which another one may have ended."""
        regexes = {one: literal(one) if isinstance(one, str) else one for one in terminals_of(productions)}
        begins = {one: first(regex) for one, regex in regexes.items()}
        atoms = partition(begins.values())
        bits = {
            one: sum(1 << place for place, atom in enumerate(atoms) if atom & charset)
            for one, charset in begins.items()
        }
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
    """As `_goes_on`, where at least one of the two is a single text."""
    if shorter.text is not None and longer.text is not None:
        length = len(shorter.text)
        goes_on = len(longer.text) > length and longer.text.startswith(shorter.text) and longer.text[length] in after
        return length if goes_on else None
    if shorter.text is not None:
        for char in shorter.text:
            longer = longer.derive(char)
        return len(shorter.text) if first(longer) & after else None
    assert longer.text is not None
    for length, char in enumerate(longer.text):
        if length and shorter.nullable and char in after:
            return length
        shorter = shorter.derive(char)
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
                    pair = left.derive(char), right.derive(char)
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
