"""The kinds of regular languages: a syntax tree over code points, immutable and interned.

Two trees of the same shape are one object, so `==` is `is`, and what was computed for one is there for the other.
Nodes are made by the constructors of `algebra`, which simplify; the classes here only hold the parts and the facts that
follow from them. Nodes that nothing uses any more are forgotten.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import Any, Final, cast

from radixrt.constrained.regex.base import EMPTY as EMPTY
from radixrt.constrained.regex.base import Regex
from radixrt.constrained.regex.charset import EVERY, CharSet


class Epsilon(Regex):
    """The empty string alone. There is one: `EPSILON`."""

    __slots__ = ()


class Chars(Regex):
    """One character out of a set that is not empty."""

    __slots__ = ("charset",)

    def __init__(self, charset: CharSet) -> None:
        super().__init__(False, False, 1, 1)
        self.charset = charset
        if len(charset.edges) == 2 and charset.edges[1] - charset.edges[0] == 1:
            self.text = chr(charset.edges[0])


class Words(Regex):
    """A finite set of strings of two or more characters each, sorted."""

    __slots__ = ("_suffixes", "words")

    def __init__(self, words: tuple[str, ...]) -> None:
        lengths = [len(word) for word in words]
        super().__init__(False, False, min(lengths), max(lengths))
        self.words = words
        self._suffixes: dict[str, list[str]] | None = None
        if len(words) == 1:
            self.text = words[0]

    def suffixes(self) -> dict[str, list[str]]:
        """What follows each first character."""
        if self._suffixes is None:
            found: dict[str, list[str]] = {}
            for word in self.words:
                found.setdefault(word[0], []).append(word[1:])
            self._suffixes = found
        return self._suffixes


class Concat(Regex):
    """Head, then tail. The head is never a Concat itself, so that a sequence is a chain of tails."""

    __slots__ = ("head", "tail")

    def __init__(self, head: Regex, tail: Regex) -> None:
        longest = None if head.max_length is None or tail.max_length is None else head.max_length + tail.max_length
        super().__init__(
            head.nullable and tail.nullable,
            head.has_boolean or tail.has_boolean,
            head.min_length + tail.min_length,
            longest,
            max(head.depth + 1, tail.depth),
        )
        self.head = head
        self.tail = tail

    def parts(self) -> tuple[Regex, ...]:
        return (self.head, self.tail)

    def chain(self) -> list[Regex]:
        """The parts of the whole sequence."""
        found = [self.head]
        tail = self.tail
        while isinstance(tail, Concat):
            found.append(tail.head)
            tail = tail.tail
        found.append(tail)
        return found


class Alternate(Regex):
    """Any of two or more options, in the order of their serials."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Regex, ...]) -> None:
        longest = [option.max_length for option in options]
        super().__init__(
            any(option.nullable for option in options),
            any(option.has_boolean for option in options),
            min(option.min_length for option in options),
            None if None in longest else max(cast("list[int]", longest)),
            max(option.depth for option in options) + 1,
        )
        self.options = options

    def parts(self) -> tuple[Regex, ...]:
        return self.options


class Repeat(Regex):
    """Item from low to high times; high is None where there is no upper bound. Where item is nullable, low is 0."""

    __slots__ = ("high", "item", "low")

    def __init__(self, item: Regex, low: int, high: int | None) -> None:
        longest = None if high is None or item.max_length is None else item.max_length * high
        super().__init__(low == 0, item.has_boolean, item.min_length * low, longest, item.depth + 1)
        self.item = item
        self.low = low
        self.high = high

    def parts(self) -> tuple[Regex, ...]:
        return (self.item,)


class Intersect(Regex):
    """The strings that are in all of two or more languages, in the order of their serials."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Regex, ...]) -> None:
        longest = [item.max_length for item in items if item.max_length is not None]
        super().__init__(
            all(item.nullable for item in items),
            True,
            max(item.min_length for item in items),
            min(longest) if longest else None,
            max(item.depth for item in items) + 1,
        )
        self.items = items

    def parts(self) -> tuple[Regex, ...]:
        return self.items


class Complement(Regex):
    """The strings that are not in item."""

    __slots__ = ("item",)

    def __init__(self, item: Regex) -> None:
        super().__init__(not item.nullable, True, int(item.nullable), None, item.depth + 1)
        self.item = item

    def parts(self) -> tuple[Regex, ...]:
        return (self.item,)


class Remainder(Regex):
    """What may follow in a plain decimal number so that it becomes a multiple of divisor / 10**scale.

    The digits so far, read as one integer, are `carry` modulo the divisor. Before the point come digits, then perhaps
    a point and fraction digits. `scale` is how many fraction digits are still counted; further ones must be 0. With
    scale None no point may come. Behind the point (`point`) at least one digit must follow while `pending` is set.
    """

    __slots__ = ("carry", "divisor", "pending", "point", "scale")

    def __init__(
        self, divisor: int, carry: int, scale: int | None, point: bool, pending: bool, min_length: int
    ) -> None:
        super().__init__(min_length == 0, True, min_length, None)
        self.divisor = divisor
        self.carry = carry
        self.scale = scale
        self.point = point
        self.pending = pending


class _Ref(weakref.ref[Regex]):
    """A weak reference that knows the key under which it is filed."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_nodes: dict[tuple[Any, ...], _Ref] = {}
_lock = Lock()


def _forget(ref: weakref.ref[Regex]) -> None:
    key = cast(_Ref, ref).key
    if _nodes.get(key) is ref:
        del _nodes[key]


def _intern(key: tuple[Any, ...], make: type[Regex], *fields: Any) -> Regex:
    """The one node of that key; two threads that make it at once get the same."""
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


def remainder_node(divisor: int, carry: int, scale: int | None, point: bool, pending: bool, min_length: int) -> Regex:
    fields = (divisor, carry, scale, point, pending, min_length)
    return _intern((5, *fields), Remainder, *fields)


def subterms(node: Regex) -> list[Regex]:
    """The node and everything that it is built from, parts before wholes."""
    found = {node}
    pending = [node]
    while pending:
        for part in pending.pop().parts():
            if part not in found:
                found.add(part)
                pending.append(part)
    return sorted(found, key=lambda part: part.serial)


EPSILON: Final[Regex] = Epsilon(True, False, 0, 0)
EPSILON.text = ""
ANY_CHAR: Final[Regex] = chars_node(EVERY)
ANY: Final[Regex] = repeat_node(ANY_CHAR, 0, None)
