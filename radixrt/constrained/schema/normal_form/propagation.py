"""`apply_all`: adds the knowledge of conditions to a branch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    StringLength,
    Type,
    UniqueItems,
)
from radixrt.constrained.schema.normal_form.branch import Branch, Frame, Frames, OpenChoice
from radixrt.constrained.schema.normal_form.conditions import (
    Alternative,
    Choice,
    Condition,
    ItemFails,
    Member,
    MemberFails,
    Negated,
    OfType,
    OnlyOne,
    SomeMember,
    UnevaluatedFails,
)
from radixrt.constrained.schema.normal_form.disjointness import are_disjoint, is_discriminated, lists_other_values
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.negation import IS_OBJECT, refute, schema_of_value
from radixrt.constrained.schema.normal_form.nodes import NONE, Either, Formulas, Is, ItemCount, Never
from radixrt.constrained.schema.normal_form.static_checks import (
    evaluates,
    evaluates_all_members,
    listed_names,
    possible_types,
)
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, StringTest
from radixrt.constrained.schema.values import ALL, ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, decimal_of, type_of

MAX_SETS = 64
"""Sets of an `anyOf`'s options that are tried when an object is closed; if there are more, each option is decided."""


def apply_all(branch: Branch, conditions: Iterable[Condition], frames: Frames = ()) -> bool:
    """Keep the values of the branch for which every condition holds.

    Args:
        frames: the frames that record the members and items evaluated by the conditions.

    Returns:
        False if no value is left; the branch is of no further use then.

    Raises:
        Unsupported: a keyword cannot be enforced.
    """
    return all(_APPLY[type(condition)](branch, condition, frames) for condition in conditions)


def choose(branch: Branch, alternatives: Iterable[Alternative], frames: Frames = ()) -> bool:
    """Keep the values for which some alternative holds; False if none is left. A real choice is left open."""
    found = tuple(alternatives)
    if len(found) <= 1:
        return bool(found) and apply_all(branch, found[0], frames)
    branch.choices.append(OpenChoice(branch.next_rank(), found, frames))
    branch.changes += 1
    return True


def assume(branch: Branch, located: Located, frames: Frames = ()) -> bool:
    """Keep the values that satisfy the schema; False if none is left. Raises Unsupported."""
    if (located, frames) in branch.assumed:
        return True
    branch.assumed.add((located, frames))
    branch.changes += bool(frames)  # what is evaluated may be new
    assertions = branch.graph.assertions(located)
    if assertions and assertions[-1].is_deferred:
        return _apply_with_frame(branch, assertions, frames, denied=None)
    return apply_all(branch, assertions, frames)


def deny(branch: Branch, located: Located) -> bool:
    """Keep the values that do not satisfy the schema; False if none is left. Raises Unsupported."""
    assertions = branch.graph.assertions(located)
    types = next((a.types for a in reversed(assertions) if isinstance(a, Type)), ALL)
    alternatives: list[Alternative] = []
    for assertion in assertions:
        if not assertion.is_deferred and (isinstance(assertion, Type) or assertion.domain & types):
            alternatives += refute(branch.graph, assertion)
    deferred = sum(assertion.is_deferred for assertion in assertions)
    alternatives += [(UnevaluatedFails(assertions, number),) for number in range(deferred)]
    return choose(branch, alternatives)


def _is(branch: Branch, formula: Is, frames: Frames) -> bool:
    return assume(branch, formula.located, frames) if formula.positive else deny(branch, formula.located)


# Applicators for the value itself


def _any_of(branch: Branch, a: AnyOf, frames: Frames) -> bool:
    """Choose an option; if evaluation is recorded, every alternative decides each option."""
    graph = branch.graph
    if frames and any(evaluates(graph, option) for option in a.options):
        if graph.closing is not None and frames == (0,):
            sets = _combinations(graph, a.options)
            if sets is not None:
                return choose(branch, sets, frames)
        return choose(branch, [_first_of(a.options, place) for place in range(len(a.options))], frames)
    live: list[Alternative] = []
    for option in a.options:
        if not graph.assertions(option):
            return True
        if possible_types(graph, option) & branch.types:
            live.append((Is(option, True),))
    return choose(branch, live)


