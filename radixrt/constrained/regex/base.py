"""What every regular language can be asked, and the language of no string at all.

The kinds of languages are in `nodes`; the answers are worked out in `derivatives`, `search` and `enumeration`, which
know all kinds and are therefore imported where they are called.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from radixrt.constrained.regex.charset import CharSet

MAX_DEPTH: Final = 300
"""A tree is walked by functions that call themselves; derivatives of a tree are up to about twice as deep as it is."""


class RegexTooComplex(Exception):
    """A question about a language would take more steps than it is worth; nothing is known about the answer."""


_serials = count()
derivatives_found: Final[dict[tuple[Regex, str], Regex]] = {}
"""Derivatives that were computed, oldest first; `derivatives` bounds how many. They keep their nodes alive."""


class Regex:
    """A regular language.

    Attributes:
        nullable: the empty string is in the language.
        has_boolean: an intersection, complement or remainder is somewhere inside.
        min_length: code points of a shortest string; a lower bound where has_boolean. 0 for EMPTY.
        max_length: code points of a longest string, or None if there is no longest; an upper bound where has_boolean.
        text: the only string of the language where it is a literal, else None.
        serial: number of this node in the process; the parts of a node have smaller ones.
        depth: how deep its parts are nested; the length of a sequence does not count.
    """

    __slots__ = (
        "__weakref__",
        "_alphabet",
        "_classes",
        "_dead",
        "_ending",
        "depth",
        "has_boolean",
        "max_length",
        "min_length",
        "nullable",
        "serial",
        "text",
    )

    def __init__(
        self, nullable: bool, has_boolean: bool, min_length: int, max_length: int | None, depth: int = 0
    ) -> None:
        if depth > MAX_DEPTH:
            raise RegexTooComplex(f"an expression is nested more than {MAX_DEPTH} deep")
        self.depth = depth
        self.nullable = nullable
        self.has_boolean = has_boolean
        self.min_length = min_length
        self.max_length = max_length
        self.text: str | None = None
        self.serial = next(_serials)
        self._classes: list[CharSet] | None = None
        self._alphabet: CharSet | None = None
        self._dead: bool | None = None
        self._ending: str | None = None

    def derive(self, char: str) -> Regex:
        """The language of what may follow after char: every s with char + s in this language."""
        found = derivatives_found.get((self, char))
        if found is None:
            from radixrt.constrained.regex.derivatives import derive

            found = derive(self, char)
        return found

    def classes(self) -> list[CharSet]:
        """A partition of the code points, such that any two characters of one class have the same derivative."""
        from radixrt.constrained.regex.derivatives import classes

        return classes(self)

    def matches(self, text: str) -> bool:
        """Whether the whole text is in the language."""
        state = self
        for char in text:
            state = state.derive(char)
            if state is EMPTY:
                return False
        return state.nullable

    def is_empty(self) -> bool:
        """Whether there is no string at all.

        Raises:
            RegexTooComplex: too many states had to be looked at.
        """
        from radixrt.constrained.regex.search import is_empty

        return is_empty(self)

    def shortest(self) -> str | None:
        """A shortest string, or None if the language is empty. As long as `shortest_length`, so ask for that first.

        Raises:
            RegexTooComplex: too many states had to be looked at, or the string is longer than a million characters.
        """
        from radixrt.constrained.regex.search import shortest

        return shortest(self)

    def shortest_length(self) -> int | None:
        """Code points of a shortest string, or None if the language is empty; makes no string.

        Raises:
            RegexTooComplex: too many states had to be looked at.
        """
        from radixrt.constrained.regex.search import shortest_length

        return shortest_length(self)

    def enumerate(self, limit: int) -> list[str] | None:
        """All strings, shortest first and sorted, or None if there are more than limit.

        Raises:
            RegexTooComplex: too many states had to be looked at, or the strings are millions of characters long.
        """
        from radixrt.constrained.regex.enumeration import enumerate_strings

        return enumerate_strings(self, limit)

    def is_disjoint(self, other: Regex) -> bool:
        """Whether no string is in both languages.

        Raises:
            RegexTooComplex: too many states had to be looked at.
        """
        from radixrt.constrained.regex.search import is_disjoint

        return is_disjoint(self, other)

    def is_subset(self, other: Regex) -> bool:
        """Whether every string of this language is in the other.

        Raises:
            RegexTooComplex: too many states had to be looked at.
        """
        from radixrt.constrained.regex.search import is_subset

        return is_subset(self, other)

    def alphabet(self) -> CharSet:
        """The code points that its strings are made of; possibly more where has_boolean."""
        from radixrt.constrained.regex.derivatives import alphabet

        return alphabet(self)

    def parts(self) -> tuple[Regex, ...]:
        """The languages that this one is built from, in order."""
        return ()

    def __repr__(self) -> str:
        from radixrt.constrained.regex.rust import describe

        try:
            return f"Regex({describe(self)})"
        except RegexTooComplex:
            return f"Regex(number {self.serial}, too long to show)"


class Empty(Regex):
    """No string at all. There is one: `EMPTY`."""

    __slots__ = ()


EMPTY: Final[Regex] = Empty(False, False, 0, 0)
