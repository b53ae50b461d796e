"""Proofs that no value satisfies two schemas, or a node. The proofs are sound but incomplete, like `static_checks`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radixrt.constrained import regex
from radixrt.constrained.regex import RegexTooComplex
from radixrt.constrained.regex.nodes import Words
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.keywords.objects import Properties, Required
from radixrt.constrained.schema.normal_form.keywords.scalars import Pattern
from radixrt.constrained.schema.normal_form.nodes import NONE, ArrayShape, Formula, Is, Node, ObjectShape
from radixrt.constrained.schema.normal_form.static_checks import listed_values, possible_types
from radixrt.constrained.schema.normal_form.strings import StringSet
from radixrt.constrained.schema.values import OBJECT, STRING, key

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph
    from radixrt.constrained.schema.normal_form.keywords.applicators import AnyOf, OneOf

MAX_NESTED_EXPANSIONS = 5
"""Maximum depth of nodes expanded inside one another only to prove schemas disjoint."""
DISJOINT_DEPTH = 3
"""Depth of members and items that are examined to prove schemas disjoint."""
MAX_EXAMINED_ITEMS = 8
"""Items of an array that are examined."""


def are_disjoint(graph: Graph, left: Located, right: Located) -> bool:
    """Return True if no value satisfies both schemas."""
    graph = graph.open
    known = graph.facts.disjoint
    found = known.get((left, right))
    if found is None:
        found = not possible_types(graph, left) & possible_types(graph, right) or _have_disjoint_tags(
            graph, left, right
        )
        if not found and left is not right:
            if graph.expanding > MAX_NESTED_EXPANSIONS:
                return False
            try:
                both = graph.formulas(left) + graph.formulas(right)
                found = is_empty(graph, graph.node(both), DISJOINT_DEPTH)
            except (Unsupported, RegexTooComplex):
                found = False
        known[left, right] = known[right, left] = found
    return found


def all_disjoint(graph: Graph, assertion: AnyOf | OneOf) -> bool:
    """Return True if no value satisfies two options."""
    if is_discriminated(graph, assertion):
        return True
    options = assertion.options
    return all(are_disjoint(graph, one, two) for place, one in enumerate(options) for two in options[place + 1 :])


def is_discriminated(graph: Graph, assertion: AnyOf | OneOf) -> bool:
    """Return True if all options list values, and no value twice, or if all are objects with one required member, whose
    listed values differ among the options."""
    found = graph.facts.discriminated.get(assertion)
    if found is None:
        is_listed = options_by_value(graph, assertion) is not None
        found = is_listed or _find_discriminator(graph, assertion.options)
        graph.facts.discriminated[assertion] = found
    return found


def options_by_value(graph: Graph, assertion: AnyOf | OneOf) -> Mapping[Hashable, tuple[Located, Any]] | None:
    """Return the option that lists each value, and the value; None if some option lists none, or two list one value."""
    known = graph.facts.listed_options
    if assertion not in known:
        known[assertion] = _find_listed(graph, assertion.options)
    return known[assertion]


def _find_listed(graph: Graph, options: Sequence[Located]) -> dict[Hashable, tuple[Located, Any]] | None:
    found: dict[Hashable, tuple[Located, Any]] = {}
    for option in options:
        values = listed_values(graph, Is(option, True))
        if values is None or any(key(value) in found for value in values):
            return None
        found.update({key(value): (option, value) for value in values})
    return found


def _find_discriminator(graph: Graph, options: Sequence[Located]) -> bool:
    tags = [_tags(graph, option) for option in options]
    for name in tags[0] if tags else ():
        lists = [found[name] for found in tags if name in found]
        if len(lists) == len(tags) and len(frozenset().union(*lists)) == sum(map(len, lists)):
            return True
    return False


def _have_disjoint_tags(graph: Graph, left: Located, right: Located) -> bool:
    one, two = _tags(graph, left), _tags(graph, right)
    return any(name in two and one[name].isdisjoint(two[name]) for name in one)


def _tags(graph: Graph, located: Located) -> dict[str, frozenset[Hashable]]:
    """Return the required members with their listed values; {} if the schema accepts more than objects."""
    found = graph.facts.tags.get(located)
    if found is None:
        found = _find_tags(graph, located) if possible_types(graph, located) == OBJECT else {}
        graph.facts.tags[located] = found
    return found


def _find_tags(graph: Graph, located: Located) -> dict[str, frozenset[Hashable]]:
    required, members = _named_members(graph, located)
    return _listed(graph, {name: members[name] for name in required & members.keys()})


def _listed_members(graph: Graph, located: Located) -> dict[str, frozenset[Hashable]]:
    """Return the members whose values the schema lists, where they are present, with those values."""
    found = graph.facts.listed_members.get(located)
    if found is None:
        _, members = _named_members(graph, located)
        found = graph.facts.listed_members[located] = _listed(graph, members)
    return found


def lists_other_values(graph: Graph, located: Located, values: Mapping[str, frozenset[Hashable]]) -> bool:
    """Return True if, for some member, the schema lists values and the member's value is not listed."""
    listed = _listed_members(graph, located)
    return any(name in listed and listed[name].isdisjoint(found) for name, found in values.items())