def _combinations(graph: Graph, options: tuple[Located, ...]) -> list[Alternative] | None:
    """Return the sets of options that may hold together, at least one of which must hold; None if there are too many
    sets.

    A set does not exclude that further options hold. Where the frame only closes the object, further options would only
    admit more members, and a larger set covers that case.
    """
    sets: list[tuple[Located, ...]] = [()]
    for option in options:
        if evaluates_all_members(graph, option):
            sets.append((option,))  # no other option admits more members
        else:
            sets += [
                (*chosen, option)
                for chosen in sets
                if not any(
                    evaluates_all_members(graph, other) or are_disjoint(graph, option, other) for other in chosen
                )
            ]
        if len(sets) > MAX_SETS:
            return None
    return [tuple(Is(option, True) for option in chosen) for chosen in sorted(sets[1:], key=len)]


def _first_of(options: tuple[Located, ...], place: int) -> Alternative:
    """Return the alternative in which the option at a place is the first that holds."""
    later = tuple(Choice(((Is(option, True),), (Is(option, False),))) for option in options[place + 1 :])
    return (*(Is(option, False) for option in options[:place]), Is(options[place], True), *later)


def _one_of(branch: Branch, a: OneOf, frames: Frames) -> bool:
    possible = tuple(option for option in a.options if possible_types(branch.graph, option) & branch.types)
    return choose(branch, [(OnlyOne(a, option, possible),) for option in possible], frames)


def _only_one(branch: Branch, c: OnlyOne, frames: Frames) -> bool:
    """Assume an option, and deny the options that can hold together with it."""
    graph = branch.graph
    if c.possible.count(c.option) > 1 or not assume(branch, c.option, frames):
        return False
    if is_discriminated(graph, c.assertion):
        return True
    values = branch.required_values()
    return all(
        other is c.option
        or (values and lists_other_values(graph, other, values))
        or are_disjoint(graph, c.option, other)
        or deny(branch, other)
        for other in c.possible
        if possible_types(graph, other) & branch.types
    )


def _if(branch: Branch, a: If, frames: Frames) -> bool:
    if a.then is None and a.otherwise is None and not frames:
        return True
    then = () if a.then is None else (Is(a.then, True),)
    otherwise = () if a.otherwise is None else (Is(a.otherwise, True),)
    return choose(branch, [(Is(a.condition, True), *then), (Is(a.condition, False), *otherwise)], frames)


# Scalars


def _of_type(branch: Branch, c: OfType, frames: Frames) -> bool:
    if not branch.limit_types(c.types):
        return False
    return c.integer is None or not branch.types & NUMBER or branch.narrow_number(branch.number.whole(c.integer))


def _type(branch: Branch, a: Type, frames: Frames) -> bool:
    if not branch.limit_types(a.types):
        return False
    return not a.integer or not branch.types & NUMBER or branch.narrow_number(branch.number.whole(True))


def _bound(branch: Branch, a: Bound, frames: Frames) -> bool:
    limit = branch.number.above if a.is_lower else branch.number.below
    return branch.narrow_number(limit(a.bound, open_=a.is_open))


def _pattern(branch: Branch, a: Pattern, frames: Frames) -> bool:
    return not branch.types & STRING or branch.narrow_string(branch.string.passing(a.test))


def _negated(branch: Branch, c: Negated, frames: Frames) -> bool:
    a = c.assertion
    if isinstance(a, Enum):
        return _none_of(branch, a)
    if isinstance(a, MultipleOf):
        return branch.narrow_number(branch.number.non_multiples(a.step))
    if isinstance(a, PropertyNames):
        return some_member(branch, SomeMember(branch.graph.other_names(a), (), a.source()), frames)
    superset = a.superset()
    if superset is None:
        raise a.uncertain()
    return branch.narrow_string(branch.string.passing(StringTest(superset, False, a.test.source)))


