"""Sound but incomplete checks on schemas and formulas, from their keywords and the expansion of a few nodes.

A positive answer is certain; a negative one means that the check found no proof. The checks keep `oneOf` and long
chains of conditions from being unfolded. Answers are memoized in `Graph.facts`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from radixrt.constrained import regex
from radixrt.constrained.regex import RegexTooComplex, complement, enumerate_strings
from radixrt.constrained.regex.nodes import Words
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.assertions import (
    AllOf,
    AnyOf,
    Assertion,
    Enum,
    MembersMatching,
    Not,
    OneOf,
    Pattern,
    Properties,
    Reference,
    Required,
    UnevaluatedProperties,
    accepted_types,
    in_place,
)
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import (
    NEVER,
    NONE,
    ArrayShape,
    Formula,
    Formulas,
    Is,
    Node,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, RemainingKeys, StringSet
from radixrt.constrained.schema.normal_form.validation import holds
from radixrt.constrained.schema.values import ALL, OBJECT, STRING, key

MAX_NESTED_EXPANSIONS = 5
"""Maximum depth of nodes expanded inside one another only to prove schemas disjoint."""
DISJOINT_DEPTH = 3
"""Depth of members and items that are examined to prove schemas disjoint."""
MAX_LISTED_NAMES = 32
"""A pattern that at most this many property names match is replaced by those names."""
MAX_EXAMINED_ITEMS = 8
"""Items of an array that are examined."""
_EVALUATING = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "items",
        "patternProperties",
        "prefixItems",
        "properties",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


def possible_types(graph: Graph, located: Located) -> int:
    """Return an upper bound on the types of which the schema accepts a value."""
    known = graph.facts.types
    found = known.get(located)
    if found is None:
        known[located] = ALL  # the answer for schemas that contain themselves
        found = ALL
        for assertion in graph.assertions(located):
            found &= accepted_types(assertion)
            if isinstance(assertion, Reference):
                found &= possible_types(graph, assertion.target)
            elif isinstance(assertion, AllOf):
                for option in assertion.options:
                    found &= possible_types(graph, option)
            elif isinstance(assertion, AnyOf | OneOf):
                of_options = 0
                for option in assertion.options:
                    of_options |= possible_types(graph, option)
                found &= of_options
        known[located] = found
    return found


def evaluates(graph: Graph, located: Located) -> bool:
    """Return False if the schema certainly evaluates no members and no items of the value."""
    known = graph.facts.evaluates
    found = known.get(located)
    if found is None:
        found = known[located] = any(
            assertion.keyword in _EVALUATING or any(evaluates(graph, part) for part in in_place(assertion))
            for assertion in graph.assertions(located)
        )
    return found


def declares_members(graph: Graph, formulas: Formulas) -> bool:
    """Return True if a schema that the formulas apply to the value itself names members, one by one or by patterns."""
    return any(
        isinstance(formula, Is) and formula.positive and _declares(graph, formula.located) for formula in formulas
    )


def _declares(graph: Graph, located: Located) -> bool:
    known = graph.facts.declares
    found = known.get(located)
    if found is None:
        found = known[located] = any(
            (isinstance(assertion, Properties) and bool(assertion.members))
            or (isinstance(assertion, MembersMatching) and isinstance(assertion.keys, MatchingKeys))
            or (not isinstance(assertion, Not) and any(_declares(graph, part) for part in in_place(assertion)))
            for assertion in graph.assertions(located)
        )
    return found


def evaluates_all_members(graph: Graph, located: Located) -> bool:
    """Return True if the schema certainly evaluates every member of an object that satisfies it."""
    known = graph.facts.evaluates_all
    found = known.get(located)
    if found is None:
        found = known[located] = any(_covers_all(graph, assertion) for assertion in graph.assertions(located))
    return found


def _covers_all(graph: Graph, assertion: Assertion) -> bool:
    if isinstance(assertion, AllOf | Reference):
        return any(evaluates_all_members(graph, part) for part in in_place(assertion))
    if isinstance(assertion, AnyOf | OneOf):
        return all(evaluates_all_members(graph, part) for part in in_place(assertion))
    is_rest = isinstance(assertion, MembersMatching) and not isinstance(assertion.keys, MatchingKeys)
    return is_rest or isinstance(assertion, UnevaluatedProperties)


# Formulas


def contradict(graph: Graph, formulas: Formulas) -> bool:
    """Return True if the formulas exclude one another by their types, or by the values that one of them lists."""
    conjunction = frozenset(formulas)
    found = graph.facts.contradict.get(conjunction)
    if found is None:
        found = graph.facts.contradict[conjunction] = _find_contradiction(graph, formulas)
    return found


def _find_contradiction(graph: Graph, formulas: Formulas) -> bool:
    if NEVER in formulas or not _types(graph, formulas):
        return True
    try:
        return _candidates(graph, formulas) == []
    except Unsupported:
        return False


def _types(graph: Graph, formulas: Formulas) -> int:
    mask = ALL
    for formula in formulas:
        if isinstance(formula, Is) and formula.positive:
            mask &= possible_types(graph, formula.located)
    return mask


def _candidates(graph: Graph, formulas: Formulas) -> list[Any] | None:
    """Return the values that satisfy the formulas, if one of the formulas lists values. Raises Unsupported."""
    known = graph.facts.candidates
    length = len(formulas)
    while length and formulas[:length] not in known:
        length -= 1
    found = known[formulas[:length]] if length else None
    for place in range(length, len(formulas)):
        if found is None:
            found = listed_values(graph, formulas[place])
            if found is not None:
                before = formulas[:place]
                found = [value for value in found if all(holds(graph, other, value) for other in before)]
        if found is not None:
            found = [value for value in found if holds(graph, formulas[place], value)]
        known[formulas[: place + 1]] = found
    return found


def implies(graph: Graph, known: Formulas, formulas: Formulas) -> bool:
    """Return True if the known formulas imply the others."""
    if known is NONE:
        return True
    if formulas is NONE or not known:
        return False
    left = [formula for formula in formulas if formula not in known]
    if not left:
        return True
    found = graph.facts.implies.get((known, formulas))
    if found is None:
        found = graph.facts.implies[known, formulas] = _find_implication(graph, known, left)
    return found


def _find_implication(graph: Graph, known: Formulas, formulas: list[Formula]) -> bool:
    if graph.closing is not None and declares_members(graph, tuple(formulas)):
        return False  # the members that they declare belong to a closed object
    try:
        values = _candidates(graph, known)
        if values is not None:
            return all(holds(graph, formula, value) for formula in formulas for value in values)
    except Unsupported:
        return False
    mask = _types(graph, known)
    return all(
        isinstance(formula, Is) and not formula.positive and not possible_types(graph, formula.located) & mask
        for formula in formulas
    )


def listed_values(graph: Graph, formula: Formula) -> list[Any] | None:
    """Return the values of an `enum` or `const` that the formula contains, one of which the value must equal."""
    if not isinstance(formula, Is) or not formula.positive:
        return None
    for assertion in graph.assertions(formula.located):
        if isinstance(assertion, Enum):
            return list(assertion.values.values())
        if isinstance(assertion, Reference):
            for inner in graph.formulas(assertion.target):
                values = listed_values(graph, inner)
                if values is not None:
                    return values
    return None


def listed_names(graph: Graph, keys: KeySet) -> list[str] | None:
    """Return the names of a set, sorted; None if there are more than `MAX_LISTED_NAMES`."""
    if isinstance(keys, RemainingKeys) and (keys.names or len(keys.tests) != 1):
        return None
    found = graph.facts.listed_names.get(keys)
    if found is None:
        test = keys.tests[0]
        language = test.language() if isinstance(keys, MatchingKeys) else complement(test.language())
        names = enumerate_strings(language, MAX_LISTED_NAMES) if language.max_length is not None else None
        found = graph.facts.listed_names[keys] = (None if names is None else sorted(names),)
    return found[0]


# Disjoint schemas


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
    """Return True if all options are objects with one required member, whose listed values differ among the options."""
    found = graph.facts.discriminated.get(assertion)
    if found is None:
        found = graph.facts.discriminated[assertion] = _find_discriminator(graph, assertion.options)
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
    required: set[str] = set()
    members: dict[str, Located] = {}
    pending = [located]
    while pending:
        for assertion in graph.assertions(pending.pop()):
            if isinstance(assertion, Required):
                required.update(assertion.names)
            elif isinstance(assertion, Properties):
                members.update(assertion.members)
            elif isinstance(assertion, Reference):
                pending.append(assertion.target)
            elif isinstance(assertion, AllOf):
                pending.extend(assertion.options)
    tags = {}
    for name in required & members.keys():
        for formula in graph.formulas(members[name]):
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
