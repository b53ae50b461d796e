"""Whether a value is in a node, as its expansion says: what the productions enforce, for values instead of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.expansion import ArrayShape, ObjectShape
from radixrt.constrained.schema.formula import NONE, Formulas, Node
from radixrt.constrained.schema.values import ARRAY, BOOLEAN, NULL, NUMBER, STRING, key, type_of

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph


def admits(graph: Graph, node: Node, value: Any) -> bool:
    """Whether the value is in the node; the order of an object's members does not matter."""
    expansion = graph.expand(node)
    if expansion.union is not None:
        return any(admits(graph, part, value) for part in expansion.union)
    if expansion.values and key(value) in expansion.values:
        return True
    kind = type_of(value)
    if kind == NULL:
        return expansion.null
    if kind == BOOLEAN:
        return value in expansion.booleans
    if kind == NUMBER:
        return any(numbers.holds(value) for numbers in expansion.numbers)
    if kind == STRING:
        return any(strings.holds(value) for strings in expansion.strings)
    if kind == ARRAY:
        return any(_array(graph, shape, value) for shape in expansion.arrays)
    return any(_object(graph, shape, value) for shape in expansion.objects)


def _all(graph: Graph, formulas: Formulas, value: Any) -> bool:
    return formulas is not NONE and admits(graph, graph.node(formulas), value)


def _array(graph: Graph, shape: ArrayShape, items: list[Any]) -> bool:
    if len(items) < shape.low or (shape.high is not None and len(items) > shape.high):
        return False
    if shape.unique is not None and (len({key(item) for item in items}) == len(items)) is not shape.unique:
        return False
    for index, item in enumerate(items):
        demanded: Formulas = ()
        for rule in shape.rules:
            if rule.start <= index and (rule.stop is None or index < rule.stop):
                demanded += rule.formulas
        if not _all(graph, demanded, item):
            return False
    for count in shape.counts:
        found = sum(_all(graph, count.formulas, item) for item in items[count.start :])
        if found < count.low or (count.high is not None and found > count.high):
            return False
    return True


def _object(graph: Graph, shape: ObjectShape, members: dict[str, Any]) -> bool:
    if len(members) < shape.low or (shape.high is not None and len(members) > shape.high):
        return False
    if any(name not in members for name in shape.required):
        return False
    declared = dict(shape.members)
    for name, member in members.items():
        if name in declared:
            if not _all(graph, declared[name], member):
                return False
            continue
        for keys, formulas in shape.rules:
            if name in keys and not _all(graph, formulas, member):
                return False
    return all(
        any(name in keys and name not in declared and _all(graph, formulas, member) for name, member in members.items())
        for keys, formulas, _ in shape.witnesses
    )