def _none_of(branch: Branch, a: Enum) -> bool:
    values = list(a.values.values())
    strings = frozenset(value for value in values if type(value) is str)
    numbers = frozenset(decimal_of(value) for value in values if type_of(value) == NUMBER)
    if strings and branch.types & STRING:
        branch.narrow_string(branch.string.without(strings))
    if numbers and branch.types & NUMBER:
        branch.narrow_number(branch.number.without(numbers))
    if None in a.values:
        branch.drop(NULL)
    for value in values:
        if type(value) is bool and branch.types & BOOLEAN:
            branch.limit_booleans(1 if value else 2)
    return branch.types != 0 and all(
        not branch.types & type_of(value) or deny(branch, schema_of_value(branch.graph, a, value))
        for value in values
        if isinstance(value, list | dict)
    )


# Arrays


def _prefix_items(branch: Branch, a: PrefixItems, frames: Frames) -> bool:
    for index, item in enumerate(a.items):
        if not branch.add_items(index, index + 1, branch.graph.formulas(item)):
            return False
    for frame in frames:
        known = branch.frames[frame]
        branch.frames[frame] = replace(known, prefix=max(known.prefix, len(a.items)))
    return True


def _items(branch: Branch, a: Items, frames: Frames) -> bool:
    for frame in frames:
        branch.frames[frame] = replace(branch.frames[frame], all_items=True)
    return not branch.types & ARRAY or branch.add_items(a.start, None, branch.graph.formulas(a.item))


def _item_fails(branch: Branch, c: ItemFails, frames: Frames) -> bool:
    formulas = branch.graph.formulas(c.item, positive=False)
    if formulas is NONE or not branch.limit_types(ARRAY) or not branch.limit_items(c.index + 1, None):
        return False
    return branch.add_items(c.index, c.index + 1, formulas)


def _contains(branch: Branch, a: Contains, frames: Frames) -> bool:
    formulas = branch.graph.formulas(a.item)
    if a.located.resource.dialect.contains_evaluates:
        for frame in frames:
            branch.frames[frame] = replace(branch.frames[frame], kinds=(*branch.frames[frame].kinds, formulas))
    if not branch.types & ARRAY:
        return True
    if a.high is not None and a.low > a.high:
        return branch.drop(ARRAY)
    if formulas is NONE:
        return a.low == 0 or branch.drop(ARRAY)
    if not formulas:
        return branch.limit_items(a.low, a.high)
    if a.low == 0 and a.high is None:
        return True
    return branch.count_items(ItemCount(0, formulas, a.low, a.high, a.source()))


def _unique_items(branch: Branch, a: UniqueItems, frames: Frames) -> bool:
    return not branch.types & ARRAY or branch.set_unique(a.unique, a.source())


# Objects


def _properties(branch: Branch, a: Properties, frames: Frames) -> bool:
    if not branch.types & OBJECT:
        return True
    for name, member in a.members.items():
        if not branch.add_member(name, branch.graph.formulas(member)):
            return False
    for frame in frames:
        branch.frames[frame] = replace(branch.frames[frame], names=branch.frames[frame].names.union(a.members))
    return True


def _members_matching(branch: Branch, a: MembersMatching, frames: Frames) -> bool:
    for frame in frames:
        known = branch.frames[frame]
        if isinstance(a.certain, MatchingKeys):
            branch.frames[frame] = replace(known, tests=(*known.tests, a.certain.test))
        else:
            branch.frames[frame] = replace(known, all_members=True)
    return add_rule(branch, a.keys, branch.graph.formulas(a.member))


def add_rule(branch: Branch, keys: KeySet, formulas: Formulas) -> bool:
    """Every member whose name is in the set satisfies the formulas."""
    if not branch.types & OBJECT or not formulas:
        return True
    names = listed_names(branch.graph, keys)
    if names is not None:
        return all(branch.add_member(name, formulas) for name in names)
    return branch.add_rule(keys, formulas)


def _property_names(branch: Branch, a: PropertyNames, frames: Frames) -> bool:
    return not branch.types & OBJECT or add_rule(branch, branch.graph.other_names(a), NONE)


def _member_fails(branch: Branch, c: MemberFails, frames: Frames) -> bool:
    formulas = NONE if c.schema is None else branch.graph.formulas(c.schema, positive=False)
    if (c.present and formulas is NONE) or not branch.limit_types(OBJECT) or not branch.add_member(c.name, formulas):
        return False
    return (not c.present or branch.require(c.name)) and branch.types != 0


