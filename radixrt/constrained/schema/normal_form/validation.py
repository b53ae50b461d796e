"""Validation of parsed values against the keywords of a schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radixrt.constrained.regex import matches
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
    StringLength,
    Type,
    UnevaluatedItems,
    UnevaluatedProperties,
    UniqueItems,
)
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Either, Formula, Is
from radixrt.constrained.schema.normal_form.numbers import is_multiple
from radixrt.constrained.schema.values import NUMBER, decimal_of, is_integer, key, type_of


@dataclass(slots=True)
class Evaluated:
    """Members (by name) and items (by index) of one value that some keyword has evaluated."""

    names: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a validation of a value against a schema.

    Attributes:
        graph: the graph of the schema.
        exact: the value may have to fail, and an uncertain format raises Unsupported.
        evaluated: collects the members and items evaluated by succeeding keywords; None if no keyword needs them.
    """

    graph: Graph
    exact: bool = False
    evaluated: Evaluated | None = None

    def satisfies(self, located: Located, value: Any, *, exact: bool = False) -> bool:
        """Return whether a child of the validated value satisfies a schema."""
        return satisfies(self.graph, located, value, exact=exact or self.exact)

    def satisfies_in_place(self, located: Located, value: Any, *, exact: bool = False) -> bool:
        """Return whether the validated value itself satisfies a schema; if so, collect the members and items evaluated
        by the schema."""
        return satisfies(self.graph, located, value, exact=exact or self.exact, evaluated=self.evaluated)


def holds(graph: Graph, formula: Formula, value: Any, *, exact: bool = False) -> bool:
    """Return whether a value satisfies a formula. Raises Unsupported where an uncertain format decides."""
    if isinstance(formula, Is):
        if formula.positive:
            return satisfies(graph, formula.located, value, exact=exact)
        return not satisfies(graph, formula.located, value, exact=True)
    if isinstance(formula, Either):
        return any(all(holds(graph, part, value, exact=exact) for part in option) for option in formula.options)
    return False


def satisfies(
    graph: Graph, located: Located, value: Any, *, exact: bool = False, evaluated: Evaluated | None = None
) -> bool:
    """Return whether the value satisfies the schema; if so, add the members and items evaluated by the schema to
    `evaluated`.

    Raises:
        Unsupported: `exact`, and whether the value is of some format is uncertain.
    """
    graph.budget.tick(located.pointer)
    assertions = graph.assertions(located)
    own = None
    if evaluated is not None or (assertions and assertions[-1].is_deferred):
        own = Evaluated()
    context = Context(graph, exact, own)
    for assertion in assertions:
        if not _VALIDATE[type(assertion)](context, assertion, value):
            return False
    if evaluated is not None and own is not None:
        evaluated.names |= own.names
        evaluated.items |= own.items
    return True


def _any_of(context: Context, a: AnyOf, value: Any) -> bool:
    found = False
    for option in a.options:
        found = context.satisfies_in_place(option, value) or found
        if found and context.evaluated is None:
            return True
    return found


def _one_of(context: Context, a: OneOf, value: Any) -> bool:
    return sum(context.satisfies_in_place(option, value, exact=True) for option in a.options) == 1


def _if(context: Context, a: If, value: Any) -> bool:
    taken = a.then if context.satisfies_in_place(a.condition, value, exact=True) else a.otherwise
    return taken is None or context.satisfies_in_place(taken, value)


def _type(context: Context, a: Type, value: Any) -> bool:
    bit = type_of(value)
    return bool(bit & a.types) and (bit != NUMBER or not a.integer or is_integer(value))


def _pattern(context: Context, a: Pattern, value: Any) -> bool:
    if type(value) is not str or matches(a.test.regex, value):
        return True
    if context.exact:
        superset = a.superset()
        if superset is None or (superset is not a.test.regex and matches(superset, value)):
            raise a.uncertain()
    return False


def _bound(context: Context, a: Bound, value: Any) -> bool:
    if type_of(value) != NUMBER:
        return True
    number = decimal_of(value)
    return not a.is_open if number == a.bound else (number > a.bound) is a.is_lower


