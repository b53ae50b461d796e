"""Intersection and complement, computed away wherever that is cheap.

A backend runs an intersection of two unbounded expressions a hundred times slower than an expression without one, and
not every backend has them. `both` and `without` do what a derivative can afford; `intersect` and `complement`, for
those who build an expression, also try a small automaton.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literals, repeat
from radixrt.constrained.regex.base import EMPTY, Regex
from radixrt.constrained.regex.charset import EVERY
from radixrt.constrained.regex.narrow import narrow
from radixrt.constrained.regex.nodes import (
    ANY,
    ANY_CHAR,
    EPSILON,
    Chars,
    Complement,
    Intersect,
    Repeat,
    Words,
    complement_node,
    intersect_node,
    repeat_node,
)
from radixrt.constrained.regex.subsumption import within_repeat

_MAX_STATES: Final = 16
_MAX_SIZE: Final = 60
_FEW_STRINGS: Final = 64
_MANY_STRINGS: Final = 1000
_LONG_STRING: Final = 64


def both(*items: Regex) -> Regex:
    """The strings that are in all of the items."""
    flat: dict[Regex, None] = {}
    pending = list(items)
    while pending:
        item = pending.pop()
        if item is EMPTY:
            return EMPTY
        if isinstance(item, Intersect):
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
    shortest = max(item.min_length for item in items)
    if any(item.max_length is not None and item.max_length < shortest for item in items):
        return EMPTY
    for item in items:
        if item is EPSILON:
            return EPSILON if all(other.nullable for other in items) else EMPTY
        if isinstance(item, Complement) and item.item in items:
            return EMPTY
    for item in items:
        if isinstance(item, Words) or item.text is not None:
            return _filter_words(item, items)
    merged = _merge(items)
    if merged is not None:
        return merged
    return intersect_node(tuple(sorted(items, key=lambda node: node.serial)))


def _filter_words(finite: Regex, items: list[Regex]) -> Regex:
    words = finite.words if isinstance(finite, Words) else (finite.text or "",)
    others = [item for item in items if item is not finite]
    return literals([word for word in words if all(other.matches(word) for other in others)])


def _merge(items: list[Regex]) -> Regex | None:
    """Joins two of the items into one, if that is plain to see."""
    for at, left in enumerate(items):
        for right in items[at + 1 :]:
            joined = _pair(left, right)
            if joined is None:
                joined = _pair(right, left)
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
    """The strings that are not in item."""
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
    """Too short, too long, or with a character outside the class."""
    options = []
    if low > 0:
        options.append(repeat(ANY_CHAR, 0, low - 1))
    if high is not None:
        options.append(repeat(ANY_CHAR, high + 1, None))
    foreign = chars(EVERY - item.charset)
    options.append(concat(ANY, foreign, ANY))
    return alternate(*options)


def intersect(*items: Regex) -> Regex:
    """The strings that are in all of the items."""
    made = both(*items)
    if isinstance(made, Intersect):
        made = both(*_narrowed(list(made.items)))
    if isinstance(made, Intersect):
        made = _listed(made)
    return _plain(made) if isinstance(made, Intersect) else made


def complement(item: Regex) -> Regex:
    """The strings that are not in item."""
    made = without(item)
    return _plain(made) if isinstance(made, Complement) else made


def _narrowed(items: list[Regex]) -> list[Regex]:
    """Applies repeated character classes to the other items and leaves out those that are used up by that."""
    for wide in items:
        if not (isinstance(wide, Repeat) and isinstance(wide.item, Chars)):
            continue
        for item in items:
            if item is not wide and not item.has_boolean:
                narrowed = narrow(item, wide.item.charset, wide.low, wide.high)
                if narrowed is not None:
                    rest = [other for other in items if other is not wide and other is not item]
                    return _narrowed([*rest, narrowed]) if rest else [narrowed]
    return items


def _listed(made: Intersect) -> Regex:
    """The strings one by one, if one of the items has so few that they can be tried."""
    limit = _FEW_STRINGS if _leaves_out(made) else _MANY_STRINGS
    for item in made.items:
        if not item.has_boolean and item.max_length is not None and item.max_length <= _LONG_STRING:
            strings = item.enumerate(limit)
            if strings is not None:
                return literals([text for text in strings if made.matches(text)])
    return made


def _leaves_out(made: Intersect | Complement) -> bool:
    """Whether it leaves out finitely many strings: backends do that well, and it is long to say otherwise."""
    items = made.items if isinstance(made, Intersect) else (made,)
    return any(isinstance(item, Complement) and item.item.max_length is not None for item in items)


@lru_cache(maxsize=1024)
def _plain(made: Intersect | Complement) -> Regex:
    """The same language without intersections and complements, if a small automaton says so in few words."""
    if _leaves_out(made):
        return made
    from radixrt.constrained.regex.automaton import Dfa

    automaton = Dfa.of(made, _MAX_STATES)
    plain = None if automaton is None else automaton.eliminate(_MAX_SIZE)
    return made if plain is None else plain
