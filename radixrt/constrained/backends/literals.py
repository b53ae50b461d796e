"""Cuts literals where a greedy lexer could read on past the end of another terminal.

Keys of a JSON object are written with the punctuation around them, `,"name":`, because one literal is the least work.
Where `,` alone may be followed by a quote too, a lexer that reads the longest match would take the quote for the
literal's and lose every other key. The literal is then cut behind the comma; see `lexer_law.py` for the law.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from radixrt.constrained.productions import Productions
from radixrt.constrained.productions.follow import Terminal, followers, terminals_of
from radixrt.constrained.regex import EMPTY, Regex
from radixrt.constrained.regex.derivatives import first
from radixrt.constrained.regex.nodes import Complement, Intersect, Words


def cut_literals(productions: Productions) -> dict[str, list[str]]:
    """The pieces of each literal that has to be cut.

    Then no literal goes on where another terminal ends and such a character may follow it.
    """
    terminals = terminals_of(productions)
    texts = [one for one in terminals if isinstance(one, str)]
    bits = {char: 1 << place for place, char in enumerate(dict.fromkeys("".join(texts)))}
    begins = {one: _begins(one, bits) for one in terminals}
    after = followers(productions, begins)
    languages = [(one, begins[one], after[one]) for one in terminals if isinstance(one, Regex) and after[one]]
    pieces = _Pieces({text: after[text] for text in texts}, languages, bits)
    while pieces.cut():
        pass
    return {text: parts for text, parts in pieces.parts.items() if len(parts) > 1}


class _Pieces:
    """Literals being cut; each cut makes pieces, which other literals may have to be cut for.

    Args:
        after: the bits that may follow each literal.
        languages: the other terminals with the bits that they begin with and that may follow them.
        bits: of each character.

    Attributes:
        parts: each literal in its pieces.
    """

    def __init__(self, after: dict[str, int], languages: list[tuple[Regex, int, int]], bits: dict[str, int]) -> None:
        self.parts = {text: [text] for text in after}
        self._after = after
        self._languages = languages
        self._bits = bits
        self._ends: dict[str, set[int]] = {}
        self._beginning: dict[int, dict[int, list[Regex]]] = {}

    def cut(self) -> bool:
        """Cut the pieces as they are now, once; False if there was nothing to cut."""
        follow: dict[str, int] = {}
        for text, parts in self.parts.items():
            bits_after = self._after[text]
            for piece in reversed(parts):
                follow[piece] = follow.get(piece, 0) | bits_after
                bits_after = self._bits[piece[0]]
        split: dict[str, list[str]] = {}
        prefixes: list[str] = []
        for piece in sorted(follow):
            while prefixes and not piece.startswith(prefixes[-1]):
                prefixes.pop()
            places = {len(one) for one in prefixes if follow[one] & self._bits[piece[len(one)]]}
            places |= self._ends_of_languages(piece)
            if places:
                split[piece] = [piece[low:high] for low, high in pairwise([0, *sorted(places), len(piece)])]
            prefixes.append(piece)
        if split:
            for text, parts in self.parts.items():
                self.parts[text] = [small for piece in parts for small in split.get(piece, (piece,))]
        return bool(split)

    def _ends_of_languages(self, piece: str) -> set[int]:
        """Where in the piece another terminal may have ended."""
        found = self._ends.get(piece)
        if found is None:
            found = self._ends[piece] = set()
            languages = self._beginning_with(self._bits[piece[0]])
            if languages:
                places = [(at, self._bits[char]) for at, char in enumerate(piece) if at]
                for follow, regexes in languages.items():
                    missing = [at for at, bit in places if follow & bit and at not in found]
                    for regex in regexes:
                        if not missing:
                            break
                        found.update(_ends_within(regex, piece, missing))
                        missing = [at for at in missing if at not in found]
        return found

    def _beginning_with(self, bit: int) -> dict[int, list[Regex]]:
        """The languages that begin with a character, by the bits that may follow them."""
        languages = self._beginning.get(bit)
        if languages is None:
            languages = self._beginning[bit] = {}
            for regex, begins, follow in self._languages:
                if begins & bit:
                    languages.setdefault(follow, []).append(regex)
        return languages


def _begins(terminal: Terminal, bits: dict[str, int]) -> int:
    if isinstance(terminal, str):
        return bits[terminal[0]]
    begins = first(terminal)
    return sum(bit for char, bit in bits.items() if char in begins)


@lru_cache(maxsize=1024)
def _without_words(regex: Intersect) -> tuple[Regex, frozenset[str]]:
    """A language and listed words that are left out of it; the language itself and none where it is not of that form.

    The names of undeclared members are such languages, and following all of them apart would take long.
    """
    kept = [item for item in regex.items if not isinstance(item, Complement)]
    words: set[str] = set()
    for item in regex.items:
        if isinstance(item, Complement):
            if isinstance(item.item, Words):
                words.update(item.item.words)
            elif item.item.text is not None:
                words.add(item.item.text)
            else:
                return regex, frozenset()
    return (kept[0], frozenset(words)) if len(kept) == 1 else (regex, frozenset())


def _ends_within(regex: Regex, text: str, places: list[int]) -> list[int]:
    """Those of the places, in order, before which a string of the language ends."""
    if isinstance(regex, Intersect):
        whole, listed = _without_words(regex)
        if whole is not regex:
            return [place for place in _ends_within(whole, text, places) if text[:place] not in listed]
    found: list[int] = []
    at = 0
    for place in places:
        while at < place:
            regex = regex.derive(text[at])
            if regex is EMPTY:
                return found
            at += 1
        if regex.nullable:
            found.append(place)
    return found
