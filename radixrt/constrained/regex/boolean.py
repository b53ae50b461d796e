"""Intersection and complement as constructors, eliminated from the expression wherever that is cheap.

A backend runs an intersection of two unbounded expressions a hundred times slower than an expression without one, and
not every backend has them. `derivatives.both` and `without` are limited to the cost of a derivative; `intersect` and
`complement` also apply repeated character classes to the other items, list short languages and try a small automaton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literals, repeat
from radixrt.constrained.regex.automaton import Dfa, has_more_states, small_expression
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.derivatives import both, matches, without
from radixrt.constrained.regex.nodes import (
    EMPTY,
    EPSILON,
    Alternate,
    Chars,
    Complement,
    Concat,
    Intersect,
    Regex,
    Repeat,
    Words,
    subterms,
)
from radixrt.constrained.regex.search import enumerate_strings

_MAX_STATES: Final = 16
_MAX_SIZE: Final = 60
_FEW_STRINGS: Final = 64
_MANY_STRINGS: Final = 1000
_LONG_STRING: Final = 64
_MAX_WAYS: Final = 16
_MAX_CLIPS: Final = 200


@lru_cache(maxsize=1024)
def intersect(*items: Regex) -> Regex:
    """The strings that are in all of the items."""
    made = unexpanded_intersection(*items)
    return _plain(made) if isinstance(made, Intersect) else made


def unexpanded_intersection(*items: Regex) -> Regex:
    """Same as `intersect`, without trying a small automaton: for callers that know that there is none."""
    made = both(*items)
    if isinstance(made, Intersect):
        made = both(*_narrowed(list(made.items)))
    return _listed(made) if isinstance(made, Intersect) else made


@lru_cache(maxsize=1024)
def complement(item: Regex) -> Regex:
    """The strings that are not in item."""
    made = without(item)
    return _plain(made) if isinstance(made, Complement) else made


def _narrowed(items: list[Regex]) -> list[Regex]:
    """Apply repeated character classes to the other items, and drop each class that has been applied."""
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
    """Return the intersection as a list of its strings if some item has few enough strings to test each."""
    limit = _FEW_STRINGS if _excludes_words(made) else _MANY_STRINGS
    for item in made.items:
        if not item.has_boolean and item.max_length is not None and item.max_length <= _LONG_STRING:
            strings = enumerate_strings(item, limit)
            if strings is not None:
                return literals([text for text in strings if matches(made, text)])
    return made


def _excludes_words(made: Intersect | Complement) -> bool:
    """Return True if finitely many strings are excluded.

    Backends support such complements well, and an equivalent expression without complement is long.
    """
    items = made.items if isinstance(made, Intersect) else (made,)
    return any(isinstance(item, Complement) and item.item.max_length is not None for item in items)


@lru_cache(maxsize=1024)
def _plain(made: Intersect | Complement) -> Regex:
    """Return the language as an expression without intersections and complements, if a small automaton has a short
    expression; else return the given expression."""
    if _excludes_words(made) or has_more_states(made, _MAX_STATES):
        return made
    automaton = Dfa.of(made, _MAX_STATES)
    plain = None if automaton is None else automaton.eliminate(_MAX_SIZE)
    return made if plain is None else plain


def plain_expression(arrows: Sequence[Mapping[int, CharSet]], accepting: Sequence[bool]) -> Regex | None:
    """Return the language of an automaton (see `small_expression`), if the minimal automaton is small and has a short
    expression."""
    return small_expression(arrows, accepting, _MAX_STATES, _MAX_SIZE)


# --- narrowing by a repeated character class ---


def narrow(node: Regex, charset: CharSet, low: int, high: int | None) -> Regex | None:
    """Return the strings of `node` with `low` to `high` characters, all in `charset`; None if that would take a large
    expression.

    Args:
        node: without intersections, complements and remainders.
    """
    if not node.alphabet().issubset(charset):
        node = restrict(node, charset)
    return _Clipper().clip(node, low, high)


def restrict(node: Regex, charset: CharSet) -> Regex:
    """Return the strings of `node` whose characters are all in `charset`.

    Args:
        node: without intersections, complements and remainders.
    """
    made: dict[Regex, Regex] = {EMPTY: EMPTY, EPSILON: EPSILON}
    for part in subterms(node):
        if isinstance(part, Chars):
            made[part] = chars(part.charset & charset)
        elif isinstance(part, Words):
            made[part] = literals([word for word in part.words if CharSet.of(word).issubset(charset)])
        elif isinstance(part, Concat):
            made[part] = concat(made[part.head], made[part.tail])
        elif isinstance(part, Alternate):
            made[part] = alternate(*[made[option] for option in part.options])
        elif isinstance(part, Repeat):
            made[part] = repeat(made[part.item], part.low, part.high)
    return made[node]


class _Clipper:
    """Restricts the lengths of strings, within a budget of steps."""

    def __init__(self) -> None:
        self._left = _MAX_CLIPS

    def clip(self, node: Regex, low: int, high: int | None) -> Regex | None:
        """Return the strings of `node` with `low` to `high` characters; None if that would take a large expression."""
        shortest, longest = node.min_length, node.max_length
        if shortest >= low and (high is None or (longest is not None and longest <= high)):
            return node
        if (high is not None and shortest > high) or (longest is not None and longest < low):
            return EMPTY
        self._left -= 1
        if self._left < 0:
            return None
        if isinstance(node, Words):
            return literals([word for word in node.words if low <= len(word) and (high is None or len(word) <= high)])
        if isinstance(node, Repeat):
            return self._clip_repeat(node, low, high)
        if isinstance(node, Concat):
            return self._clip_chain(node.chain(), low, high)
        assert isinstance(node, Alternate)
        options = []
        for option in node.options:
            clipped = self.clip(option, low, high)
            if clipped is None:
                return None
            options.append(clipped)
        return alternate(*options)

    def _clip_repeat(self, node: Repeat, low: int, high: int | None) -> Regex | None:
        # Items of equal length: the bounds become bounds on the number of items.
        size = node.item.min_length
        if node.item.max_length == size:
            fewest = max(node.low, -(-low // size))
            most = node.high if high is None else high // size if node.high is None else min(node.high, high // size)
            return repeat(node.item, fewest, most)
        # Otherwise, try each possible number of items.
        if high is None or size == 0:
            return None
        times = range(node.low, min(high // size, node.high if node.high is not None else high) + 1)
        if len(times) > _MAX_WAYS:
            return None
        if len(times) == 1:
            return self._clip_chain([node.item] * times[0], low, high) if times[0] <= _MAX_WAYS else None
        options = []
        for count in times:
            clipped = self.clip(repeat(node.item, count, count), low, high)
            if clipped is None:
                return None
            options.append(clipped)
        return alternate(*options)

    def _clip_chain(self, parts: list[Regex], low: int, high: int | None) -> Regex | None:
        """Restrict the length of a sequence, by trying the lengths of the part with the fewest possible lengths."""
        # If a single part has several lengths, the bounds apply to this part alone.
        variable = [at for at, part in enumerate(parts) if part.min_length != part.max_length]
        shortest = sum(part.min_length for part in parts)
        if len(variable) == 1:
            at = variable[0]
            others = shortest - parts[at].min_length
            inner = self.clip(parts[at], max(low - others, 0), None if high is None else high - others)
            return None if inner is None else concat(*parts[:at], inner, *parts[at + 1 :])
        if not variable:
            return concat(*parts) if low <= shortest and (high is None or shortest <= high) else EMPTY
        # Otherwise, fix each length of the chosen part in turn. Without an upper bound, all lengths from the one on
        # that reaches `low` by itself are a single case.
        ways, at = min((_ways(parts[at], shortest, low, high), at) for at in variable)
        if ways > _MAX_WAYS:
            return None
        part = parts[at]
        options = []
        for size in range(part.min_length, part.min_length + ways):
            if high is None and size - part.min_length + shortest >= low:
                rest = self.clip(part, size, None)
                clipped = None if rest is None else concat(*parts[:at], rest, *parts[at + 1 :])
            else:
                exact = self.clip(part, size, size)
                if exact is EMPTY:
                    continue
                clipped = None if exact is None else self._clip_chain([*parts[:at], exact, *parts[at + 1 :]], low, high)
            if clipped is None:
                return None
            options.append(clipped)
        return alternate(*options)


def _ways(part: Regex, shortest: int, low: int, high: int | None) -> int:
    """Number of lengths of a part that must be distinguished, where all parts together are at least `shortest`.

    With an upper bound, count every length that leaves enough for the other parts. Without an upper bound, count every
    length with which the other parts must exceed their shortest length to reach `low`, and one more for all longer
    lengths.
    """
    others = shortest - part.min_length
    longest = max(low - others, part.min_length) if high is None else high - others
    if part.max_length is not None:
        longest = min(longest, part.max_length)
    return longest - part.min_length + 1