def some_member(branch: Branch, c: SomeMember, frames: Frames = ()) -> bool:
    """Some member whose name is in the set satisfies the formulas."""
    if c.formulas is NONE or not branch.limit_types(OBJECT):
        return False
    names = listed_names(branch.graph, c.keys)
    if names is None:
        return branch.add_witness(c.keys, c.formulas, c.source)
    return choose(branch, [(IS_OBJECT, Member(name, c.formulas, required=True)) for name in names])


def _member(branch: Branch, c: Member, frames: Frames) -> bool:
    return branch.add_member(c.name, c.formulas) and (not c.required or branch.require(c.name))


def _dependent_required(branch: Branch, a: DependentRequired, frames: Frames) -> bool:
    if not branch.types & OBJECT or not a.needed:
        return True
    present = Required(a.located, a.keyword, (a.name, *a.needed), {})
    return choose(branch, [(Member(a.name, NONE),), (IS_OBJECT, present)])


def _dependent_schema(branch: Branch, a: DependentSchema, frames: Frames) -> bool:
    if not branch.types & OBJECT:
        return True
    present = Required(a.located, a.keyword, (a.name,), {})
    return choose(branch, [(Member(a.name, NONE),), (IS_OBJECT, present, Is(a.then, True))], frames)


# Deferred assertions


def _unevaluated_fails(branch: Branch, c: UnevaluatedFails, frames: Frames) -> bool:
    return _apply_with_frame(branch, c.assertions, (), denied=c.denied)


def _apply_with_frame(branch: Branch, assertions: tuple[Assertion, ...], frames: Frames, *, denied: int | None) -> bool:
    """Apply all but the deferred assertions, which the solver applies when the branch has no open choice left."""
    deferred = tuple(assertion for assertion in assertions if assertion.is_deferred)
    branch.frames.append(Frame(frames, deferred, denied))
    branch.changes += 1
    inner = (*frames, len(branch.frames) - 1)
    return apply_all(branch, (assertion for assertion in assertions if not assertion.is_deferred), inner)


_APPLY: dict[type[Any], Callable[[Branch, Any, Frames], bool]] = {
    AllOf: lambda branch, a, frames: all(assume(branch, option, frames) for option in a.options),
    AnyOf: _any_of,
    ArrayLength: lambda branch, a, frames: branch.limit_items(a.low, a.high),
    Bound: _bound,
    Choice: lambda branch, c, frames: choose(branch, c.alternatives, frames),
    Contains: _contains,
    DependentRequired: _dependent_required,
    DependentSchema: _dependent_schema,
    Either: lambda branch, formula, frames: choose(branch, formula.options),
    Enum: lambda branch, a, frames: branch.limit_values(list(a.values.values())),
    FalseSchema: lambda branch, a, frames: False,
    If: _if,
    Is: _is,
    ItemCount: lambda branch, c, frames: branch.count_items(c),
    ItemFails: _item_fails,
    Items: _items,
    Member: _member,
    MemberFails: _member_fails,
    MembersMatching: _members_matching,
    MultipleOf: lambda branch, a, frames: branch.narrow_number(branch.number.multiples(a.step)),
    Negated: _negated,
    Never: lambda branch, formula, frames: False,
    Not: lambda branch, a, frames: deny(branch, a.inner),
    ObjectSize: lambda branch, a, frames: branch.limit_members(a.low, a.high, a.source()),
    OfType: _of_type,
    OneOf: _one_of,
    OnlyOne: _only_one,
    Pattern: _pattern,
    PrefixItems: _prefix_items,
    Properties: _properties,
    PropertyNames: _property_names,
    Reference: lambda branch, a, frames: assume(branch, a.target, frames),
    Required: lambda branch, a, frames: all(branch.require(name) for name in a.names),
    SomeMember: some_member,
    StringLength: lambda branch, a, frames: branch.narrow_string(branch.string.with_length(a.low, a.high)),
    Type: _type,
    UnevaluatedFails: _unevaluated_fails,
    UniqueItems: _unique_items,
}
