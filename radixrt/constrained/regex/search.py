"""Questions about a language whose answer is found by walking along its derivatives.

Where there is no intersection or complement the tree itself answers. Elsewhere states are visited best first by a lower
bound of what is missing, within a budget; what was found out about a state is kept with it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from radixrt.constrained.regex.base import EMPTY, Regex, RegexTooComplex
from radixrt.constrained.regex.boolean import both, without
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.derivatives import first
from radixrt.constrained.regex.nodes import Alternate, Chars, Concat, Repeat, Words

MAX_STEPS: Final = 12_000
MAX_TEXT: Final = 1_000_000


def is_empty(node: Regex) -> bool:
    if not node.has_boolean:
        return node is EMPTY
    if node.nullable:
        return False
    if isinstance(node, Concat):
        return any(part.is_empty() for part in node.chain())
    if isinstance(node, Alternate):
        return all(option.is_empty() for option in node.options)
    if isinstance(node, Repeat):
        return node.item.is_empty()
    if node._dead is None:
        node._dead = not _search(node, exact=False)
    return node._dead


def shortest(node: Regex) -> str | None:
    length = shortest_length(node)
    if length is not None and length > MAX_TEXT:
        raise RegexTooComplex("the shortest text is longer than a million characters")
    return None if length is None else _spell(node)


def shortest_length(node: Regex) -> int | None:
    if not node.has_boolean:
        return None if node is EMPTY else node.min_length
    if node.nullable:
        return 0
    if isinstance(node, Concat):
        lengths = [part.shortest_length() for part in node.chain()]
        return None if None in lengths else sum(length or 0 for length in lengths)
    if isinstance(node, Alternate):
        return min(
            (length for option in node.options if (length := option.shortest_length()) is not None), default=None
        )
    if isinstance(node, Repeat):
        length = node.item.shortest_length()
        return None if length is None else length * node.low
    if node._ending is None and not node._dead:
        _search(node, exact=True)
    return None if node._ending is None else len(node._ending)


def is_disjoint(left: Regex, right: Regex) -> bool:
    if left.nullable and right.nullable:
        return False
    if not (left.nullable or right.nullable) and not first(left) & first(right):
        return True
    return is_empty(both(left, right))


def is_subset(left: Regex, right: Regex) -> bool:
    return left is right or is_empty(both(left, without(right)))


def _spell(node: Regex) -> str:
    """A shortest string of a language that is not empty, by its structure."""
    if node.nullable:
        return ""
    if node.text is not None:
        return node.text
    if node._ending is not None:
        return node._ending
    if isinstance(node, Chars):
        return _plain_char(node.charset)
    if isinstance(node, Words):
        return min(node.words, key=len)
    if isinstance(node, Concat):
        return "".join(map(_spell, node.chain()))
    if isinstance(node, Repeat):
        return _spell(node.item) * node.low
    assert isinstance(node, Alternate)
    lengths = [(length, option) for option in node.options if (length := option.shortest_length()) is not None]
    return _spell(min(lengths, key=_length)[1])


def _length(pair: tuple[int, Regex]) -> int:
    return pair[0]


def _plain_char(charset: CharSet) -> str:
    """A character of the class, a letter or digit where there is one."""
    for char in "a0A _-":
        if char in charset:
            return char
    return chr(charset.edges[0])


def _search(start: Regex, *, exact: bool) -> bool:
    """Whether the language has a string; if so and `exact`, a shortest one is kept with the nodes on the way to it.

    The bound never exceeds what is missing, so the first complete text taken from the queue is a shortest one. Of two
    states that promise the same the one with less to go comes first.

    Raises:
        RegexTooComplex: over MAX_STEPS derivatives would have to be looked at.
    """
    came_from: dict[Regex, tuple[Regex, str]] = {}
    costs = {start: 0}
    queue: list[tuple[int, int, int, Regex]] = [(0, start.min_length, start.serial, start)]
    steps = 0
    while queue:
        promised, missing, _, state = heappop(queue)
        cost = costs[state]
        if exact and promised > cost + missing:
            continue
        if state.nullable or state._ending is not None or (state._dead is False and not exact):
            if exact:
                _keep(start, came_from, state)
            return True
        for charset in state.classes():
            char = _plain_char(charset)
            following = state.derive(char)
            if following is EMPTY or following._dead:
                continue
            known = costs.get(following)
            if known is not None and (not exact or known <= cost + 1):
                continue
            costs[following] = cost + 1
            came_from[following] = (state, char)
            missing = following.min_length if following._ending is None else len(following._ending)
            heappush(queue, (cost + 1 + missing if exact else 0, missing, following.serial, following))
        steps += len(state.classes())
        if steps > MAX_STEPS:
            raise RegexTooComplex(f"an expression with intersections or complements takes over {MAX_STEPS} steps")
    for state in costs:
        state._dead = True
    return False


def _keep(start: Regex, came_from: dict[Regex, tuple[Regex, str]], state: Regex) -> None:
    """Files the rest of the text that was found with each state on the way."""
    text = "" if state.nullable else state._ending or ""
    state._ending = text
    while state is not start:
        state, char = came_from[state]
        text = char + text
        state._ending = text
