"""`TokenTables`: the tokens of a vocabulary by their bytes, as guards look for them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from radixrt.constrained.guards.json_position import IN_KEY, IN_STRING, SCALAR
from radixrt.constrained.regex.charset import EVERY, CharSet
from radixrt.constrained.vocabulary import TokenSet, Vocabulary

_SEPARATOR: Final = re.compile(rb"[\[{,]")
_OPENS_UNIT: Final = re.compile(rb'[{,][ \t\n\r]*".', re.DOTALL)
"""A unit begins behind the first byte, and more of it follows than the quote."""
_LEAVES_STRING: Final = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)


class TokenTables:
    """Tokens of one vocabulary.

    Attributes:
        longest: number of bytes of the longest token.
        inert: for some modes of a `Position`, tokens that leave the mode and the scope as they are, if they may come.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        table = vocabulary.table
        self._tokens = sorted([token for token, data in enumerate(table) if data], key=table.__getitem__)
        self._bytes = [table[token] for token in self._tokens]
        self.longest = max(map(len, self._bytes), default=0)
        self._opening = self._find_opening()
        in_string = vocabulary.tokens_of(EVERY - CharSet.of('"\\'))
        scalar = vocabulary.tokens_of(CharSet.of("+-.0123456789Eaeflnrstu"))
        self.inert: dict[int, TokenSet] = {IN_KEY: in_string, IN_STRING: in_string, SCALAR: scalar}

    def along(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that a text begins with, and the tokens that begin with the text."""
        size = len(text)
        for end in range(1, min(size - 1, self.longest) + 1):
            yield from self._starting(text[:end], exact=True)
        yield from self.beginning(text)

    def beginning(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that begin with a text."""
        if len(text) <= self.longest:
            yield from self._starting(text, exact=False)

    def _starting(self, text: bytes, *, exact: bool) -> Iterator[int]:
        known = self._bytes
        at = bisect_left(known, text)
        while at < len(known) and (known[at] == text if exact else known[at].startswith(text)):
            yield self._tokens[at]
            at += 1

    def opening(self, mode: int, *, barely: bool) -> npt.NDArray[np.int64]:
        """Return the tokens inside of which a unit begins, for a mode of a `Position`.

        Args:
            barely: also tokens that end right before a unit.
        """
        return self._opening[mode in (IN_KEY, IN_STRING), barely]

    def _find_opening(self) -> dict[tuple[bool, bool], npt.NDArray[np.int64]]:
        """Return tokens by whether they begin inside a string, and whether they may end right before a unit."""
        found: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
        separators = [at for at, data in enumerate(self._bytes) if _SEPARATOR.search(data)]
        for at in separators:
            data, token = self._bytes[at], self._tokens[at]
            left = _LEAVES_STRING.match(data)
            for in_string, begin in ((False, 0), (True, left.end() if left is not None else len(data))):
                for barely, pattern in ((True, _SEPARATOR), (False, _OPENS_UNIT)):
                    if pattern.search(data, begin):
                        found[in_string, barely].append(token)
        return {key: np.array(sorted(tokens), np.int64) for key, tokens in found.items()}


@lru_cache(maxsize=16)
def tables_of(vocabulary: Vocabulary) -> TokenTables:
    """Return the tables of a vocabulary, created by the first call."""
    return TokenTables(vocabulary)
