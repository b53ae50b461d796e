"""Writing an expression in the syntax of Rust's `regex` crate, as llguidance reads it between slashes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.base import EMPTY, Regex, RegexTooComplex
from radixrt.constrained.regex.charset import EVERY, CharSet
from radixrt.constrained.regex.nodes import (
    EPSILON,
    Alternate,
    Chars,
    Complement,
    Concat,
    Intersect,
    Remainder,
    Repeat,
    Words,
)

MAX_COUNT: Final = 2**32 - 1
MAX_TEXT: Final = 4_000_000
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _\"',:;=@%!")
_NOTHING: Final = r"[^\x00-\x{10FFFF}]"
_ATOM, _SEQUENCE, _CHOICE = 0, 1, 2


@lru_cache(maxsize=1024)
def to_rust(node: Regex) -> str:
    """The expression for `/.../`: no slash, no line break, no abbreviated class and no flag is in it.

    Raises:
        ValueError: the expression has an intersection, complement or remainder.
        RegexTooComplex: a repetition is beyond what the syntax can count, or the text is over MAX_TEXT characters long.
    """
    if node.has_boolean:
        raise ValueError("an intersection, complement or remainder cannot be written as one regular expression")
    return describe(node)


def describe(node: Regex) -> str:
    """As `to_rust`, with `&`, `~` and the name of a remainder where there are any."""
    texts: dict[Regex, tuple[str, int]] = {}
    for part in sorted(_written(node), key=lambda part: part.serial):
        length = sum(len(texts[inner][0]) for inner in _inside(part))
        if length > MAX_TEXT:
            raise RegexTooComplex(f"an expression is more than {MAX_TEXT} characters long when it is written out")
        texts[part] = _write(part, texts)
    return texts[node][0]


def _written(node: Regex) -> set[Regex]:
    """The node and what is written as a part of it; not the tails of a sequence, which is written as a whole."""
    found = {node}
    pending = [node]
    while pending:
        whole = pending.pop()
        for part in _inside(whole):
            if part not in found:
                found.add(part)
                pending.append(part)
    return found


def _inside(node: Regex) -> Sequence[Regex]:
    return node.chain() if isinstance(node, Concat) else node.parts()


def _write(node: Regex, texts: dict[Regex, tuple[str, int]]) -> tuple[str, int]:
    """The text of a node whose parts are written already, and how strongly it holds together."""
    if isinstance(node, Chars):
        return _class(node.charset), _ATOM
    if isinstance(node, Words):
        if node.text is not None:
            return _escape(node.text), _SEQUENCE
        return "|".join(map(_escape, node.words)), _CHOICE
    if isinstance(node, Concat):
        return "".join(_grouped(texts[part], _SEQUENCE) for part in node.chain()), _SEQUENCE
    if isinstance(node, Alternate):
        return "|".join(texts[option][0] for option in node.options), _CHOICE
    if isinstance(node, Repeat):
        return _grouped(texts[node.item], _ATOM) + _counts(node.low, node.high), _SEQUENCE
    if isinstance(node, Intersect):
        return "(?:" + "&".join(_grouped(texts[item], _SEQUENCE) for item in node.items) + ")", _ATOM
    if isinstance(node, Complement):
        return "~" + _grouped(texts[node.item], _ATOM), _ATOM
    if isinstance(node, Remainder):
        return f"<{node.carry}..%{node.divisor}>", _ATOM
    return (_NOTHING, _ATOM) if node is EMPTY else ("(?:)" if node is EPSILON else "", _ATOM)


def _grouped(written: tuple[str, int], needed: int) -> str:
    text, strength = written
    return f"(?:{text})" if strength > needed else text


def _counts(low: int, high: int | None) -> str:
    if max(low, high or 0) > MAX_COUNT:
        raise RegexTooComplex("an expression repeats something more than four billion times")
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    if low == high:
        return f"{{{low}}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _escape(text: str) -> str:
    return "".join([char if char in _PLAIN else _code(ord(char)) for char in text])


def _code(point: int) -> str:
    return f"\\x{point:02X}" if point < 128 else f"\\x{{{point:X}}}"


@lru_cache(maxsize=4096)
def _class(charset: CharSet) -> str:
    pairs = charset.pairs()
    if len(pairs) == 1 and pairs[0][0] == pairs[0][1]:
        return _escape(chr(pairs[0][0]))
    outside = (EVERY - charset).pairs()
    if outside and len(outside) < len(pairs):
        return "[^" + "".join(_range(first, last) for first, last in outside) + "]"
    return "[" + "".join(_range(first, last) for first, last in pairs) + "]"


def _range(first: int, last: int) -> str:
    left, right = _class_char(first), _class_char(last)
    return left if first == last else left + right if last == first + 1 else f"{left}-{right}"


def _class_char(point: int) -> str:
    char = chr(point)
    return char if char.isascii() and char.isalnum() else _code(point)
