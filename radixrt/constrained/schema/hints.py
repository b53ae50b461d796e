"""What can be told about formulas quickly, by looking at their keywords and working out a few nodes at most.

Every answer errs on the safe side: "yes" is certain, "no" may only mean that it is not plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.regex import RegexTooComplex, complement
from radixrt.constrained.schema.disjoint import discriminated, surely_empty, told_apart
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.formula import NEVER, NONE, Formula, Formulas, Is
from radixrt.constrained.schema.keys import KeySet, Matching, Rest
from radixrt.constrained.schema.logic_assertions import AllOfAssertion, AnyOfAssertion, OneOfAssertion, RefAssertion
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.scalar_assertions import EnumAssertion
from radixrt.constrained.schema.values import ALL

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph

NESTED_QUESTIONS = 5
"""Nodes that may be worked out inside one another, only to find out whether schemas exclude one another."""
LOOKED_INTO = 3
"""Members and items of members that are looked into for the same reason."""
LISTED_NAMES = 32
"""A pattern for property names that has at most this many is taken as those."""
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


class Hints:
    """Answers about the formulas of one graph, each worked out once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._accepts: dict[Located, int] = {}
        self._evaluates: dict[Located, bool] = {}
        self._disjoint: dict[tuple[Located, Located], bool] = {}
        self._contradict: dict[frozenset[Formula], bool] = {}
        self._implies: dict[tuple[Formulas, Formulas], bool] = {}
        self._remaining: dict[Formulas, list[Any] | None] = {}
        self._listed_names: dict[KeySet, tuple[list[str] | None]] = {}

    def accepts(self, located: Located) -> int:
        """Types of values that the schema may accept: a quick upper bound."""
        found = self._accepts.get(located)
        if found is None:
            self._accepts[located] = ALL  # while it is worked out, for schemas that contain themselves
            found = ALL
            for assertion in self._graph.assertions(located):
                found &= assertion.accepts
                if isinstance(assertion, RefAssertion):
                    found &= self.accepts(assertion.target)
                elif isinstance(assertion, AllOfAssertion):
                    for option in assertion.options:
                        found &= self.accepts(option)
                elif isinstance(assertion, AnyOfAssertion | OneOfAssertion):
                    below = 0
                    for option in assertion.options:
                        below |= self.accepts(option)
                    found &= below
            self._accepts[located] = found
        return found

    def evaluates(self, located: Located) -> bool:
        """Whether the schema may evaluate members or items of the value."""
        found = self._evaluates.get(located)
        if found is None:
            found = self._evaluates[located] = any(
                assertion.keyword in _EVALUATING or any(self.evaluates(part) for part in assertion.in_place())
                for assertion in self._graph.assertions(located)
            )
        return found

    def contradict(self, formulas: Formulas) -> bool:
        """Whether the formulas plainly exclude one another: by their types, or because one lists single values."""
        conjunction = frozenset(formulas)
        found = self._contradict.get(conjunction)
        if found is None:
            found = self._contradict[conjunction] = self._do_contradict(formulas)
        return found

    def _do_contradict(self, formulas: Formulas) -> bool:
        if NEVER in formulas or not self._types(formulas):
            return True
        try:
            return self._candidates(formulas) == []
        except Unsupported:
            return False

    def _types(self, formulas: Formulas) -> int:
        """Types of values that may satisfy the formulas: a quick upper bound."""
        mask = ALL
        for formula in formulas:
            if isinstance(formula, Is) and formula.positive:
                mask &= self.accepts(formula.located)
        return mask

    def _candidates(self, formulas: Formulas) -> list[Any] | None:
        """The values that satisfy the formulas, if one of them plainly lists values. Raises Unsupported."""
        known = len(formulas)
        while known and formulas[:known] not in self._remaining:
            known -= 1
        found = self._remaining[formulas[:known]] if known else None
        for place in range(known, len(formulas)):
            if found is None:
                found = self.single_values(formulas[place])
                if found is not None:
                    before = formulas[:place]
                    found = [value for value in found if all(self._graph.holds(other, value) for other in before)]
            if found is not None:
                found = [value for value in found if self._graph.holds(formulas[place], value)]
            self._remaining[formulas[: place + 1]] = found
        return found

    def implies(self, known: Formulas, formulas: Formulas) -> bool:
        """Whether what is known of a value plainly implies the formulas."""
        if known is NONE:
            return True
        if formulas is NONE or not known:
            return False
        left = [formula for formula in formulas if formula not in known]
        if not left:
            return True
        place = (known, formulas)
        found = self._implies.get(place)
        if found is None:
            found = self._implies[place] = self._does_imply(known, left)
        return found

    def _does_imply(self, known: Formulas, formulas: list[Formula]) -> bool:
        try:
            values = self._candidates(known)
            if values is not None:
                return all(self._graph.holds(formula, value) for formula in formulas for value in values)
        except Unsupported:
            return False
        mask = self._types(known)
        return all(
            isinstance(formula, Is) and not formula.positive and not self.accepts(formula.located) & mask
            for formula in formulas
        )

    def told_apart(self, options: list[Located]) -> bool:
        """Whether all are objects with one required member of whose listed values each has its own."""
        return told_apart(self._graph, options)

    def all_disjoint(self, options: list[Located]) -> bool:
        """Whether it is certain that no value satisfies two of the schemas."""
        if told_apart(self._graph, options):
            return True
        return not any(not self.disjoint(one, two) for place, one in enumerate(options) for two in options[place + 1 :])

    def disjoint(self, left: Located, right: Located) -> bool:
        """Whether it is certain that no value satisfies both schemas."""
        place = (left, right)
        found = self._disjoint.get(place)
        if found is None:
            found = not self.accepts(left) & self.accepts(right) or discriminated(self._graph, left, right)
            if not found and left is not right:
                if self._graph.expanding > NESTED_QUESTIONS:
                    return False
                try:
                    both = self._graph.formulas(left) + self._graph.formulas(right)
                    found = surely_empty(self._graph, self._graph.node(both), LOOKED_INTO)
                except (Unsupported, RegexTooComplex):
                    found = False
            self._disjoint[place] = self._disjoint[right, left] = found
        return found

    def listed_names(self, keys: KeySet) -> list[str] | None:
        """The names of a set, if they are few; None if they are many."""
        if isinstance(keys, Rest) and (keys.names or len(keys.tests) != 1):
            return None
        found = self._listed_names.get(keys)
        if found is None:
            test = keys.tests[0]
            language = test.language() if isinstance(keys, Matching) else complement(test.language())
            names = language.enumerate(LISTED_NAMES) if language.max_length is not None else None
            found = self._listed_names[keys] = (None if names is None else sorted(names),)
        return found[0]

    def single_values(self, formula: Formula) -> list[Any] | None:
        """Values one of which the value must equal, if the formula plainly says so."""
        if not isinstance(formula, Is) or not formula.positive:
            return None
        for assertion in self._graph.assertions(formula.located):
            if isinstance(assertion, EnumAssertion):
                return assertion.values
            if isinstance(assertion, RefAssertion):
                for inner in self._graph.formulas(assertion.target):
                    values = self.single_values(inner)
                    if values is not None:
                        return values
        return None
