"""Queries on a language, answered by a search over the derivatives.

Without intersections and complements, the tree itself has the answer. Otherwise states are visited best first, by a
lower bound of the missing characters, within a budget; results for a state are stored on its node. Every query raises
`RegexTooComplex` if it had to visit too many states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.derivatives import both, derive, first, matches, without
from radixrt.constrained.regex.nodes import (
    EMPTY,
    EPSILON,
    Alternate,
    Chars,
    Complement,
    Concat,
    Intersect,
    Regex,
    RegexTooComplex,
    Repeat,
    Words,
)

MAX_STEPS: Final = 12_000
MAX_TEXT: Final = 1_000_000
MAX_CHARACTERS: Final = 4_000_000
_MAX_CANDIDATES: Final = 5_000
_MIN_LENGTH: Final = attrgetter("min_length")


def is_empty(node: Regex) -> bool:
    """Return True if there is no string at all."""
    if not node.has_boolean:
        return node is EMPTY
    if node.nullable:
        return False
    if isinstance(node, Concat):
        return any(is_empty(part) for part in node.chain())
    if isinstance(node, Alternate):
        return all(is_empty(option) for option in node.options)
    if isinstance(node, Repeat):
        return is_empty(node.item)
    if node.dead is None:
        node.dead = not _search(node, exact=False)
    return node.dead


def shortest_string(node: Regex) -> str | None:
    """A shortest string, at most a million characters long, or None if the language is empty."""
    length = shortest_length(node)
    if length is not None and length > MAX_TEXT:
        raise RegexTooComplex("the shortest text is longer than a million characters")
    return None if length is None else _spell(node)


def shortest_length(node: Regex) -> int | None:
    """Code points of a shortest string, or None if the language is empty; makes no string."""
    if not node.has_boolean:
        return None if node is EMPTY else node.min_length
    if node.nullable:
        return 0
    if isinstance(node, Concat):
        lengths = [shortest_length(part) for part in node.chain()]
        return None if None in lengths else sum(length or 0 for length in lengths)
    if isinstance(node, Alternate):
        return _least_length(node.options)
    if isinstance(node, Repeat):
        length = shortest_length(node.item)
        return None if length is None else length * node.low
    if node.ending is None and not node.dead:
        _search(node, exact=True)
    return None if node.ending is None else len(node.ending)


def _least_length(options: Sequence[Regex]) -> int | None:
    """The least of the shortest lengths of the options; those that cannot be shorter are not searched."""
    least: int | None = None
    for option in sorted(options, key=_MIN_LENGTH):
        if least is not None and option.min_length >= least:
            break
        length = shortest_length(option)
        if length is not None and (least is None or length < least):
            least = length
    return least


def is_disjoint(left: Regex, right: Regex) -> bool:
    """Return True if no string is in both languages."""
    if left.nullable and right.nullable:
        return False
    if not (left.nullable or right.nullable) and not first(left) & first(right):
        return True
    return is_empty(both(left, right))


def is_subset(left: Regex, right: Regex) -> bool:
    """Return True if every string of the left language is in the right one."""
    return left is right or is_empty(both(left, without(right)))


def _spell(node: Regex) -> str:
    """Return a shortest string of a nonempty language, by recursion over the expression."""
    if node.nullable:
        return ""
    if node.text is not None:
        return node.text
    if node.ending is not None:
        return node.ending
    if isinstance(node, Chars):
        return _plain_char(node.charset)
    if isinstance(node, Words):
        return min(node.words, key=len)
    if isinstance(node, Concat):
        return "".join(map(_spell, node.chain()))
    if isinstance(node, Repeat):
        return _spell(node.item) * node.low
    assert isinstance(node, Alternate)
    least = _least_length(node.options)
    assert least is not None
    plain = [one for one in node.options if not one.has_boolean and one.min_length == least]
    if plain:
        return min(map(_spell, plain))  # the order of the options is that of their creation in this process
    return _spell(next(one for one in node.options if one.min_length <= least and shortest_length(one) == least))


@lru_cache(maxsize=4096)
def _plain_char(charset: CharSet) -> str:
    """A character of the class, a letter or digit where there is one."""
    for char in "a0A _-":
        if char in charset:
            return char
    return chr(charset.edges[0])


def _search(start: Regex, *, exact: bool) -> bool:
    """Return True if the language has a string. With `exact`, also store a shortest string in the nodes on its path.

    With `exact` this is A* search over derivatives, where `min_length` bounds the missing characters from below. The
    bound never exceeds the number of missing characters, so the first complete string taken from the queue is a
    shortest one. Among states with the same estimated total, the state with fewer missing characters comes first.

    Raises:
        RegexTooComplex: over MAX_STEPS derivatives would have to be computed.
    """
    text = _unlisted(start)
    if text is not None:
        start.ending = text
        return True
    came_from: dict[Regex, tuple[Regex, str]] = {}
    costs = {start: 0}
    # Entries: estimated total length (0 if not `exact`), missing characters, tie-breaker, state.
    queue: list[tuple[int, int, int, Regex]] = [(0, start.min_length, start.serial, start)]
    steps = 0
    while queue:
        estimate, missing, _, state = heappop(queue)
        cost = costs[state]
        if exact and estimate > cost + missing:
            continue  # a cheaper path to this state was found after the entry was queued
        if state.nullable or state.ending is not None or (state.dead is False and not exact):
            if exact:
                _keep(start, came_from, state)
            return True
        for charset in state.classes():
            char = _plain_char(charset)
            following = derive(state, char)
            if following is EMPTY or following.dead:
                continue
            known = costs.get(following)
            if known is not None and (not exact or known <= cost + 1):
                continue
            costs[following] = cost + 1
            came_from[following] = (state, char)
            missing = following.min_length if following.ending is None else len(following.ending)
            heappush(queue, (cost + 1 + missing if exact else 0, missing, following.serial, following))
        steps += len(state.classes())
        if steps > MAX_STEPS:
            raise RegexTooComplex(f"an expression with intersections or complements takes over {MAX_STEPS} steps")
    # No state on any path accepts, so later searches can skip all of them.
    for state in costs:
        state.dead = True
    return False


def _unlisted(node: Regex) -> str | None:
    """Return a shortest string of a plain language from which listed strings are excluded; None if the node has
    another form, or if the shortest string found is excluded."""
    if not isinstance(node, Intersect):
        return None
    whole, listed = without_listed(node)
    if whole.has_boolean or whole.min_length > MAX_TEXT:
        return None
    text = _spell(whole)
    return None if text in listed else text


@lru_cache(maxsize=1024)
def without_listed(node: Intersect) -> tuple[Regex, frozenset[str]]:
    """Split a language with excluded strings into the language and the strings; (node, none) for any other form.

    The names of an object's undeclared members are such languages, and following derivatives of all excluded strings
    would take long.
    """
    kept = [item for item in node.items if not isinstance(item, Complement)]
    listed: set[str] = set()
    for item in node.items:
        if isinstance(item, Complement):
            if isinstance(item.item, Words):
                listed.update(item.item.words)
            elif item.item.text is not None:
                listed.add(item.item.text)
            else:
                return node, frozenset()
    return (kept[0], frozenset(listed)) if len(kept) == 1 else (node, frozenset())


def _keep(start: Regex, came_from: dict[Regex, tuple[Regex, str]], state: Regex) -> None:
    """Files the rest of the text that was found with each state on the way."""
    text = "" if state.nullable else state.ending or ""
    state.ending = text
    while state is not start:
        state, char = came_from[state]
        text = char + text
        state.ending = text


# --- enumeration ---


def enumerate_strings(node: Regex, limit: int) -> list[str] | None:
    """All strings, shortest first and sorted, or None if there are more than limit."""
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
            found = {text for text in candidates if matches(node, text)}
            return found if len(found) <= limit else None
    # Otherwise enumerate the strings breadth first by length. Strings that lead to the same derivative share a state.
    found = set()
    frontier: dict[Regex, list[str]] = {node: [""]}
    states = {node}
    characters = length = 0
    while frontier:
        following: dict[Regex, list[str]] = {}
        live = 0
        for state, texts in frontier.items():
            if state.nullable:
                found.update(texts)
            for charset in state.classes():
                target = derive(state, next(iter(charset)))
                if target is EMPTY or is_empty(target):
                    continue
                live += len(charset) * len(texts)
                if live > limit:
                    return None
                following.setdefault(target, []).extend(text + char for text in texts for char in charset)
        if len(found) > limit:
            return None
        frontier = following
        length += 1
        states.update(following)
        if following and length >= len(states):
            return None  # a string has passed a state twice, so there is no longest one
        characters += sum(len(text) for texts in following.values() for text in texts)
        if characters > MAX_CHARACTERS:
            raise RegexTooComplex("the strings of an expression are millions of characters long together")
    return found


def _candidates(node: Intersect) -> set[str] | None:
    """Return the strings of some intersected item that has few strings; None if every item has many."""
    for item in node.items:
        if not item.has_boolean and item.max_length is not None:
            try:
                found = _strings(item, _MAX_CANDIDATES)
            except RegexTooComplex:
                continue
            if found is not None:
                return found
    return None
