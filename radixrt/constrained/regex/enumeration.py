"""All strings of a language that has few of them."""

from __future__ import annotations

from typing import Final

from radixrt.constrained.regex.base import EMPTY, Regex, RegexTooComplex
from radixrt.constrained.regex.nodes import EPSILON, Alternate, Chars, Concat, Intersect, Repeat, Words

MAX_CHARACTERS: Final = 4_000_000
_MAX_CANDIDATES: Final = 5_000


def enumerate_strings(node: Regex, limit: int) -> list[str] | None:
    """`node.enumerate(limit)`."""
    found = _strings(node, limit)
    return None if found is None or len(found) > limit else sorted(found, key=lambda text: (len(text), text))


def _strings(node: Regex, limit: int) -> set[str] | None:
    """The strings, or None where there are more than limit."""
    if node is EMPTY:
        return set()
    if node is EPSILON:
        return {""}
    if isinstance(node, Chars):
        return set(node.charset) if len(node.charset) <= limit else None
    if isinstance(node, Words):
        return set(node.words) if len(node.words) <= limit else None
    if node.has_boolean:
        return _boolean_strings(node, limit)
    if node.max_length is None:
        return None
    if isinstance(node, Concat):
        return _sequence(node.chain(), limit)
    if isinstance(node, Repeat):
        return _repeated(node, limit)
    assert isinstance(node, Alternate)
    joined: set[str] = set()
    for option in node.options:
        found = _strings(option, limit)
        if found is None:
            return None
        joined |= found
        if len(joined) > limit:
            return None
    return joined


def _sequence(parts: list[Regex], limit: int) -> set[str] | None:
    joined = {""}
    for part in parts:
        found = _strings(part, limit)
        if found is None:
            return None
        joined = _product(joined, found)
        if len(joined) > limit:
            return None
    return joined


def _product(left: set[str], right: set[str]) -> set[str]:
    longest = max(map(len, left), default=0) + max(map(len, right), default=0)
    if len(left) * len(right) * longest > MAX_CHARACTERS:
        raise RegexTooComplex("the strings of an expression are millions of characters long together")
    return {head + tail for head in left for tail in right}


def _repeated(node: Repeat, limit: int) -> set[str] | None:
    items = _strings(node.item, limit)
    if items is None or node.high is None:
        return None
    if len(items) == 1:
        (text,) = items
        if node.high - node.low >= limit:
            return None
        if len(text) * node.high * (node.high - node.low + 1) > MAX_CHARACTERS:
            raise RegexTooComplex("the strings of an expression are millions of characters long together")
        return {text * times for times in range(node.low, node.high + 1)}
    joined = {""} if node.low == 0 else set()
    power = {""}
    for times in range(1, node.high + 1):
        power = _product(power, items)
        if len(power) > limit:
            return None
        if times >= node.low:
            joined |= power
            if len(joined) > limit:
                return None
    return joined


def _boolean_strings(node: Regex, limit: int) -> set[str] | None:
    if isinstance(node, Intersect):
        candidates = _candidates(node)
        if candidates is not None:
            found = {text for text in candidates if node.matches(text)}
            return found if len(found) <= limit else None
    found = set()
    frontier: dict[Regex, list[str]] = {node: [""]}
    characters = 0
    while frontier:
        following: dict[Regex, list[str]] = {}
        live = 0
        for state, texts in frontier.items():
            if state.nullable:
                found.update(texts)
            for charset in state.classes():
                target = state.derive(next(iter(charset)))
                if target is EMPTY or target.is_empty():
                    continue
                live += len(charset) * len(texts)
                if live > limit:
                    return None
                following.setdefault(target, []).extend(text + char for text in texts for char in charset)
        if len(found) > limit:
            return None
        frontier = following
        characters += sum(len(text) for texts in following.values() for text in texts)
        if characters > MAX_CHARACTERS:
            raise RegexTooComplex("the strings of an expression are millions of characters long together")
    return found


def _candidates(node: Intersect) -> set[str] | None:
    """The strings of one of the items, if that has few."""
    for item in node.items:
        if not item.has_boolean and item.max_length is not None:
            try:
                found = _strings(item, _MAX_CANDIDATES)
            except RegexTooComplex:
                continue
            if found is not None:
                return found
    return None
