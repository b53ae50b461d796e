"""A regular language as a small deterministic automaton, for backends that have no intersections and complements.

`Dfa.of` follows derivatives, drops states from which nothing can be accepted and merges equivalent ones. From the
automaton a language can be written as right-linear rules, or, by `eliminate`, as a plain expression again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from radixrt.constrained.regex.algebra import alternate, chars, concat, repeat
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.derivatives import derive
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Regex

_Arrows = tuple[tuple[tuple[CharSet, int], ...], ...]
"""For each state, the character sets that lead on and where to."""


@dataclass(frozen=True, slots=True)
class Dfa:
    """A minimal automaton; state 0 is the start, and an accepting state can be reached from every state.

    Attributes:
        arrows: for each state, the character sets that lead on and where to; sets are disjoint, targets distinct.
        accepting: for each state, whether a text may end there.
        languages: for each state, the language of the continuations. States of different automata with the same
            language are interchangeable.
    """

    arrows: _Arrows
    accepting: tuple[bool, ...]
    languages: tuple[Regex, ...]

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(regex: Regex, max_states: int) -> Dfa | None:
        """Return the minimal automaton of a language; None if the language has more than max_states derivatives or is
        empty."""
        if regex is EMPTY:
            return None
        numbers: dict[Regex, int] = {regex: 0}
        order = [regex]
        arrows: list[dict[int, CharSet]] = []
        for state in order:  # grows inside the loop
            leading: dict[int, CharSet] = {}
            for charset in state.classes():
                target = derive(state, chr(charset.edges[0]))
                if target is EMPTY:
                    continue
                if target not in numbers:
                    if len(order) >= max_states:
                        return None
                    numbers[target] = len(order)
                    order.append(target)
                number = numbers[target]
                leading[number] = leading[number] | charset if number in leading else charset
            arrows.append(leading)
        found = _minimal(arrows, [state.nullable for state in order])
        if found is None:
            return None
        leads, kept = found
        return Dfa(leads, tuple([order[state].nullable for state in kept]), tuple([order[state] for state in kept]))

    def eliminate(self, max_size: int) -> Regex | None:
        """The language as an expression without intersections and complements; None if it gets over max_size parts."""
        return _eliminate(self.arrows, self.accepting, max_size)


def small_expression(
    arrows: Sequence[Mapping[int, CharSet]], accepting: Sequence[bool], max_states: int, max_size: int
) -> Regex | None:
    """The language of an automaton as an expression without intersections and complements.

    Args:
        arrows: for each state, where character sets lead; sets are disjoint, and state 0 is the start.
        accepting: for each state, whether a text may end there.

    Returns:
        None if the minimal automaton has more than max_states states, or the expression more than max_size parts.
    """
    found = _minimal(arrows, accepting)
    if found is None:
        return EMPTY
    leads, kept = found
    return None if len(leads) > max_states else _eliminate(leads, [accepting[state] for state in kept], max_size)


def _eliminate(arrows: _Arrows, accepting: Sequence[bool], max_size: int) -> Regex | None:
    """See `Dfa.eliminate`.

    This is state elimination: states are removed one after the other, and each path source -> state -> target becomes
    an arrow from source to target, labelled with an expression. The state with the fewest such paths comes first.
    """
    # Add a start state without incoming and an end state without outgoing arrows.
    end = len(arrows)
    start = end + 1
    out: dict[int, dict[int, Regex]] = {
        state: {target: chars(charset) for charset, target in leading} for state, leading in enumerate(arrows)
    }
    out[start] = {0: EPSILON}
    out[end] = {}
    for state, accepts in enumerate(accepting):
        if accepts:
            out[state][end] = EPSILON
    into: dict[int, set[int]] = {state: set() for state in out}
    for state, targets in out.items():
        for target in targets:
            into[target].add(state)
    # Remove all other states. The label of the last arrow, from start to end, is the result.
    sizes: dict[Regex, int] = {}
    left = set(range(end))
    while left:
        state = min(left, key=lambda one: (len(into[one] - {one}) * len(out[one].keys() - {one}), one))
        left.discard(state)
        loop = out[state].pop(state, None)
        into[state].discard(state)
        again = EPSILON if loop is None else repeat(loop)
        for source in into[state]:
            first = concat(out[source].pop(state), again)
            for target, last in out[state].items():
                way = alternate(out[source].get(target, EMPTY), concat(first, last))
                if _size(way, sizes) > max_size:
                    return None
                out[source][target] = way
                into[target].add(source)
        for target in out.pop(state):
            into[target].discard(state)
    return out[start].get(end, EMPTY)


def has_more_states(regex: Regex, limit: int) -> bool:
    """Return True if `Dfa.of` finds no automaton of so few states, mostly with less work.

    The derivatives are visited depth first, because new ones are found fastest along one text.
    """
    if regex.min_length >= limit:
        return True
    seen = {regex}
    path = [(regex, iter(regex.classes()))]
    while path:
        state, left = path[-1]
        for charset in left:
            target = derive(state, chr(charset.edges[0]))
            if target is not EMPTY and target not in seen:
                if len(seen) >= limit:
                    return True
                seen.add(target)
                path.append((target, iter(target.classes())))
                break
        else:
            path.pop()
    return False


def _minimal(arrows: Sequence[Mapping[int, CharSet]], accepting: Sequence[bool]) -> tuple[_Arrows, list[int]] | None:
    """The automaton without dead states, equivalent states merged, numbered in the order in which they are reached.

    Returns:
        The transitions of the minimal automaton, and for each of its states a state of the given automaton that was
        merged into it; None if the language is empty.
    """
    # Find the states from which an accepting state can be reached, backwards from the accepting states.
    alive = {state for state, accepts in enumerate(accepting) if accepts}
    into: list[list[int]] = [[] for _ in arrows]
    for state, leading in enumerate(arrows):
        for target in leading:
            into[target].append(state)
    queue = list(alive)
    while queue:
        for source in into[queue.pop()]:
            if source not in alive:
                alive.add(source)
                queue.append(source)
    if 0 not in alive:
        return None
    # Merge equivalent states by Moore's algorithm: begin with accepting and other states, and split blocks whose states
    # lead to different blocks, until no block is split.
    block = {state: int(accepting[state]) for state in sorted(alive)}
    count = len(set(block.values()))
    while True:
        numbers: dict[tuple[int, frozenset[tuple[int, CharSet]]], int] = {}
        refined = {}
        for state in block:
            signature = (block[state], frozenset(_by_block(arrows[state], block).items()))
            refined[state] = numbers.setdefault(signature, len(numbers))
        block = refined
        if len(numbers) == count:
            break
        count = len(numbers)
    # Number the blocks breadth first from the start.
    members = {block[state]: state for state in reversed(block)}
    order = [block[0]]
    places = {block[0]: 0}
    made = []
    for number in order:
        leading = _by_block(arrows[members[number]], block)
        for target in leading:
            if target not in places:
                places[target] = len(order)
                order.append(target)
        made.append(tuple((charset, places[target]) for target, charset in leading.items()))
    return tuple(made), [members[number] for number in order]


def _by_block(leading: Mapping[int, CharSet], block: dict[int, int]) -> dict[int, CharSet]:
    """The arrows to live states, united by the block that they lead to."""
    found: dict[int, CharSet] = {}
    for target, charset in leading.items():
        if target in block:
            number = block[target]
            found[number] = found[number] | charset if number in found else charset
    return found


def _size(regex: Regex, sizes: dict[Regex, int]) -> int:
    """Nodes of the tree, shared ones counted each time, because the written form repeats them."""
    stack = [regex]
    while stack:
        node = stack[-1]
        if node in sizes:
            stack.pop()
            continue
        missing = [part for part in node.parts() if part not in sizes]
        if missing:
            stack.extend(missing)
        else:
            sizes[node] = 1 + sum(sizes[part] for part in node.parts())
            stack.pop()
    return sizes[regex]
