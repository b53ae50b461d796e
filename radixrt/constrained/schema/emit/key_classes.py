"""Classes of the undeclared names of an object, which all of its rules treat alike.

Each pattern of the object either matches all names of a class or none, and the values of a class share one node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from radixrt.constrained.regex import (
    ANY,
    Regex,
    complement,
    divide,
    intersect,
    is_empty,
    json_string,
    literals,
    matches,
)
from radixrt.constrained.schema.emit.free_parts import FREE_KEY
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas, ObjectShape
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, StringTest
from radixrt.constrained.schema.values import text_of

ANY_KEY = json_string(ANY, ":")


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Undeclared names.

    Attributes:
        tests: the tests of the object that all names pass.
        language: the names, still with the declared names of the object (`declared`).
        formulas: the formulas that the values satisfy.
    """

    tests: frozenset[StringTest]
    language: Regex
    formulas: Formulas
    declared: tuple[str, ...] = ()

    def names(self) -> Regex:
        """Return the names. Raises RegexTooComplex."""
        return intersect(self.language, complement(literals(self.declared))) if self.declared else self.language

    def keys(self, *, bounded: bool) -> Regex:
        """Return the names as JSON strings, each with its colon. Raises RegexTooComplex.

        With the colon they need not be told apart from string values, which lets declared keys be single literals.

        Args:
            bounded: exclude long names where no keyword says anything about names.
        """
        if self.language is not ANY:
            return json_string(self.names(), ":")
        every = FREE_KEY if bounded else ANY_KEY
        if not self.declared:
            return every
        return intersect(every, complement(literals([text_of(name) + ":" for name in self.declared])))

    def is_empty(self) -> bool:
        """Return whether the class has no name. Raises RegexTooComplex."""
        return self.language is not ANY and is_empty(self.names())


def in_keys(passed: frozenset[StringTest], keys: KeySet) -> bool:
    """Return whether undeclared names that pass exactly these tests are in the set."""
    return keys.test in passed if isinstance(keys, MatchingKeys) else passed.isdisjoint(keys.tests)


def key_classes(graph: Graph, shape: ObjectShape, pointer: str) -> list[KeyClass]:
    """Return the classes of undeclared names that have names and values.

    The languages are disjoint, and every possible undeclared name is in some language.

    Raises:
        Unsupported: there are too many classes.
        RegexTooComplex: a language is too complex.
    """
    sets = [keys for keys, _ in shape.rules] + [keys for keys, _, _ in shape.witnesses]
    tests = list(dict.fromkeys([test for keys in sets for test in keys.tests]))
    if not tests and not shape.witnesses:
        formulas = _demanded(shape, frozenset())
        declared = tuple([name for name, _ in shape.members])
        return [] if formulas is NONE else [KeyClass(frozenset(), ANY, formulas, declared)]
    limit = graph.budget.limits.key_classes
    graph.budget.check_time(pointer, "patternProperties")
    division = divide(tuple([test.language() for test in tests]), limit)
    if len(division.kinds) > limit:
        reason = f"the patterns divide the names of one object into more than {limit} kinds"
        raise over_limit(pointer, "patternProperties", reason)
    rest = _demanded(shape, frozenset())
    groups: dict[object, tuple[Formulas, list[frozenset[int]]]] = {}  # of kinds whose values share a node
    for kind in division.kinds:
        formulas = _demanded(shape, frozenset([tests[place] for place in kind]))
        if shape.witnesses:
            groups[kind] = formulas, [kind]  # each alone: a witness may be of some of them
        elif rest is NONE or frozenset(formulas) != frozenset(rest):
            groups.setdefault(frozenset(formulas), (formulas, []))[1].append(kind)
    classes: list[KeyClass] = []
    if rest is not NONE:
        apart = [kind for _, kinds in groups.values() for kind in kinds]
        classes.append(KeyClass(frozenset(), division.all_but(*apart) if apart else ANY, rest))
    for formulas, kinds in groups.values():
        if formulas is not NONE:
            passed = frozenset([tests[place] for place in frozenset.intersection(*kinds)])
            classes.append(KeyClass(passed, division.strings_of(*kinds), formulas))
    classes = [_with_declared(one, shape) for one in classes]
    return [one for one in classes if not one.is_empty()]


def _with_declared(one: KeyClass, shape: ObjectShape) -> KeyClass:
    declared = tuple(name for name, _ in shape.members if one.language is ANY or matches(one.language, name))
    return replace(one, declared=declared) if declared else one


def _demanded(shape: ObjectShape, passed: frozenset[StringTest]) -> Formulas:
    """Return the formulas for undeclared members whose names pass exactly these tests."""
    demanded: Formulas = ()
    for keys, formulas in shape.rules:
        if in_keys(passed, keys):
            if formulas is NONE:
                return NONE
            demanded += formulas
    return demanded