def _prefix_items(context: Context, a: PrefixItems, value: Any) -> bool:
    if type(value) is not list:
        return True
    if context.evaluated is not None:
        context.evaluated.items.update(range(min(len(value), len(a.items))))
    return all(context.satisfies(schema, item) for schema, item in zip(a.items, value))


def _items(context: Context, a: Items, value: Any) -> bool:
    if type(value) is not list:
        return True
    if context.evaluated is not None:
        context.evaluated.items.update(range(a.start, len(value)))
    return all(context.satisfies(a.item, item) for item in value[a.start :])


def _contains(context: Context, a: Contains, value: Any) -> bool:
    if type(value) is not list:
        return True
    exact = a.high is not None
    found = [index for index, item in enumerate(value) if context.satisfies(a.item, item, exact=exact)]
    if context.evaluated is not None and a.located.resource.dialect.contains_evaluates:
        context.evaluated.items.update(found)
    return len(found) >= a.low and (a.high is None or len(found) <= a.high)


def _unevaluated_items(context: Context, a: UnevaluatedItems, value: Any) -> bool:
    if type(value) is not list or context.evaluated is None:
        return True
    left = [index for index in range(len(value)) if index not in context.evaluated.items]
    context.evaluated.items.update(left)
    return all(context.satisfies(a.item, value[index]) for index in left)


def _properties(context: Context, a: Properties, value: Any) -> bool:
    if type(value) is not dict:
        return True
    present = [name for name in a.members if name in value]
    if context.evaluated is not None:
        context.evaluated.names.update(present)
    return all(context.satisfies(a.members[name], value[name]) for name in present)


def _members_matching(context: Context, a: MembersMatching, value: Any) -> bool:
    if type(value) is not dict:
        return True
    present = [name for name in value if name in a.keys]
    if context.evaluated is not None:
        context.evaluated.names.update(present)
    return all(context.satisfies(a.member, value[name]) for name in present)


def _unevaluated_properties(context: Context, a: UnevaluatedProperties, value: Any) -> bool:
    if type(value) is not dict or context.evaluated is None:
        return True
    left = [name for name in value if name not in context.evaluated.names]
    context.evaluated.names.update(left)
    return all(context.satisfies(a.member, value[name]) for name in left)


_VALIDATE: dict[type[Assertion], Callable[[Context, Any, Any], bool]] = {
    AllOf: lambda c, a, v: all(c.satisfies_in_place(option, v) for option in a.options),
    AnyOf: _any_of,
    ArrayLength: lambda c, a, v: type(v) is not list or a.contains(len(v)),
    Bound: _bound,
    Contains: _contains,
    DependentRequired: lambda c, a, v: type(v) is not dict or a.name not in v or all(name in v for name in a.needed),
    DependentSchema: lambda c, a, v: type(v) is not dict or a.name not in v or c.satisfies_in_place(a.then, v),
    Enum: lambda c, a, v: key(v) in a.values,
    FalseSchema: lambda c, a, v: False,
    If: _if,
    Items: _items,
    MembersMatching: _members_matching,
    MultipleOf: lambda c, a, v: type_of(v) != NUMBER or is_multiple(decimal_of(v), a.step),
    Not: lambda c, a, v: not c.satisfies(a.inner, v, exact=True),
    ObjectSize: lambda c, a, v: type(v) is not dict or a.contains(len(v)),
    OneOf: _one_of,
    Pattern: _pattern,
    PrefixItems: _prefix_items,
    Properties: _properties,
    PropertyNames: lambda c, a, v: type(v) is not dict or all(c.satisfies(a.names, name) for name in v),
    Reference: lambda c, a, v: c.satisfies_in_place(a.target, v),
    Required: lambda c, a, v: type(v) is not dict or all(name in v for name in a.names),
    StringLength: lambda c, a, v: type(v) is not str or a.contains(len(v)),
    Type: _type,
    UnevaluatedItems: _unevaluated_items,
    UnevaluatedProperties: _unevaluated_properties,
    UniqueItems: lambda c, a, v: type(v) is not list or len({key(item) for item in v}) == len(v),
}
