"""Brzozowski derivatives: the language that is left after one character, computed on the tree and cached.

Counters are never unrolled, so the cost of a derivative depends on the size of the tree and not on its bounds. `both`
and `without` eliminate intersections and complements where this is cheap enough for a derivative; `boolean` does more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, reduce
from math import gcd, lcm
from operator import attrgetter
from typing import Any, Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literals, prepend, repeat, within_repeat
from radixrt.constrained.regex.charset import DIGITS, EVERY, NONE, CharSet
from radixrt.constrained.regex.interning import (
    ANY,
    ANY_CHAR,
    complement_node,
    intersect_node,
    remainder_node,
    repeat_node,
)
from radixrt.constrained.regex.nodes import (
    ANY_DIGITS_LEFT,
    EMPTY,
    EPSILON,
    Alternate,
    Chars,
    Complement,
    Concat,
    DigitsLeft,
    Intersect,
    Regex,
    RegexTooComplex,
    Remainder,
    Repeat,
    Words,
    first_sets,
    needed,
    subterms,
)

MAX_OPTIONS: Final = 20_000
MAX_KEPT: Final = 100_000
_SHALLOW: Final = 50
_SERIAL: Final = attrgetter("serial")
_ANY_DIGITS: Final = repeat(chars(DIGITS))
known_derivatives: Final[OrderedDict[tuple[Regex, str], Regex]] = OrderedDict()
"""Derivatives that were computed, oldest first, at most MAX_KEPT. They keep their nodes alive."""


def derive(node: Regex, char: str) -> Regex:
    """Return the derivative of a language by a character: every s with char + s in the language of the node.

    Raises:
        RegexTooComplex: the derivative has more than MAX_OPTIONS alternatives.
    """
    key = (node, char)
    found = known_derivatives.get(key)
    if found is not None:
        return found
    if "\ud800" <= char <= "\udfff":
        return EMPTY
    if node.depth > _SHALLOW:
        _derive_parts(node, char)
    found = known_derivatives[key] = _DERIVE[type(node)](node, char)
    while len(known_derivatives) > MAX_KEPT:
        known_derivatives.popitem(last=False)  # soon: thousands at once would take tens of milliseconds
    return found


def matches(node: Regex, text: str) -> bool:
    """Return True if the whole text is in the language."""
    for char in text:
        node = derive(node, char)
        if node is EMPTY:
            return False
    return node.nullable


def _derive_parts(node: Regex, char: str) -> None:
    """Compute the derivatives on which the derivative of a deep node depends, innermost first, so that the recursion
    stays shallow."""
    pending = [node]
    parts: set[Regex] = set()
    while pending:
        whole = pending.pop()
        for part in needed(whole):
            if part not in parts and part.depth > 0 and (part, char) not in known_derivatives:
                parts.add(part)
                pending.append(part)
    for part in sorted(parts, key=lambda part: part.serial):
        known_derivatives[part, char] = _DERIVE[type(part)](part, char)


def _derive_repeat(node: Repeat, char: str) -> Regex:
    first = derive(node.item, char)
    if first is EMPTY:
        return EMPTY
    high = None if node.high is None else node.high - 1
    return prepend(first, repeat(node.item, max(node.low - 1, 0), high))


def _derive_alternate(node: Alternate, char: str) -> Regex:
    options = [derive(option, char) for option in node.options]
    if len(options) > MAX_OPTIONS:
        raise RegexTooComplex("an expression has too many alternatives that start alike")
    return alternate(*options)


def _derive_intersect(node: Intersect, char: str) -> Regex:
    items: list[Regex] = []
    for item in node.items:
        after = derive(item, char)
        if after is EMPTY:
            return EMPTY
        items.append(after)
    return both(*items)


def _after_first(node: Words, char: str) -> Regex:
    if node.text is not None:
        return literals([node.text[1:]]) if node.text[0] == char else EMPTY
    suffixes = node.suffixes().get(char)
    return literals(suffixes) if suffixes else EMPTY


def _derive_concat(node: Concat, char: str) -> Regex:
    """Derive a sequence, in a loop over its leading nullable parts and the part after them.

    If the derivative of a part is nullable, the language of the tail is included in the result. The derivative of a
    later part `[class]{0,n}` is then redundant, because it is the same repetition with a smaller count.
    """
    options: list[Regex] = []
    rest: Regex = node
    covered = False
    while isinstance(rest, Concat):
        head = rest.head
        if not (covered and isinstance(head, Repeat) and head.low == 0 and isinstance(head.item, Chars)):
            first = derive(head, char)
            if first is not EMPTY:
                options.append(prepend(first, rest.tail))
                covered = covered or first.nullable
        if not head.nullable:
            break
        rest = rest.tail
    else:
        options.append(derive(rest, char))
    return alternate(*options) if options else EMPTY


def _derive_remainder(node: Remainder, char: str) -> Regex:
    if char in DIGITS:
        digit = ord(char) - 48
        if not node.point:
            left = node.left if node.left == ANY_DIGITS_LEFT else node.left.after(char)
            if left is None:
                return EMPTY
            return remainder(node.divisor, node.carry * 10 + digit, node.scale, left=left, excluded=node.excluded)
        if node.scale:
            return remainder(node.divisor, node.carry * 10 + digit, node.scale - 1, point=True)
        return remainder(node.divisor, node.carry, 0, point=True) if digit == 0 else EMPTY
    if char == "." and not node.point and node.scale is not None:
        return remainder(node.divisor, node.carry, node.scale, point=True, pending=True)
    return EMPTY


_DERIVE: Final[dict[type[Regex], Callable[[Any, str], Regex]]] = {
    type(EMPTY): lambda node, char: EMPTY,
    type(EPSILON): lambda node, char: EMPTY,
    Chars: lambda node, char: EPSILON if char in node.charset else EMPTY,
    Words: _after_first,
    Concat: _derive_concat,
    Repeat: _derive_repeat,
    Alternate: _derive_alternate,
    Intersect: _derive_intersect,
    Complement: lambda node, char: without(derive(node.item, char)),
    Remainder: _derive_remainder,
}
"""Derivative of each kind of node."""


@lru_cache(maxsize=4096)
def first(node: Regex) -> CharSet:
    """Return the characters with which a string of the language can begin; possibly more if has_boolean."""
    if isinstance(node, Intersect):
        kept = [item for item in node.items if not isinstance(item, Complement)]
        return reduce(CharSet.intersection, map(first, kept), EVERY)
    found: dict[Regex, CharSet] = {}
    for part in subterms(node):
        if isinstance(part, Complement):
            found[part] = EVERY
        elif isinstance(part, Intersect):
            found[part] = reduce(CharSet.intersection, [found[item] for item in part.items])
        elif part.parts():
            found[part] = reduce(CharSet.union, [found[inner] for inner in needed(part)])
        else:
            found[part] = reduce(CharSet.union, first_sets(part), NONE)
    return found[node]


# --- intersection and complement, as far as a derivative can afford ---


def both(*items: Regex) -> Regex:
    """Return the intersection of languages."""
    flat: dict[Regex, None] = {}
    pending = list(items)
    while pending:
        item = pending.pop()
        if item is EMPTY:
            return EMPTY
        if type(item) is Intersect:
            pending.extend(item.items)
        elif item is not ANY:
            flat[item] = None
    found = list(flat)
    if not found:
        return ANY
    if len(found) == 1:
        return found[0]
    return _meet(found)


def _meet(items: list[Regex]) -> Regex:
    # Simplifications that are cheap enough for each derivative: disjoint lengths, complements of each other, and
    # finite languages, whose strings are tested one by one.
    shortest = max([item.min_length for item in items])
    listed: Regex | None = None
    for item in items:
        if item.max_length is not None and item.max_length < shortest:
            return EMPTY
    for item in items:
        if item is EPSILON:
            return EPSILON if all(other.nullable for other in items) else EMPTY
        if type(item) is Complement:
            if item.item in items:
                return EMPTY
        elif listed is None and (type(item) is Words or item.text is not None):
            listed = item
    if listed is not None:
        return _filter_words(listed, items)
    merged = _merge(items)
    if merged is not None:
        return merged
    return intersect_node(tuple(sorted(items, key=_SERIAL)))


def _filter_words(finite: Regex, items: list[Regex]) -> Regex:
    words = finite.words if isinstance(finite, Words) else (finite.text or "",)
    others = [item for item in items if item is not finite]
    return literals([word for word in words if all(matches(other, word) for other in others)])


def _merge(items: list[Regex]) -> Regex | None:
    """Join two of the items into a single item, if the shapes allow it."""
    for left in items:
        if type(left.item if type(left) is Repeat else left) is not Chars:
            continue
        for right in items:
            joined = None if right is left else _pair(left, right)
            if joined is not None:
                return both(joined, *[item for item in items if item is not left and item is not right])
    return None


def _pair(left: Regex, right: Regex) -> Regex | None:
    """The intersection of two character classes, repeated or not; None if they are something else."""
    if isinstance(left, Repeat) and isinstance(left.item, Chars):
        if within_repeat(right, left):
            return right
        if isinstance(right, Repeat) and isinstance(right.item, Chars):
            highs = [high for high in (left.high, right.high) if high is not None]
            charset = left.item.charset & right.item.charset
            return repeat(chars(charset), max(left.low, right.low), min(highs) if highs else None)
        if isinstance(right, Chars):
            return chars(left.item.charset & right.charset) if left.low <= 1 else EMPTY
    elif isinstance(left, Chars) and isinstance(right, Chars):
        return chars(left.charset & right.charset)
    return None


def without(item: Regex) -> Regex:
    """Return the complement of a language."""
    if isinstance(item, Complement):
        return item.item
    if item is EMPTY:
        return ANY
    if item is ANY:
        return EMPTY
    if item is EPSILON:
        return repeat_node(ANY_CHAR, 1, None)
    if isinstance(item, Repeat) and isinstance(item.item, Chars):
        return _without_repeat(item.item, item.low, item.high)
    return complement_node(item)


def _without_repeat(item: Chars, low: int, high: int | None) -> Regex:
    """Return the strings that are too short, too long, or have a character outside of the class."""
    options = []
    if low > 0:
        options.append(repeat(ANY_CHAR, 0, low - 1))
    if high is not None:
        options.append(repeat(ANY_CHAR, high + 1, None))
    foreign = chars(EVERY - item.charset)
    options.append(concat(ANY, foreign, ANY))
    return alternate(*options)


# --- remainders ---


def remainder(
    divisor: int,
    carry: int = 0,
    scale: int | None = None,
    *,
    point: bool = False,
    pending: bool = False,
    left: DigitsLeft = ANY_DIGITS_LEFT,
    excluded: tuple[int, ...] = (),
) -> Regex:
    """Return the continuations of a decimal number that make it a multiple of divisor / 10**scale; see `Remainder`."""
    carry %= lcm(divisor, *excluded)
    if left != ANY_DIGITS_LEFT or excluded:
        digits = left.completion(divisor, carry, excluded)
        if digits is None:
            return EMPTY
        return remainder_node(divisor, carry, None, False, False, len(digits), left, excluded)
    if divisor == 1 and not point and scale is None:
        return _ANY_DIGITS
    if scale is None and not point:
        carry = _representative(divisor, carry)
    length = _missing(divisor, carry, scale, point, pending)
    return EMPTY if length is None else remainder_node(divisor, carry, scale, point, pending, length)


def _representative(divisor: int, carry: int) -> int:
    """Return one carry for all carries with the same continuations, the first that was asked for.

    The continuations of n digits are the numbers that are congruent to -carry * 10**n modulo the divisor, as far as
    they are below 10**n. Once 10**n exceeds the divisor, equal ones stay equal. Of 86,400 carries 141 differ.
    """
    shape: list[int] = []
    within = 1
    while True:
        left = -carry * within % divisor
        shape.append(left if left < within else -1)
        if within >= divisor:
            return _representatives(divisor).setdefault(tuple(shape), carry)
        within *= 10


@lru_cache(maxsize=64)
def _representatives(divisor: int) -> dict[tuple[int, ...], int]:
    """The carries by their continuations, as far as they have been asked for."""
    return {}


def _missing(divisor: int, carry: int, scale: int | None, point: bool, pending: bool) -> int | None:
    """Return the minimum number of characters that complete a number to a multiple; None if no continuation does.

    After n further digits the number is one of 10**n consecutive integers. One of them is a multiple if and only if
    -carry * 10**n modulo the remaining divisor is below 10**n.
    """
    counted = scale or 0
    if point:
        for more in range(int(pending), max(counted, int(pending)) + 1):
            units = min(more, counted)
            if _reaches(divisor, carry, units, counted - units):
                return more
        return None
    more = 0
    while True:
        if _reaches(divisor, carry, more, counted):
            return more
        if (
            scale
            and more >= 2
            and any(_reaches(divisor, carry, more - 1, counted - used) for used in range(1, min(more - 1, counted) + 1))
        ):
            return more
        more += 1


def _reaches(divisor: int, carry: int, digits: int, scale: int) -> bool:
    left = divisor // gcd(divisor, 10**scale)
    within: int = 10**digits
    return -carry * within % left < within
