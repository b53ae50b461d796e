"""Classes of the undeclared names of an object, which all of its rules treat alike.

Each pattern of the object either matches all names of a class or none, and the values of a class share one node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from radixrt.constrained.regex import (
    ANY,
    Regex,
    alternate,
    complement,
    intersect,
    is_disjoint,
    is_empty,
    json_string,
    literals,
    matches,
)
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import NONE, Formula, Formulas, ObjectShape
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

    def keys(self) -> Regex:
        """Return the names as JSON strings, each with its colon. Raises RegexTooComplex.

        With the colon they need not be told apart from string values, which lets declared keys be single literals.
        """
        if self.language is ANY and self.declared:
            return intersect(ANY_KEY, complement(literals([text_of(name) + ":" for name in self.declared])))
        return json_string(self.names(), ":")

    def is_empty(self) -> bool:
        """Return whether the class has no name. Raises RegexTooComplex."""
        return self.language is not ANY and is_empty(self.names())


def in_keys(passed: frozenset[StringTest], keys: KeySet) -> bool:
    """Return whether undeclared names that pass exactly these tests are in the set."""
    return keys.test in passed if isinstance(keys, MatchingKeys) else passed.isdisjoint(keys.tests)


def key_classes(graph: Graph, shape: ObjectShape, pointer: str) -> list[KeyClass]:
    """Return the classes of undeclared names that have names and values.

    The languages are disjoint, and each undeclared name that a member may have is in one of them.

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
    divided = _divided(tuple([test.language() for test in tests]), limit) if tests else ()
    found = [(frozenset([tests[place] for place in passed]), language) for passed, language in divided]
    if len(found) > limit:
        reason = f"the patterns divide the names of one object into more than {limit} kinds"
        raise over_limit(pointer, "patternProperties", reason)
    rest = _demanded(shape, frozenset())
    classes: list[KeyClass] = []
    apart: list[Regex] = []  # languages outside the class of the names that pass no test
    for passed, language in found:
        formulas = _demanded(shape, passed)
        if rest is not NONE and not shape.witnesses and frozenset(formulas) == frozenset(rest):
            continue
        apart.append(language)
        if formulas is not NONE:
            classes.append(KeyClass(passed, language, formulas))
    if not shape.witnesses:
        classes = _merged(classes)
    if rest is not NONE:
        language = intersect(*(complement(other) for other in apart)) if apart else ANY
        classes.insert(0, KeyClass(frozenset(), language, rest))
    classes = [_with_declared(one, shape) for one in classes]
    return [one for one in classes if not one.is_empty()]


def _with_declared(one: KeyClass, shape: ObjectShape) -> KeyClass:
    declared = tuple(name for name, _ in shape.members if one.language is ANY or matches(one.language, name))
    return replace(one, declared=declared) if declared else one


_Divided = tuple[tuple[frozenset[int], Regex], ...]
"""Classes of names: the places of the tests that all names of a class pass, and the names."""


@lru_cache(maxsize=256)
def _divided(tests: tuple[Regex, ...], limit: int) -> _Divided:
    """Return the classes that tests divide names into; some of them, if there are more than the limit.

    Names that pass no test belong to no class. The classes are disjoint.
    """
    found: _Divided = ()
    for place, language in enumerate(tests):
        found = _split(found, place, language)
        if len(found) > limit:
            break
    return found


def _split(found: _Divided, place: int, test: Regex) -> _Divided:
    """Divide the classes by one more test."""
    divided: list[tuple[frozenset[int], Regex]] = []
    alone = test
    for passed, language in found:
        if is_disjoint(language, test):
            divided.append((passed, language))
            continue
        divided.append((passed | {place}, intersect(language, test)))
        outside = intersect(language, complement(test))
        if not is_empty(outside):
            divided.append((passed, outside))
        alone = intersect(alone, complement(language))
    if not is_empty(alone):
        divided.append((frozenset({place}), alone))
    return tuple(divided)


def _demanded(shape: ObjectShape, passed: frozenset[StringTest]) -> Formulas:
    """Return the formulas for undeclared members whose names pass exactly these tests."""
    demanded: Formulas = ()
    for keys, formulas in shape.rules:
        if in_keys(passed, keys):
            if formulas is NONE:
                return NONE
            demanded += formulas
    return demanded


def _merged(classes: list[KeyClass]) -> list[KeyClass]:
    """Merge classes with the same formulas."""
    merged: dict[frozenset[Formula], KeyClass] = {}
    for one in classes:
        formulas = frozenset(one.formulas)
        same = merged.get(formulas)
        if same is not None:
            one = replace(same, language=alternate(same.language, one.language), tests=same.tests & one.tests)
        merged[formulas] = one
    return list(merged.values())
