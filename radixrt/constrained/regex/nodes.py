"""The kinds of regular languages: a syntax tree over code points, immutable and interned.

Trees of the same shape are the same object (`interning`), so `==` is `is`, and results are computed once for each
shape. Nodes are made by the constructors of `algebra`, which simplify; the classes here only hold the parts and the
facts that follow from them.
"""

from __future__ import annotations

from functools import reduce
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple, cast

from radixrt.constrained.regex.charset import DIGITS, EVERY, NONE, CharSet, partition

MAX_DEPTH: Final = 300
"""A tree is walked by functions that call themselves; derivatives of a tree are up to about twice as deep as it is."""


class RegexTooComplex(Exception):
    """A question about a language would take more steps than it is worth; nothing is known about the answer."""


_serials = count()


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
        dead: whether the language is empty, where `search` found out by visiting states; else None.
        ending: a shortest string, where `search` found one; else None.
        first: `first_sets` of the node, where they are known; else None.
    """

    __slots__ = (
        "__weakref__",
        "_alphabet",
        "_classes",
        "dead",
        "depth",
        "ending",
        "first",
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
        self.first: frozenset[CharSet] | None = None
        self.dead: bool | None = None
        self.ending: str | None = None

    def classes(self) -> list[CharSet]:
        """A partition of the code points, such that any two characters of one class have the same derivative."""
        if self._classes is None:
            self._classes = partition(first_sets(self))
        return self._classes

    def alphabet(self) -> CharSet:
        """Return the code points that occur in the strings of the language; possibly more if has_boolean."""
        if self._alphabet is None:
            for part in subterms(self):
                if part._alphabet is None:
                    part._alphabet = part._find_alphabet()
            assert self._alphabet is not None
        return self._alphabet

    def _find_alphabet(self) -> CharSet:
        """The alphabet of a node whose parts have theirs already."""
        return reduce(CharSet.union, [part.alphabet() for part in self.parts()], NONE)

    def parts(self) -> tuple[Regex, ...]:
        """Return the direct subexpressions, in order."""
        return ()


class Empty(Regex):
    """No string at all. There is one: `EMPTY`."""

    __slots__ = ()


EMPTY: Final[Regex] = Empty(False, False, 0, 0)


class Epsilon(Regex):
    """The empty string alone. There is one: `EPSILON`."""

    __slots__ = ()


EPSILON: Final[Regex] = Epsilon(True, False, 0, 0)
EPSILON.text = ""


class Chars(Regex):
    """A single character of a set; the set is not empty."""

    __slots__ = ("charset",)

    def __init__(self, charset: CharSet) -> None:
        super().__init__(False, False, 1, 1)
        self.charset = charset
        if len(charset.edges) == 2 and charset.edges[1] - charset.edges[0] == 1:
            self.text = chr(charset.edges[0])

    def _find_alphabet(self) -> CharSet:
        return self.charset


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
        """The rests of the words by their first character."""
        if self._suffixes is None:
            found: dict[str, list[str]] = {}
            for word in self.words:
                found.setdefault(word[0], []).append(word[1:])
            self._suffixes = found
        return self._suffixes

    def _find_alphabet(self) -> CharSet:
        return CharSet.of(set().union(*self.words))


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
            True in [option.nullable for option in options],
            True in [option.has_boolean for option in options],
            min([option.min_length for option in options]),
            None if None in longest else max(cast("list[int]", longest)),
            max([option.depth for option in options]) + 1,
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
        nullable, shortest, depth = True, 0, 0
        longest: int | None = None
        for item in items:
            nullable = nullable and item.nullable
            if item.min_length > shortest:
                shortest = item.min_length
            if item.depth > depth:
                depth = item.depth
            most = item.max_length
            if most is not None and (longest is None or most < longest):
                longest = most
        super().__init__(nullable, True, shortest, longest, depth + 1)
        self.items = items

    def parts(self) -> tuple[Regex, ...]:
        return self.items

    def _find_alphabet(self) -> CharSet:
        return reduce(CharSet.intersection, [item.alphabet() for item in self.items])


class Complement(Regex):
    """The strings that are not in item."""

    __slots__ = ("item",)

    def __init__(self, item: Regex) -> None:
        super().__init__(not item.nullable, True, int(item.nullable), None, item.depth + 1)
        self.item = item

    def parts(self) -> tuple[Regex, ...]:
        return (self.item,)

    def _find_alphabet(self) -> CharSet:
        return EVERY


class DigitsLeft(NamedTuple):
    """The digits that may follow the first digits of an integer between two bounds.

    Attributes:
        least, most: the number of further digits; `most` None is no bound.
        low: where exactly `least` digits follow, the smallest of them; "" if any may.
        high: where exactly `most` digits follow, the largest of them; "" if any may.
    """

    least: int = 0
    most: int | None = None
    low: str = ""
    high: str = ""

    def after(self, digit: str) -> DigitsLeft | None:
        """Return the digits that may follow one more digit; None if the digit may not follow."""
        least, most, low, high = self
        if not low:
            least = max(least - 1, 0)
        elif digit < low[0]:  # only longer integers are large enough
            low = ""
        else:
            least, low = least - 1, low[1:].rstrip("0") and low[1:] if digit == low[0] else ""
        if most is not None:
            if not high:
                most -= 1
            elif digit > high[0]:  # only shorter integers are small enough
                most, high = most - 2, ""
            else:
                most, high = most - 1, high[1:].rstrip("9") and high[1:] if digit == high[0] else ""
            if most < least:
                return None
        return DigitsLeft(least, most, low, high)

    def completion(self, divisor: int, carry: int, excluded: tuple[int, ...] = ()) -> str | None:
        """Return the first of the shortest digits that make an integer a multiple; None if no digits do.

        Args:
            carry: the integer so far modulo the divisor, and modulo each number of `excluded`.
            excluded: numbers of which the integer may not be a multiple. None of them divides the divisor.
        """
        length = self.least
        while self.most is None or length <= self.most:
            span: int = 10**length
            first = int(self.low or 0) if length == self.least else 0
            last = int(self.high) if self.high and length == self.most else span - 1
            found = first + (-carry * span - first) % divisor
            while found <= last and any((carry * span + found) % one == 0 for one in excluded):
                found += divisor
            if found <= last:
                return f"{found:0{length}d}" if length else ""
            length += 1
        return None


ANY_DIGITS_LEFT: Final = DigitsLeft()


class Remainder(Regex):
    """The rest of a plain decimal number that makes it a multiple of divisor / 10**scale. Never empty.

    The digits so far, read as one integer, are `carry` modulo the divisor. Before the point come digits, then perhaps
    a point and fraction digits. `scale` is how many fraction digits are still counted; further ones must be 0. With
    scale None no point may come, `left` says which digits may follow, and the number is a multiple of none of
    `excluded`. Behind the point (`point`) at least one digit must follow while `pending` is set.
    """

    __slots__ = ("carry", "divisor", "excluded", "left", "pending", "point", "scale")

    def __init__(
        self,
        divisor: int,
        carry: int,
        scale: int | None,
        point: bool,
        pending: bool,
        min_length: int,
        left: DigitsLeft = ANY_DIGITS_LEFT,
        excluded: tuple[int, ...] = (),
    ) -> None:
        super().__init__(min_length == 0, True, min_length, left.most)
        self.divisor = divisor
        self.carry = carry
        self.scale = scale
        self.point = point
        self.pending = pending
        self.left = left
        self.excluded = excluded
        self.dead = False
        if scale is None and not point:
            self.ending = left.completion(divisor, carry, excluded)

    def _find_alphabet(self) -> CharSet:
        return DIGITS if self.scale is None and not self.point else DIGITS | CharSet.of(".")


def subterms(*roots: Regex) -> list[Regex]:
    """The nodes and everything that they are built from, parts before wholes."""
    found, pending = set(roots), list(roots)
    while pending:
        new = set(pending.pop().parts()) - found
        found |= new
        pending += new
    return sorted(found, key=_SERIAL)


_SERIAL: Final = attrgetter("serial")


def needed(node: Regex) -> tuple[Regex, ...]:
    """The parts whose derivatives the derivative of the node is made of."""
    if not isinstance(node, Concat):
        return node.parts()
    return (node.head, node.tail) if node.head.nullable else (node.head,)


def first_sets(node: Regex) -> frozenset[CharSet]:
    """Return sets of characters such that two characters in the same sets give the same derivative."""
    pending = [node]
    while pending and node.first is None:  # innermost first, so that nothing calls itself deeply
        whole = pending[-1]
        below = [part.first for part in needed(whole) if part.first is not None]
        if len(below) < len(needed(whole)):
            pending += [part for part in needed(whole) if part.first is None]
        else:
            pending.pop()
            whole.first = _own_sets(whole).union(*below)
    assert node.first is not None
    return node.first


def _own_sets(node: Regex) -> frozenset[CharSet]:
    if isinstance(node, Chars):
        return frozenset((node.charset,))
    chars = node.suffixes() if isinstance(node, Words) else "0123456789." if isinstance(node, Remainder) else ""
    return frozenset([CharSet.single(char) for char in chars])
