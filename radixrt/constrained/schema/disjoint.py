"""When is it certain that nothing satisfies a node, or that no value satisfies two schemas at once.

Both only ever answer "certain" or "do not know"; they keep `oneOf` and long conditions from being unfolded needlessly.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from radixrt.constrained.schema.expansion import ArrayShape, ObjectShape
from radixrt.constrained.schema.formula import NONE, Is, Node
from radixrt.constrained.schema.logic_assertions import AllOfAssertion, RefAssertion
from radixrt.constrained.schema.object_assertions import PropertiesAssertion, RequiredAssertion
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.strings import StringSet
from radixrt.constrained.schema.values import OBJECT, key

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph

LOOKED_AT = 8
"""Items of an array that are looked at."""


def surely_empty(graph: Graph, node: Node, depth: int) -> bool:
    """Whether it is certain that no value satisfies the node, looking into members and items to a depth."""
    if node.formulas == NONE:
        return True
    if depth < 0 or graph.is_expanding(node):
        return False
    graph.budget.check_time(node.pointer, "oneOf")
    expansion = graph.expand(node)
    if expansion.union is not None:
        return all(surely_empty(graph, part, depth - 1) for part in expansion.union)
    if expansion.values or expansion.null or expansion.booleans or expansion.numbers:
        return False
    return (
        all(_no_string(strings) for strings in expansion.strings)
        and all(_no_array(graph, shape, depth - 1) for shape in expansion.arrays)
        and all(_no_object(graph, shape, depth - 1) for shape in expansion.objects)
    )


def _no_string(strings: StringSet) -> bool:
    return bool(strings.tests or strings.excluded) and strings.language().is_empty()


def _no_array(graph: Graph, shape: ArrayShape, depth: int) -> bool:
    for index in range(min(shape.low, LOOKED_AT)):
        rules = [rule for rule in shape.rules if rule.start <= index and (rule.stop is None or index < rule.stop)]
        if surely_empty(graph, graph.node(tuple(f for rule in rules for f in rule.formulas)), depth):
            return True
    return False


def _no_object(graph: Graph, shape: ObjectShape, depth: int) -> bool:
    required = set(shape.required)
    return any(surely_empty(graph, graph.node(formulas), depth) for name, formulas in shape.members if name in required)


def discriminated(graph: Graph, left: Located, right: Located) -> bool:
    """Whether both are objects with a required member whose listed values they do not share."""
    one, two = _tags(graph, left), _tags(graph, right)
    return any(name in two and one[name].isdisjoint(two[name]) for name in one)


def told_apart(graph: Graph, options: list[Located]) -> bool:
    """Whether all are objects with one required member of whose listed values each has its own."""
    tags = [_tags(graph, option) for option in options]
    for name in tags[0] if tags else ():
        lists = [found[name] for found in tags if name in found]
        if len(lists) == len(tags) and len(frozenset().union(*lists)) == sum(map(len, lists)):
            return True
    return False


def _tags(graph: Graph, located: Located) -> dict[str, frozenset[Hashable]]:
    """Required members with the values that are listed for them; {} if the schema takes more than objects."""
    if located.tags is None:
        located.tags = _find_tags(graph, located) if graph.hints.accepts(located) == OBJECT else {}
    found: dict[str, frozenset[Hashable]] = located.tags
    return found


def _find_tags(graph: Graph, located: Located) -> dict[str, frozenset[Hashable]]:
    required: set[str] = set()
    members: dict[str, Located] = {}
    pending = [located]
    while pending:
        for assertion in graph.assertions(pending.pop()):
            if isinstance(assertion, RequiredAssertion):
                required.update(assertion.names)
            elif isinstance(assertion, PropertiesAssertion):
                members.update(assertion.members)
            elif isinstance(assertion, RefAssertion):
                pending.append(assertion.target)
            elif isinstance(assertion, AllOfAssertion):
                pending.extend(assertion.options)
    tags = {}
    for name in required & members.keys():
        for formula in graph.formulas(members[name]):
            values = graph.hints.single_values(formula) if isinstance(formula, Is) else None
            if values is not None:
                tags[name] = frozenset(key(value) for value in values)
    return tags