def _named_members(graph: Graph, located: Located) -> tuple[set[str], dict[str, Located]]:
    """Return the required names and the schemas of members that apply to every object of the schema."""
    required: set[str] = set()
    members: dict[str, Located] = {}
    pending = [located]
    seen: set[Located] = set()
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        for assertion in graph.assertions(one):
            if isinstance(assertion, Required):
                required.update(assertion.names)
            elif isinstance(assertion, Properties):
                members.update(assertion.members)
            else:
                pending.extend(assertion.every)
    return required, members


def _listed(graph: Graph, members: Mapping[str, Located]) -> dict[str, frozenset[Hashable]]:
    tags = {}
    for name, member in members.items():
        for formula in graph.formulas(member):
            values: Sequence[Any] | None = listed_values(graph, formula)
            if values is None:
                values = _matched_texts(graph, formula)
            if values is not None:
                tags[name] = frozenset(key(value) for value in values)
    return tags


def _matched_texts(graph: Graph, formula: Formula) -> Sequence[str] | None:
    """Return the texts of a `pattern` that only lists some, such as `^a$`, where the formula accepts strings alone."""
    if not isinstance(formula, Is) or not formula.positive or possible_types(graph, formula.located) != STRING:
        return None
    for assertion in graph.assertions(formula.located):
        if isinstance(assertion, Pattern) and isinstance(assertion.test.regex, Words):
            return assertion.test.regex.words
    return None


# Empty nodes


def is_empty(graph: Graph, node: Node, depth: int) -> bool:
    """Return True if no value satisfies the node, examining members and items to a depth. Raises Unsupported."""
    if node.formulas == NONE:
        return True
    if depth < 0 or graph.is_expanding(node):
        return False
    graph.budget.check_time(node.pointer, "oneOf")
    expansion = graph.expand(node)
    if expansion.union is not None:
        return all(is_empty(graph, part, depth - 1) for part in expansion.union)
    if expansion.values or expansion.null or expansion.booleans or expansion.numbers:
        return False
    return (
        all(_is_empty_string_set(strings) for strings in expansion.strings)
        and all(_is_empty_array(graph, shape, depth - 1) for shape in expansion.arrays)
        and all(_is_empty_object(graph, shape, depth - 1) for shape in expansion.objects)
    )


def _is_empty_string_set(strings: StringSet) -> bool:
    return bool(strings.tests or strings.excluded) and regex.is_empty(strings.language())


def _is_empty_array(graph: Graph, shape: ArrayShape, depth: int) -> bool:
    examined = range(min(shape.low, MAX_EXAMINED_ITEMS))
    return any(is_empty(graph, graph.node(shape.item_formulas(index)), depth) for index in examined)


def _is_empty_object(graph: Graph, shape: ObjectShape, depth: int) -> bool:
    required = set(shape.required)
    return any(is_empty(graph, graph.node(formulas), depth) for name, formulas in shape.members if name in required)
