"""The undeclared names of an object, divided into classes that all of its rules treat alike.

Each pattern of the object is either matched by all names of a class or by none, so that the values behind the names of
a class have one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixrt.constrained.regex import ANY, Regex, alternate, complement, intersect, json_string, literals
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.nodes import NONE, Formula, Formulas, ObjectShape
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, StringTest
from radixrt.constrained.schema.values import text_of

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph

ANY_NAME = json_string(ANY)


@dataclass(slots=True)
class KeyClass:
    """Undeclared names.

    Attributes:
        tests: what they all pass, of the tests of the object.
        language: the names, declared ones of the object (`taken`) still among them.
        formulas: what the values satisfy.
    """

    tests: frozenset[StringTest]
    language: Regex
    formulas: Formulas
    taken: list[str]

    def names(self) -> Regex:
        """The names. Raises RegexTooComplex."""
        return intersect(self.language, complement(literals(self.taken))) if self.taken else self.language

    def text(self) -> Regex:
        """The names as JSON strings. Raises RegexTooComplex."""
        if self.language is ANY and self.taken:
            return intersect(ANY_NAME, complement(literals([text_of(name) for name in self.taken])))
        return json_string(self.names())

    def is_empty(self) -> bool:
        """Whether there is no such name. Raises RegexTooComplex."""
        return self.language is not ANY and self.names().is_empty()


def in_keys(passed: frozenset[StringTest], keys: KeySet) -> bool:
    """Whether the names that pass exactly these tests, and are declared nowhere, are in the set."""
    return keys.test in passed if isinstance(keys, MatchingKeys) else passed.isdisjoint(keys.tests)


def key_classes(graph: Graph, shape: ObjectShape, pointer: str) -> list[KeyClass]:
    """The undeclared names by the tests that they pass; classes without names, or without values, are left out.

    Law: the languages are disjoint, and each undeclared name that a member may have is in one of them.
    """
    sets = [keys for keys, _ in shape.rules] + [keys for keys, _, _ in shape.witnesses]
    tests = list(dict.fromkeys(test for keys in sets for test in keys.tests))
    found: list[tuple[frozenset[StringTest], Regex]] = []
    for test in tests:
        found = _split(found, test)
        if len(found) > graph.budget.limits.key_classes:
            reason = (
                f"the patterns divide the names of one object into more than {graph.budget.limits.key_classes} kinds"
            )
            raise over_limit(pointer, "patternProperties", reason)
        graph.budget.check_time(pointer, "patternProperties")
    rest = _demanded(shape, frozenset())
    classes: list[KeyClass] = []
    apart: list[Regex] = []  # languages that are not in the class of the names that pass no test
    for passed, language in found:
        formulas = _demanded(shape, passed)
        if rest is not NONE and not shape.witnesses and frozenset(formulas) == frozenset(rest):
            continue
        apart.append(language)
        if formulas is not NONE:
            classes.append(KeyClass(passed, language, formulas, []))
    if not shape.witnesses:
        classes = _merged(classes)
    if rest is not NONE:
        language = intersect(*(complement(other) for other in apart)) if apart else ANY
        classes.insert(0, KeyClass(frozenset(), language, rest, []))
    for one in classes:
        one.taken = [name for name, _ in shape.members if one.language is ANY or one.language.matches(name)]
    return [one for one in classes if not one.is_empty()]


def _split(
    found: list[tuple[frozenset[StringTest], Regex]], test: StringTest
) -> list[tuple[frozenset[StringTest], Regex]]:
    """Divide the classes by one more test; names that pass none are in no class.

    Law: the classes stay disjoint, and a name that passes some test is in the class of exactly the tests it passes.
    """
    divided: list[tuple[frozenset[StringTest], Regex]] = []
    alone = test.language()
    for passed, language in found:
        if language.is_disjoint(test.language()):
            divided.append((passed, language))
            continue
        divided.append((passed | {test}, intersect(language, test.language())))
        outside = intersect(language, complement(test.language()))
        if not outside.is_empty():
            divided.append((passed, outside))
        alone = intersect(alone, complement(language))
    if not alone.is_empty():
        divided.append((frozenset({test}), alone))
    return divided


def _demanded(shape: ObjectShape, passed: frozenset[StringTest]) -> Formulas:
    """What undeclared members satisfy whose names pass exactly these tests."""
    demanded: Formulas = ()
    for keys, formulas in shape.rules:
        if in_keys(passed, keys):
            if formulas is NONE:
                return NONE
            demanded += formulas
    return demanded


def _merged(classes: list[KeyClass]) -> list[KeyClass]:
    """One class for those with the same formulas. Law: the names with any formulas stay the same."""
    by_formulas: dict[frozenset[Formula], KeyClass] = {}
    for one in classes:
        same = by_formulas.setdefault(frozenset(one.formulas), one)
        if same is not one:
            same.language = alternate(same.language, one.language)
            same.tests = same.tests & one.tests
    return list(by_formulas.values())
