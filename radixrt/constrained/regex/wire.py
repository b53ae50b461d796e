"""Expressions as plain lists and back, for sending them between processes.

The form is a table of nodes, children before parents, so that shared subtrees stay shared. It consists of integers,
strings, lists and None only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from radixrt.constrained.regex import interning, nodes
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Regex, subterms


def encode(regexes: Iterable[Regex]) -> tuple[list[Any], dict[Regex, int]]:
    """A table of the nodes of all these expressions, and the place of each node in it."""
    place: dict[Regex, int] = {}
    table: list[Any] = []
    for part in subterms(*regexes):
        place[part] = len(table)
        table.append(_row(part, place))
    return table, place


def _row(node: Regex, place: dict[Regex, int]) -> list[Any]:
    if type(node) is nodes.Concat:
        return ["concat", place[node.head], place[node.tail]]
    if type(node) is nodes.Chars:
        return ["chars", node.charset.edges]
    if type(node) is nodes.Words:
        return ["words", node.words]
    parts = [place[part] for part in node.parts()]
    if isinstance(node, nodes.Repeat):
        return ["repeat", parts[0], _wide(node.low), None if node.high is None else _wide(node.high)]
    if isinstance(node, nodes.Remainder):
        state = [node.scale, node.point, node.pending, node.min_length]
        return ["remainder", str(node.divisor), str(node.carry), *state, node.left, list(map(str, node.excluded))]
    return [type(node).__name__.lower(), *parts]


def _wide(number: int) -> int | str:
    """A count that is too large for an integer of the wire form is sent as text."""
    return number if number < 2**63 else str(number)


def decode(table: Sequence[Any]) -> list[Regex]:
    """The expressions at all places of a table: the same objects as before, in the same process."""
    made: list[Regex] = []
    for kind, *row in table:
        made.append(_node(kind, row, made))
    return made


def _node(kind: str, row: list[Any], made: list[Regex]) -> Regex:
    if kind == "chars":
        return interning.chars_node(CharSet(tuple(row[0])))
    if kind == "words":
        return interning.words_node(tuple(row[0]))
    if kind == "repeat":
        return interning.repeat_node(made[row[0]], int(row[1]), None if row[2] is None else int(row[2]))
    if kind == "remainder":
        divisor, carry, *state, left, excluded = row
        rest = nodes.DigitsLeft(*left), tuple(map(int, excluded))
        return interning.remainder_node(int(divisor), int(carry), state[0], state[1], state[2], state[3], *rest)
    parts = [made[at] for at in row]
    if kind == "concat":
        return interning.concat_node(parts[0], parts[1])
    if kind == "complement":
        return interning.complement_node(parts[0])
    ordered = tuple(sorted(parts, key=lambda part: part.serial))
    if kind == "alternate":
        return interning.alternate_node(ordered)
    if kind == "intersect":
        return interning.intersect_node(ordered)
    return EMPTY if kind == "empty" else EPSILON
