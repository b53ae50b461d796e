"""The characters of `\\w`, `.`, `\\p{...}` and the like, as ECMA-262, Python's re and Rust's regex read them.

A pattern is written by one program and checked by others: a pydantic type by Rust's regex or Python's re, a schema in
JavaScript by ECMA-262. Where they differ, `NARROW` takes the characters on which all of them agree, so that every text
passes every check, and `WIDE` the characters that any of them takes, for what must not match. `\\p{Lu}` differs too,
by the version of Unicode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, reduce
from typing import Final, Literal

from radixrt.constrained.regex.charset import DIGITS, DOT, EVERY, NONE, SPACE, WORD, CharSet, ignoring_case
from radixrt.constrained.regex.properties import binary, category, recent, unicode_property

Mode = Literal["ecma", "narrow", "wide"]
Sets = tuple[CharSet, ...]
"""A set for each reader: ECMA-262, Python's re, Rust's regex, a reader with an older table of Unicode and one with a
newer; or for ECMA-262 alone."""

_I: Final = CharSet.of("iI\u0130\u0131")
"""Letters that Python's IGNORECASE takes for one another; the simple case folding of Unicode does not."""


def same(charset: CharSet, mode: Mode) -> Sets:
    """Return the sets of characters that all readers understand alike."""
    return (charset,) if mode == "ecma" else (charset,) * 5


def joined(sets: list[Sets], mode: Mode) -> Sets:
    """Return the union, reader by reader."""
    return tuple(reduce(CharSet.union, column) for column in zip(*sets)) if sets else same(NONE, mode)


def inverted(sets: Sets) -> Sets:
    """Return the characters outside of the sets, reader by reader."""
    return tuple(EVERY - charset for charset in sets)


def without_case(sets: Sets) -> Sets:
    """Return the sets as each reader reads them with the flag i."""
    folded = [ignoring_case(charset) for charset in sets]
    if len(sets) > 1 and sets[1] & _I:
        folded[1] = folded[1] | ignoring_case(_I)
    return tuple(folded)


@lru_cache(maxsize=1024)
def taken(sets: Sets, mode: Mode) -> CharSet:
    """Return the characters that all readers take, or with "wide" the characters that any of them takes."""
    return reduce(CharSet.union if mode == "wide" else CharSet.intersection, sets)


@cache
def dot(mode: Mode) -> Sets:
    """Return the sets of `.`: ECMA-262 has four line terminators, the others one."""
    if mode == "ecma":
        return (DOT,)
    return (DOT, EVERY - CharSet.of("\n"), EVERY - CharSet.of("\n"), DOT, DOT)


@cache
def backslash(char: str, mode: Mode) -> Sets | None:
    """Return the sets of `\\d`, `\\s`, `\\w` and their inverses; None for another character."""
    small = char.lower()
    if small not in _CLASSES or not small:
        return None
    found = (_ECMA[small],) if mode == "ecma" else _CLASSES[small]()
    return found if char == small else inverted(found)


_NARROW: Final = {"d": DIGITS, "s": SPACE - CharSet.of("\ufeff"), "w": WORD}


def agreed(char: str) -> CharSet | None:
    """Return the characters of `\\d`, `\\s` or `\\w` on which all readers agree, which needs no tables.

    A class of such sets and of characters has the characters of all of them: ECMA-262 has the smallest sets of digits
    and of words, and no reader takes its other spaces for one of these.
    """
    return _NARROW.get(char)


def prop(expression: str, mode: Mode) -> Sets | None:
    """Return the sets of `\\p{expression}`; None if there is no such property."""
    found = unicode_property(expression)
    if found is None:
        return None
    if mode == "ecma" or expression in _FIXED:
        return same(found, mode)
    return (found, found, found, found - recent(), found | recent())


_FIXED: Final = frozenset(("Any", "ASCII", "ASCII_Hex_Digit", "AHex", "Hex_Digit", "Hex", "White_Space", "space"))
_ECMA: Final = {"d": DIGITS, "s": SPACE, "w": WORD}


def _digits() -> Sets:
    decimal = category("Nd")
    return (DIGITS, decimal, decimal, DIGITS, decimal | recent())


def _spaces() -> Sets:
    white = (SPACE - CharSet.of("\ufeff")) | CharSet.of("\x85")
    return (SPACE, white | CharSet.span(0x1C, 0x1F), white, white, white)


def _words() -> Sets:
    return (WORD, binary("PythonWord"), binary("RustWord"), WORD, binary("AnyWord"))


_CLASSES: Final[dict[str, Callable[[], Sets]]] = {"d": _digits, "s": _spaces, "w": _words}
