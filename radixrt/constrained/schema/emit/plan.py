"""What to write for each node, known before anything is written: alternatives of one type with child nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixrt.constrained.backends.linear import MAX_STATES
from radixrt.constrained.regex import Regex, RegexTooComplex, alternate
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.schema.emit.json_text import check_text
from radixrt.constrained.schema.emit.key_classes import KeyClass, in_keys, key_classes
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.nodes import (
    NONE,
    ArrayShape,
    Expansion,
    Formulas,
    ItemCount,
    Node,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.static_checks import is_empty
from radixrt.constrained.schema.normal_form.strings import Source
from radixrt.constrained.schema.values import key, text_of

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph

ENUMERATED_NAMES = 32
"""A class of at most this many names is written as so many optional members."""


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
        classes: names and nodes of undeclared members.
        witnesses: what must be among the undeclared members.
        low, high: bounds on the number of members; `source`: where they come from.
    """

    members: list[tuple[str, Node, bool]]
    classes: list[tuple[KeyClass, Node]]
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


@dataclass(slots=True)
class Plan:
    """What a node comes to.

    Attributes:
        words: single strings; values: other single values.
        strings: language of the values of all strings, or None.
        numbers: languages of the texts of numbers.
        null: null is in it; booleans: those that are.
        arrays, objects: alternatives.
        union: nodes that are in it whole.
    """

    words: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    strings: Regex | None = None
    numbers: list[Regex] = field(default_factory=list)
    null: bool = False
    booleans: tuple[bool, ...] = ()
    arrays: list[ArrayPlan] = field(default_factory=list)
    objects: list[ObjectPlan] = field(default_factory=list)
    union: list[Node] = field(default_factory=list)

    @property
    def is_scalar(self) -> bool:
        """Whether there is nothing below it."""
        return not (self.arrays or self.objects or self.union)

    @property
    def has_scalars(self) -> bool:
        """Whether something is in it that is no array and no object, or a single value."""
        return bool(self.words or self.values or self.strings or self.numbers or self.null or self.booleans)

    def below(self) -> Iterator[Node]:
        """The nodes that it uses."""
        yield from self.union
        for array in self.arrays:
            yield from array.prefix
            if array.rest is not None:
                yield array.rest
        for one in self.objects:
            yield from (node for _, node, _ in one.members)
            yield from (node for _, node in one.classes)


def plan_node(graph: Graph, node: Node) -> Plan:
    """The plan of a node. Raises Unsupported."""
    plan = Plan()
    if node.formulas == NONE:
        return plan
    expansion = graph.expand(node)
    if expansion.union is not None:
        plan.union = list(expansion.union)
        return plan
    for value in expansion.values.values():
        (plan.words if type(value) is str else plan.values).append(value)
    if graph.reader.unwritable:
        _check_written(graph, [*plan.words, *plan.values], node)
    plan.null = expansion.null
    plan.booleans = tuple(sorted(expansion.booleans, reverse=True))
    plan.strings = _live(node, "pattern", [strings.language for strings in expansion.strings])
    plan.numbers = _numbers(node, expansion)
    try:
        for array in expansion.arrays:
            found = plan_array(graph, array, node.pointer)
            if found is not None:
                plan.arrays.append(found)
        for shape in expansion.objects:
            one = plan_object(graph, shape, node.pointer)
            if one is not None:
                plan.objects.append(one)
    except RegexTooComplex as error:
        raise over_limit(node.pointer, "patternProperties", f"it is too complex ({error})") from None
    return plan


def _check_written(graph: Graph, values: Iterable[Any], node: Node) -> None:
    """Raises Unsupported for a value that no UTF-8 text can hold, naming the keyword that lists it."""
    for value in values:
        pointer, keyword = graph.reader.unwritable.get(key(value), (node.pointer, "enum"))
        check_text(text_of(value), pointer, keyword)


def _numbers(node: Node, expansion: Expansion) -> list[Regex]:
    """The numbers as one language, or as several where that is too large an automaton. Raises Unsupported."""
    keyword = _number_keyword(expansion)
    languages = [numbers.language for numbers in expansion.numbers]
    together = _live(node, keyword, languages)
    if together is None or not together.has_boolean or Dfa.of(together, MAX_STATES) is not None:
        return [] if together is None else [together]
    found = [language for one in languages if (language := _live(node, keyword, [one])) is not None]
    if any(language.has_boolean and Dfa.of(language, MAX_STATES) is None for language in found):
        reason = f"what is asked of the number takes an automaton of more than {MAX_STATES} states"
        fix = "Take multiples of a smaller number, or bounds with few numbers between them."
        raise Unsupported(node.pointer, keyword, reason, fix)
    return found


def _number_keyword(expansion: Expansion) -> str:
    """The keyword to name if the numbers are too complex."""
    if any(numbers.step is not None or numbers.not_multiples for numbers in expansion.numbers):
        return "multipleOf"
    return "minimum" if any(numbers.low is not None for numbers in expansion.numbers) else "maximum"


def _live(node: Node, keyword: str, languages: list[Callable[[], Regex]]) -> Regex | None:
    """All of the languages together; None if there is no string in them. Raises Unsupported."""
    if not languages:
        return None
    try:
        together = alternate(*(language() for language in languages))
        return None if together.shortest_length() is None else together
    except RegexTooComplex as error:
        raise over_limit(node.pointer, keyword, f"it is too complex ({error})") from None


def plan_object(graph: Graph, shape: ObjectShape, pointer: str) -> ObjectPlan | None:
    """The plan of an object; None if it is plainly impossible. Raises Unsupported."""
    required = set(shape.required)
    check_text("".join(name for name, _ in shape.members), pointer, "properties")
    members: list[tuple[str, Node, bool]] = []
    for name, formulas in shape.members:
        node = graph.node(formulas)
        if node.formulas != NONE:
            members.append((name, node, name in required))
        elif name in required:
            return None
    classes: list[tuple[KeyClass, Node]] = []
    for one in key_classes(graph, shape, pointer):
        node = graph.node(one.formulas)
        names = one.names().enumerate(ENUMERATED_NAMES) if one.tests and not shape.witnesses else None
        if names is not None:
            members.extend((name, node, False) for name in sorted(names))
        else:
            classes.append((one, node))
    witnesses: list[Witness] = []
    for keys, formulas, source in shape.witnesses:
        options = [
            (place, one.formulas + formulas) for place, (one, _) in enumerate(classes) if in_keys(one.tests, keys)
        ]
        options = [(place, demanded) for place, demanded in options if graph.node(demanded).formulas != NONE]
        if not options:
            return None
        witnesses.append(Witness(options, source))
    return ObjectPlan(members, classes, witnesses, shape.low, shape.high, shape.count_source)


def plan_array(graph: Graph, shape: ArrayShape, pointer: str) -> ArrayPlan | None:
    """The plan of an array; None if it is plainly impossible. Raises Unsupported."""
    bounds = [bound for rule in shape.rules for bound in (rule.start, rule.stop) if bound is not None]
    length = max([*bounds, *(count.start for count in shape.counts)], default=0)
    if length > graph.budget.limits.array_states:
        raise over_limit(pointer, "items", f"items of more than {graph.budget.limits.array_states} places differ")
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
        return is_empty(graph, graph.node((*one.formulas, *two.formulas)), 2)
    except Unsupported:
        return False
