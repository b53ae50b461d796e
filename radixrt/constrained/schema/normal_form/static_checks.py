"""Sound but incomplete checks on schemas and formulas, from their keywords and the expansion of a few nodes.

A positive answer is certain; a negative one means that the check found no proof. The checks keep `oneOf` and long
chains of conditions from being unfolded. Answers are memoized in `Graph.facts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.keywords.base import REFERENCES, Assertion
from radixrt.constrained.schema.normal_form.keywords.objects import MembersMatching, Properties, UnevaluatedProperties
from radixrt.constrained.schema.normal_form.keywords.scalars import Enum
from radixrt.constrained.schema.normal_form.nodes import NEVER, NONE, Formula, Formulas, Is
from radixrt.constrained.schema.normal_form.strings import MatchingKeys
from radixrt.constrained.schema.normal_form.validation import holds
from radixrt.constrained.schema.values import ALL

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph

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
            found &= assertion.accepted_types
            for part in assertion.every:
                found &= possible_types(graph, part)
            if assertion.some:
                of_options = 0
                for option in assertion.some:
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
            assertion.keyword in _EVALUATING or any(evaluates(graph, part) for part in assertion.in_place)
            for assertion in graph.assertions(located)
        )
    return found


def declares_members(graph: Graph, formulas: Formulas) -> bool:
    """Return True if a schema that applies to the value itself declares members, by name or by pattern."""
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
            or (assertion.keyword != "not" and any(_declares(graph, part) for part in assertion.in_place))
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
    if assertion.some:
        return all(evaluates_all_members(graph, part) for part in assertion.some)
    if any(evaluates_all_members(graph, part) for part in assertion.every):
        return True
    is_rest = isinstance(assertion, MembersMatching) and not isinstance(assertion.keys, MatchingKeys)
    return is_rest or isinstance(assertion, UnevaluatedProperties)


# Formulas


def contradict(graph: Graph, formulas: Formulas) -> bool:
    """Return True if the formulas exclude one another by their types, or by the values that a formula lists."""
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
    """Return the values of an `enum` or `const` in the formula, to which the formula restricts the value."""
    if not isinstance(formula, Is) or not formula.positive:
        return None
    for assertion in graph.assertions(formula.located):
        if isinstance(assertion, Enum):
            return list(assertion.values.values())
        if assertion.keyword in REFERENCES:
            for inner in graph.formulas(assertion.every[0]):
                values = listed_values(graph, inner)
                if values is not None:
                    return values
    return None
