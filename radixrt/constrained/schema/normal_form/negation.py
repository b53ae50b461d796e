"""`refute`: the negation of an assertion, as alternatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.assertions import (
    AllOf,
    AnyOf,
    ArrayLength,
    Assertion,
    Bound,
    Contains,
    DependentRequired,
    DependentSchema,
    Enum,
    FalseSchema,
    If,
    Items,
    MembersMatching,
    MultipleOf,
    Not,
    ObjectSize,
    OneOf,
    Pattern,
    PrefixItems,
    Properties,
    PropertyNames,
    Reference,
    Required,
    Size,
    StringLength,
    Type,
    UniqueItems,
)
from radixrt.constrained.schema.normal_form.conditions import (
    Alternative,
    ItemFails,
    Member,
    MemberFails,
    Negated,
    OfType,
    SomeMember,
)
from radixrt.constrained.schema.normal_form.disjointness import are_disjoint
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import NONE, Is, ItemCount
from radixrt.constrained.schema.values import ALL, ARRAY, NUMBER, OBJECT, STRING

Alternatives = list[Alternative]
IS_NUMBER, IS_STRING, IS_ARRAY, IS_OBJECT = OfType(NUMBER), OfType(STRING), OfType(ARRAY), OfType(OBJECT)


def refute(graph: Graph, assertion: Assertion) -> Alternatives:
    """Return alternatives that together hold for exactly the values that do not satisfy the assertion.

    Deferred assertions have no negation on their own: see `conditions.UnevaluatedFails`.
    """
    return _REFUTE[type(assertion)](graph, assertion)


def _one_of(graph: Graph, a: OneOf) -> Alternatives:
    found: Alternatives = [tuple(Is(option, False) for option in a.options)]
    for place, one in enumerate(a.options):
        for two in a.options[place + 1 :]:
            if one is two or not are_disjoint(graph, one, two):
                found.append((Is(one, True), Is(two, True)))
    return found


def _if(graph: Graph, a: If) -> Alternatives:
    found: Alternatives = []
    if a.then is not None:
        found.append((Is(a.condition, True), Is(a.then, False)))
    if a.otherwise is not None:
        found.append((Is(a.condition, False), Is(a.otherwise, False)))
    return found


def _type(graph: Graph, a: Type) -> Alternatives:
    if a.integer:
        return [(OfType(ALL & ~(a.types & ~NUMBER), integer=False),)]
    return [(OfType(ALL & ~a.types),)]


def _size(graph: Graph, a: Size) -> Alternatives:
    if a.high is not None:
        return [(OfType(a.domain), replace(a, low=a.high + 1, high=None))]
    return [(OfType(a.domain), replace(a, low=0, high=a.low - 1))] if a.low else []


def _bound(graph: Graph, a: Bound) -> Alternatives:
    return [(IS_NUMBER, replace(a, is_lower=not a.is_lower, is_open=not a.is_open))]


def _items(graph: Graph, a: Items) -> Alternatives:
    formulas = graph.formulas(a.item, positive=False)
    return [] if formulas is NONE else [(IS_ARRAY, ItemCount(a.start, formulas, 1, None, a.source()))]


def _contains(graph: Graph, a: Contains) -> Alternatives:
    found: Alternatives = []
    if a.low > 0:
        found.append((IS_ARRAY, replace(a, low=0, high=a.low - 1)))
    if a.high is not None:
        found.append((IS_ARRAY, replace(a, low=a.high + 1, high=None)))
    return found


def _members_matching(graph: Graph, a: MembersMatching) -> Alternatives:
    formulas = graph.formulas(a.member, positive=False)
    return [] if formulas is NONE else [(SomeMember(a.certain, formulas, a.source()),)]


def _dependent_required(graph: Graph, a: DependentRequired) -> Alternatives:
    present = Required(a.located, a.keyword, (a.name,), {})
    return [(IS_OBJECT, present, Member(name, NONE)) for name in a.needed]


def _dependent_schema(graph: Graph, a: DependentSchema) -> Alternatives:
    return [(IS_OBJECT, Required(a.located, a.keyword, (a.name,), {}), Is(a.then, False))]


_REFUTE: dict[type[Assertion], Callable[[Graph, Any], Alternatives]] = {
    AllOf: lambda graph, a: [(Is(option, False),) for option in a.options],
    AnyOf: lambda graph, a: [tuple(Is(option, False) for option in a.options)],
    ArrayLength: _size,
    Bound: _bound,
    Contains: _contains,
    DependentRequired: _dependent_required,
    DependentSchema: _dependent_schema,
    Enum: lambda graph, a: [(Negated(a),)],
    FalseSchema: lambda graph, a: [()],
    If: _if,
    Items: _items,
    MembersMatching: _members_matching,
    MultipleOf: lambda graph, a: [(IS_NUMBER, Negated(a))],
    Not: lambda graph, a: [(Is(a.inner, True),)],
    ObjectSize: _size,
    OneOf: _one_of,
    Pattern: lambda graph, a: [(IS_STRING, Negated(a))],
    PrefixItems: lambda graph, a: [(ItemFails(index, item),) for index, item in enumerate(a.items)],
    Properties: lambda graph, a: [
        (MemberFails(name, member, present=True),) for name, member in a.members.items() if name not in a.required
    ],
    PropertyNames: lambda graph, a: [(IS_OBJECT, Negated(a))],
    Reference: lambda graph, a: [(Is(a.target, False),)],
    Required: lambda graph, a: [(MemberFails(name, a.declared.get(name), present=False),) for name in a.names],
    StringLength: _size,
    Type: _type,
    UniqueItems: lambda graph, a: [(IS_ARRAY, replace(a, unique=False))],
}


def schema_of_value(graph: Graph, a: Enum, value: list[Any] | dict[str, Any]) -> Located:
    """Return a schema for exactly this array or object, one level deep."""
    schema: dict[str, Any]
    if isinstance(value, list):
        items = [{"const": item} for item in value]
        schema = {"type": "array", "minItems": len(value), "maxItems": len(value), "prefixItems": items}
    else:
        members = {name: {"const": member} for name, member in value.items()}
        schema = {"type": "object", "required": list(value), "properties": members, "additionalProperties": False}
    return graph.document.synthetic(schema, a.located)
