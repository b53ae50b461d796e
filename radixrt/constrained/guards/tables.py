"""`TokenTables`: the tokens of a vocabulary by their bytes, as guards look for them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from radixrt.constrained.guards.json_position import (
    DELIMITERS,
    IN_KEY,
    IN_STRING,
    KEY_ESCAPE,
    OUTSIDE,
    SCALAR,
    SPACE,
    STRING_ESCAPE,
)
from radixrt.constrained.regex.charset import EVERY, CharSet
from radixrt.constrained.vocabulary import TokenSet, Vocabulary

_SEPARATOR: Final = re.compile(rb"[\[{,]")
_OPENS_UNIT: Final = re.compile(rb'[{,][ \t\n\r]*".', re.DOTALL)
"""A unit begins behind the first byte, and more of it follows than the quote."""
_OPENS_ITEM: Final = re.compile(rb'[{,][ \t\n\r]*".|[\[,][ \t\n\r]*(?:".|[^" \t\n\r\]])', re.DOTALL)
"""A key or an item begins behind the first byte. Of a string more follows than the quote."""
_TWO_UNITS: Final = re.compile(rb"[\[{].+,.", re.DOTALL)
"""JSON begins, and a second unit begins in it."""
_ENDS_BEFORE_UNIT: Final = re.compile(rb"[\[{].+,", re.DOTALL)
"""JSON begins, and a unit follows another one or could."""
_ENDS_ITEM: Final = re.compile(rb"[] \t\n\r]")
_LEAVES_STRING: Final = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)


class TokenTables:
    """Tokens of one vocabulary.

    Attributes:
        inert: for some modes of a `Position`, tokens that leave the mode and the scope as they are, if they may come.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        table = vocabulary.table
        self._tokens = sorted([token for token, data in enumerate(table) if data], key=table.__getitem__)
        self._bytes = [table[token] for token in self._tokens]
        self._opening = self._find_opening(_OPENS_UNIT)
        in_string = vocabulary.tokens_of(EVERY - CharSet.of('"\\'))
        scalar = vocabulary.tokens_of(CharSet.of("+-.0123456789Eaeflnrstu"))
        outside = vocabulary.tokens_of(EVERY - CharSet.of("[{"))
        self.inert: dict[int, TokenSet] = {IN_KEY: in_string, IN_STRING: in_string, SCALAR: scalar, OUTSIDE: outside}

    def along(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield the tokens that a text begins with, and the tokens that begin with the text, each with the number of
        bytes that it has in common with the text."""
        known = self._bytes
        size = len(text)
        for end in range(1, size):
            # Tokens that begin with the text's beginning are neighbours, and the one that is equal is the first.
            at = bisect_left(known, text[:end])
            if at == len(known) or not known[at].startswith(text[:end]):
                return
            while at < len(known) and len(known[at]) == end and known[at] == text[:end]:
                yield self._tokens[at], end
                at += 1
        at = bisect_left(known, text)
        while at < len(known) and known[at].startswith(text):
            yield self._tokens[at], size
            at += 1

    @cached_property
    def delimiters(self) -> npt.NDArray[np.int64]:
        """The tokens that begin with the end of a number, true, false or null."""
        return self._ids(lambda data: data[0] in DELIMITERS)

    @cached_property
    def spaces(self) -> npt.NDArray[np.int64]:
        """The tokens that begin with whitespace between JSON tokens."""
        return self._ids(lambda data: data[0] in SPACE)

    def ending(self, mode: int) -> tuple[str, npt.NDArray[np.int64]]:
        """Return the tokens in which the last item of an array may end, for a mode of a `Position`, and a name of this
        set. Behind an item comes the end of the array, or whitespace before this end."""
        in_string = mode in (IN_KEY, IN_STRING, KEY_ESCAPE, STRING_ESCAPE)
        return f"ending {in_string}", self._ending_in_string if in_string else self._ending

    @cached_property
    def _ending(self) -> npt.NDArray[np.int64]:
        return self._ids(lambda data: _ENDS_ITEM.search(data) is not None)

    @cached_property
    def _ending_in_string(self) -> npt.NDArray[np.int64]:
        return self._ids(lambda data: b'"' in data and _ENDS_ITEM.search(data, data.index(b'"')) is not None)

    def _ids(self, is_one: Callable[[bytes], bool]) -> npt.NDArray[np.int64]:
        found = [token for token, data in zip(self._tokens, self._bytes, strict=True) if is_one(data)]
        return np.array(sorted(found), np.int64)

    def opening(self, mode: int, *, barely: bool, arrays: bool) -> tuple[str, npt.NDArray[np.int64]]:
        """Return the tokens inside of which a unit begins, for a mode of a `Position`, and a name of this set.

        Args:
            barely: also tokens that end right before a unit.
            arrays: items are units too.
        """
        if mode == OUTSIDE:
            return f"outside {barely}", self._later_units if barely else self._two_units
        in_string = mode in (IN_KEY, IN_STRING)
        found = self._opening_items if arrays and not barely else self._opening
        return f"opening {in_string} {barely}", found[in_string, barely]

    @cached_property
    def _opening_items(self) -> dict[tuple[bool, bool], npt.NDArray[np.int64]]:
        return self._find_opening(_OPENS_ITEM)

    @cached_property
    def _two_units(self) -> npt.NDArray[np.int64]:
        return self._ids(lambda data: _TWO_UNITS.search(data) is not None)

    @cached_property
    def _later_units(self) -> npt.NDArray[np.int64]:
        return self._ids(lambda data: _ENDS_BEFORE_UNIT.search(data) is not None)

    def _find_opening(self, opens: re.Pattern[bytes]) -> dict[tuple[bool, bool], npt.NDArray[np.int64]]:
        """Return tokens by whether they begin inside a string, and whether they may end right before a unit."""
        found: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
        separators = [at for at, data in enumerate(self._bytes) if _SEPARATOR.search(data)]
        for at in separators:
            data, token = self._bytes[at], self._tokens[at]
            left = _LEAVES_STRING.match(data)
            for in_string, begin in ((False, 0), (True, left.end() if left is not None else len(data))):
                for barely, pattern in ((True, _SEPARATOR), (False, opens)):
                    if pattern.search(data, begin):
                        found[in_string, barely].append(token)
        return {key: np.array(sorted(tokens), np.int64) for key, tokens in found.items()}


@lru_cache(maxsize=16)
def tables_of(vocabulary: Vocabulary) -> TokenTables:
    """Return the tables of a vocabulary, created by the first call."""
    return TokenTables(vocabulary)
