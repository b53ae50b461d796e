"""Constructors that intern the nodes of regular languages, so that there is a single node of each shape.

They take their parts as they are; `algebra` simplifies first. Nodes without references are dropped.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import Any, Final, cast

from radixrt.constrained.regex.charset import EVERY, CharSet
from radixrt.constrained.regex.nodes import (
    ANY_DIGITS_LEFT,
    Alternate,
    Chars,
    Complement,
    Concat,
    DigitsLeft,
    Intersect,
    Regex,
    Remainder,
    Repeat,
    Words,
)


class _Ref(weakref.ref[Regex]):
    """A weak reference to a node, with the node's key in the table."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_nodes: dict[tuple[Any, ...], _Ref] = {}
_lock = Lock()


def _forget(ref: weakref.ref[Regex]) -> None:
    key = cast(_Ref, ref).key
    if _nodes.get(key) is ref:
        del _nodes[key]


def _intern(key: tuple[Any, ...], make: type[Regex], *fields: Any) -> Regex:
    """Return the node of a key, created on the first call. Threads that race to create a node get the same node."""
    ref = _nodes.get(key)
    node = ref() if ref is not None else None
    if node is None:
        with _lock:
            ref = _nodes.get(key)
            node = ref() if ref is not None else None
            if node is None:
                node = make(*fields)
                made = _Ref(node, _forget)
                made.key = key
                _nodes[key] = made
    return node


def chars_node(charset: CharSet) -> Regex:
    return _intern((charset,), Chars, charset)


def words_node(words: tuple[str, ...]) -> Regex:
    """The words sorted, distinct, each of two or more characters."""
    return _intern(words, Words, words)


def concat_node(head: Regex, tail: Regex) -> Regex:
    return _intern((0, head.serial, tail.serial), Concat, head, tail)


def alternate_node(options: tuple[Regex, ...]) -> Regex:
    """The options distinct, in the order of their serials."""
    return _intern((1, *[option.serial for option in options]), Alternate, options)


def repeat_node(item: Regex, low: int, high: int | None) -> Regex:
    return _intern((2, item.serial, low, high), Repeat, item, low, high)


def intersect_node(items: tuple[Regex, ...]) -> Regex:
    """The items distinct, in the order of their serials."""
    return _intern((3, *[item.serial for item in items]), Intersect, items)


def complement_node(item: Regex) -> Regex:
    return _intern((4, item.serial), Complement, item)


def remainder_node(
    divisor: int,
    carry: int,
    scale: int | None,
    point: bool,
    pending: bool,
    min_length: int,
    left: DigitsLeft = ANY_DIGITS_LEFT,
    excluded: tuple[int, ...] = (),
) -> Regex:
    fields = (divisor, carry, scale, point, pending, min_length, left, excluded)
    return _intern((5, *fields), Remainder, *fields)


ANY_CHAR: Final[Regex] = chars_node(EVERY)
ANY: Final[Regex] = repeat_node(ANY_CHAR, 0, None)
