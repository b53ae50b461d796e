"""What to write for each node: alternatives of one type with their child nodes, all of them known before any is written.

Objects: the undeclared names are divided into classes on which every pattern is either matched or not, so that each
class has one child node. Arrays: the items before some index have nodes of their own, all later ones share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixrt.constrained.regex import ANY, Regex, alternate, complement, intersect, literals
from radixrt.constrained.schema.disjoint import surely_empty
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.expansion import ArrayShape, ItemCount, ObjectShape
from radixrt.constrained.schema.formula import NONE, Formula, Formulas, Node
from radixrt.constrained.schema.keys import KeySet, Matching
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.strings import Source, StringTest

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph

ENUMERATED_NAMES = 32
"""A pattern with at most this many names is written as so many optional members."""


@dataclass(slots=True)
class KeyClass:
    """Undeclared names that all rules treat alike, and the tests that they all pass."""

    tests: frozenset[StringTest]
    language: Regex
    formulas: Formulas


@dataclass(slots=True)
class Witness:
    """A member that must exist: the places of the classes that it may be in, with what its value satisfies there."""

    options: list[tuple[int, Formulas]]
    source: Source


@dataclass(slots=True)
class ObjectPlan:
    """An object: declared members in order, then members of the classes in any order.

    Attributes:
        members: name, node of the value, whether it must be present.
        classes: name languages and nodes of undeclared members.
        witnesses: what must be among the undeclared members.
        low, high: bounds on the number of members.
    """

    members: list[tuple[str, Node, bool]]
    classes: list[tuple[Regex, Node]]
    witnesses: list[Witness]
    low: int
    high: int | None
    source: Source


@dataclass(slots=True)
class ArrayPlan:
    """An array.

    Attributes:
        prefix: nodes of the first items.
        rest: node of all later ones, or None if there can be none.
        low, high, counts, unique: as in its shape; `unique` is None where no two items can be equal anyway.
        demands: the formulas behind each node of `prefix`, and behind `rest`.
        source: of `unique`.
    """

    prefix: list[Node]
    rest: Node | None
    low: int
    high: int | None
    counts: tuple[ItemCount, ...]
    unique: bool | None
    source: Source
    demands: list[Formulas]


def plan_object(graph: Graph, shape: ObjectShape, pointer: str) -> ObjectPlan | None:
    """The plan of an object; None if it is plainly impossible. Raises Unsupported."""
    required = set(shape.required)
    members: list[tuple[str, Node, bool]] = []
    for name, formulas in shape.members:
        node = graph.node(formulas)
        if node.formulas != NONE:
            members.append((name, node, name in required))
        elif name in required:
            return None
    classes = _key_classes(graph, shape, pointer)
    kept: list[tuple[Regex, Node]] = []
    places: list[tuple[KeyClass, int]] = []
    for one in classes:
        node = graph.node(one.formulas)
        names = one.language.enumerate(ENUMERATED_NAMES) if one.tests and not shape.witnesses else None
        if names is not None:
            members.extend((name, node, False) for name in sorted(names))
        else:
            places.append((one, len(kept)))
            kept.append((one.language, node))
    witnesses: list[Witness] = []
    for keys, formulas, source in shape.witnesses:
        options = [(place, one.formulas + formulas) for one, place in places if _in_keys(one.tests, keys)]
        options = [(place, demanded) for place, demanded in options if graph.node(demanded).formulas != NONE]
        if not options:
            return None
        witnesses.append(Witness(options, source))
    return ObjectPlan(members, kept, witnesses, shape.low, shape.high, shape.count_source)


def _in_keys(passed: frozenset[StringTest], keys: KeySet) -> bool:
    """Whether the names that pass exactly these tests, and are declared nowhere, are in the set."""
    return keys.test in passed if isinstance(keys, Matching) else passed.isdisjoint(keys.tests)


def _key_classes(graph: Graph, shape: ObjectShape, pointer: str) -> list[KeyClass]:
    """The undeclared names by the tests that they pass; classes without names, or which nothing may follow, are left out.

    Law: the languages are disjoint, and each undeclared name that a member may have is in one of them.
    """
    tests = list(dict.fromkeys(test for keys, *_ in (*shape.rules, *shape.witnesses) for test in keys.tests))
    if len(tests) > graph.limits.key_patterns:
        reason = f"more than {graph.limits.key_patterns} patterns divide the names of one object"
        raise over_limit(pointer, "patternProperties", reason)
    found: list[tuple[frozenset[StringTest], Regex]] = []
    for test in tests:
        found = _split(found, test)
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
            classes.append(KeyClass(passed, language, formulas))
    if not shape.witnesses:
        classes = _merged(classes)
    if rest is not NONE:
        language = intersect(*(complement(other) for other in apart)) if apart else ANY
        classes.insert(0, KeyClass(frozenset(), language, rest))
    for one in classes:
        names = [name for name, _ in shape.members if one.language is ANY or one.language.matches(name)]
        if names:
            one.language = intersect(one.language, complement(literals(names)))
    return [one for one in classes if one.language is ANY or not one.language.is_empty()]


def _split(
    found: list[tuple[frozenset[StringTest], Regex]], test: StringTest
) -> list[tuple[frozenset[StringTest], Regex]]:
    """Divide the classes by one more test; names that pass none are in no class.

    Law: the classes stay disjoint, and a name that passes some test is in the class of exactly the tests it passes.
    """
    divided: list[tuple[frozenset[StringTest], Regex]] = []
    alone = test.language()
    for passed, language in found:
        inside = intersect(language, test.language())
        if inside.is_empty():
            divided.append((passed, language))
            continue
        divided.append((passed | {test}, inside))
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
        if _in_keys(passed, keys):
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


def plan_array(graph: Graph, shape: ArrayShape, pointer: str) -> ArrayPlan | None:
    """The plan of an array; None if it is plainly impossible. Raises Unsupported."""
    bounds = [bound for rule in shape.rules for bound in (rule.start, rule.stop) if bound is not None]
    length = max([*bounds, *(count.start for count in shape.counts)], default=0)
    if length > graph.limits.array_states:
        raise over_limit(pointer, "items", f"items of more than {graph.limits.array_states} places differ")
    high = shape.high
    prefix: list[Node] = []
    demands: list[Formulas] = []
    for index in range(length + 1):
        demanded: Formulas = ()
        for rule in shape.rules:
            if rule.start <= index and (rule.stop is None or index < rule.stop):
                demanded += rule.formulas
        node = graph.node(demanded)
        if node.formulas == NONE:
            high = index if high is None else min(high, index)
        demands.append(demanded)
        prefix.append(node)
    if high is not None and shape.low > high:
        return None
    rest = prefix.pop()
    last = len(prefix) if high is None else min(high, len(prefix))
    reaches_rest = high is None or high > len(prefix)
    counts, unique = shape.counts, shape.unique
    if unique and _never_equal(graph, prefix[:last], rest if reaches_rest else None, high):
        unique = None
    return ArrayPlan(
        prefix[:last], rest if reaches_rest else None, shape.low, high, counts, unique, shape.unique_source, demands
    )


def _never_equal(graph: Graph, prefix: list[Node], rest: Node | None, high: int | None) -> bool:
    """Whether no two items can be equal anyway."""
    if high is not None and high <= 1:
        return True
    if rest is not None and (high is None or high > len(prefix) + 1):
        return False
    items = [*prefix, *([] if rest is None else [rest])]
    if len(items) > 8:
        return False
    return all(_disjoint(graph, one, two) for place, one in enumerate(items) for two in items[place + 1 :])


def _disjoint(graph: Graph, one: Node, two: Node) -> bool:
    try:
        return surely_empty(graph, graph.node((*one.formulas, *two.formulas)), 2)
    except Unsupported:
        return False
