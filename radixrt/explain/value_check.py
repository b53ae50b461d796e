"""Whether a value belongs to the normal form of a schema: the schema as it is enforced."""

from __future__ import annotations

from typing import Any

from radixrt.constrained.schema import NormalSchema
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import NONE, ArrayShape, Formulas, Node, ObjectShape
from radixrt.constrained.schema.values import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, key, type_of
from radixrt.errors import RequestError


def accepts(normal: NormalSchema, value: Any) -> bool:
    """Return whether the schema, as it is enforced, accepts a parsed value; the order of keys does not matter.

    Raises:
        RequestError: the value is nested too deeply, or is not JSON.
    """
    normal.graph.budget.restart()
    try:
        return admits(normal.graph, normal.graph.root, value)
    except RecursionError:
        raise RequestError("The value is nested too deeply to be judged.", code="invalid_value") from None
    except (KeyError, TypeError):
        raise RequestError("The value has parts that are not JSON.", code="invalid_value") from None


def admits(graph: Graph, node: Node, value: Any) -> bool:
    """Return whether the value belongs to the node's expansion; the order of an object's members does not matter."""
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
        return any(admits_array(graph, shape, value) for shape in expansion.arrays)
    assert kind == OBJECT
    return any(admits_object(graph, shape, value) for shape in expansion.objects)


def _admits_all(graph: Graph, formulas: Formulas, value: Any) -> bool:
    return formulas is not NONE and admits(graph, graph.node(formulas), value)


def admits_array(graph: Graph, shape: ArrayShape, items: list[Any]) -> bool:
    """Return whether the array belongs to one alternative."""
    if len(items) < shape.low or (shape.high is not None and len(items) > shape.high):
        return False
    if shape.unique is not None and (len({key(item) for item in items}) == len(items)) is not shape.unique:
        return False
    if not all(_admits_all(graph, shape.item_formulas(index), item) for index, item in enumerate(items)):
        return False
    for count in shape.counts:
        found = sum(_admits_all(graph, count.formulas, item) for item in items[count.start :])
        if found < count.low or (count.high is not None and found > count.high):
            return False
    return True


def admits_object(graph: Graph, shape: ObjectShape, members: dict[str, Any]) -> bool:
    """Return whether the object belongs to one alternative."""
    if len(members) < shape.low or (shape.high is not None and len(members) > shape.high):
        return False
    if any(name not in members for name in shape.required):
        return False
    declared = dict(shape.members)
    for name, member in members.items():
        if name in declared:
            if not _admits_all(graph, declared[name], member):
                return False
            continue
        for keys, formulas in shape.rules:
            if name in keys and not _admits_all(graph, formulas, member):
                return False
    return all(
        any(
            name in keys and name not in declared and _admits_all(graph, formulas, member)
            for name, member in members.items()
        )
        for keys, formulas, _ in shape.witnesses
    )
