"""Emission plans: the alternatives of a node with their child nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from radixrt.constrained.regex import (
    Regex,
    RegexTooComplex,
    alternate,
    enumerate_strings,
    json_string,
    shortest_length,
)
from radixrt.constrained.regex.multiples import MAX_STATES, is_too_large
from radixrt.constrained.schema.emit.json_text import check_text
from radixrt.constrained.schema.emit.key_classes import KeyClass, in_keys, key_classes
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.disjointness import is_empty
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import (
    NONE,
    ArrayShape,
    Expansion,
    Formulas,
    ItemCount,
    Node,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.numbers import NumberSet
from radixrt.constrained.schema.normal_form.strings import Source, StringSet
from radixrt.constrained.schema.values import key, text_of

T = TypeVar("T")
MAX_LISTED_NAMES = 32
"""A class of at most this many names becomes as many optional members."""
MAX_KNOWN = 1024
"""Maximum number of languages of scalars that are cached across schemas."""
MAX_COMPARED_ITEMS = 8
"""Largest number of items that are compared pairwise to prove that `uniqueItems` always holds."""


class Witness(NamedTuple):
    """A member that must exist: for each class it may belong to, the class's index and the formulas of its value."""

    options: tuple[tuple[int, Formulas], ...]
    source: Source


class ObjectPlan(NamedTuple):
    """An object: declared members in order, then members of the classes in any order.

    Attributes:
        members: name, node of the value, whether the member is required.
        classes: names and value nodes of undeclared members.
        witnesses: undeclared members that must exist.
        low, high: bounds on the number of members; `source`: their origin.
    """

    members: tuple[tuple[str, Node, bool], ...]
    classes: tuple[tuple[KeyClass, Node], ...]
    witnesses: tuple[Witness, ...]
    low: int
    high: int | None
    source: Source

    @property
    def required(self) -> int:
        """The number of required members."""
        return sum(needed for *_, needed in self.members)


class ArrayPlan(NamedTuple):
    """An array.

    Attributes:
        prefix: nodes of the first items.
        rest: node of all later items, or None if there can be none.
        low, high, counts, unique: as in `ArrayShape`; `unique` is None where no two items can be equal anyway.
        demands: the formulas of each node of `prefix`, and of `rest`.
        source: origin of `unique`.
    """

    prefix: tuple[Node, ...]
    rest: Node | None
    low: int
    high: int | None
    counts: tuple[ItemCount, ...]
    unique: bool | None
    source: Source
    demands: tuple[Formulas, ...]

    @property
    def items(self) -> tuple[Node, ...]:
        """The nodes of all items."""
        return self.prefix if self.rest is None else (*self.prefix, self.rest)


class Plan(NamedTuple):
    """The alternatives of a node.

    Attributes:
        texts: single strings; `values`: other single values.
        strings: language of the values of all strings, or None.
        numbers: languages of the texts of numbers.
        null: null belongs to the node; `booleans`: the booleans that do.
        arrays, objects: alternatives.
        union: nodes that belong to the node as a whole.
    """

    texts: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    strings: Regex | None = None
    numbers: tuple[Regex, ...] = ()
    null: bool = False
    booleans: tuple[bool, ...] = ()
    arrays: tuple[ArrayPlan, ...] = ()
    objects: tuple[ObjectPlan, ...] = ()
    union: tuple[Node, ...] = ()

    @property
    def is_scalar(self) -> bool:
        """True if the node has no children."""
        return not (self.arrays or self.objects or self.union)

    @property
    def has_scalars(self) -> bool:
        """True if the node has a single value, a string, a number, a boolean or null."""
        return bool(self.texts or self.values or self.strings or self.numbers or self.null or self.booleans)

    def children(self) -> Iterator[Node]:
        """Yield the child nodes, repeatedly if used repeatedly."""
        yield from self.union
        for array in self.arrays:
            yield from array.prefix
            if array.rest is not None:
                yield array.rest
        for one in self.objects:
            yield from (node for _, node, _ in one.members)
            yield from (node for _, node in one.classes)


def plan_node(graph: Graph, node: Node) -> Plan:
    """Return the plan of a node. Raises Unsupported."""
    if node.formulas == NONE:
        return Plan()
    expansion = graph.expand(node)
    if expansion.union is not None:
        return Plan(union=expansion.union)
    texts: tuple[str, ...] = ()
    others: tuple[Any, ...] = ()
    if expansion.values:
        values = expansion.values.values()
        texts = tuple(value for value in values if type(value) is str)
        others = tuple(value for value in values if type(value) is not str)
    if graph.reader.unwritable:
        _check_writable(graph, [*texts, *others], node)
    strings = _strings(node, expansion)
    numbers = _numbers(node, expansion)
    try:
        arrays = [_plan_array(graph, shape, node.pointer) for shape in expansion.arrays]
        objects = [_plan_object(graph, shape, node.pointer) for shape in expansion.objects]
    except RegexTooComplex as error:
        raise over_limit(node.pointer, "patternProperties", f"it is too complex ({error})") from None
    return Plan(
        texts=texts,
        values=others,
        strings=strings,
        numbers=numbers,
        null=expansion.null,
        booleans=tuple(sorted(expansion.booleans, reverse=True)),
        arrays=_present(arrays),
        objects=_present(objects),
    )


def _present(plans: list[T | None]) -> tuple[T, ...]:
    return tuple([plan for plan in plans if plan is not None]) if plans else ()


def _check_writable(graph: Graph, values: Iterable[Any], node: Node) -> None:
    """Raise Unsupported for a value that no UTF-8 text can hold, naming the keyword that lists it."""
    for value in values:
        pointer, keyword = graph.reader.unwritable.get(key(value), (node.pointer, "enum"))
        check_text(text_of(value), pointer, keyword)


def _strings(node: Node, expansion: Expansion) -> Regex | None:
    """Return the strings as one language; None if there are none. Raises Unsupported."""
    try:
        return _union(expansion.strings) if expansion.strings else None
    except RegexTooComplex as error:
        raise over_limit(node.pointer, "pattern", f"it is too complex ({error})") from None


def _numbers(node: Node, expansion: Expansion) -> tuple[Regex, ...]:
    """Return the numbers as one language; none if there are none. Raises Unsupported."""
    try:
        found = _union(expansion.numbers) if expansion.numbers else None
    except RegexTooComplex as error:
        raise over_limit(node.pointer, _number_keyword(expansion), f"it is too complex ({error})") from None
    if found is not None and is_too_large(found):
        reason = f"what is asked of the number takes an automaton of more than {MAX_STATES} states"
        fix = "Ask for multiples of a single integer, or for bounds with few numbers between them."
        raise Unsupported(node.pointer, _number_keyword(expansion), reason, fix)
    return () if found is None else (found,)


def _number_keyword(expansion: Expansion) -> str:
    """Return the keyword to name if the numbers are too complex."""
    if any(numbers.step is not None or numbers.not_multiples for numbers in expansion.numbers):
        return "multipleOf"
    return "minimum" if any(numbers.low is not None for numbers in expansion.numbers) else "maximum"


@lru_cache(maxsize=MAX_KNOWN)
def _union(sets: tuple[StringSet, ...] | tuple[NumberSet, ...]) -> Regex | None:
    """Return the union of the languages; None if it is empty. Raises RegexTooComplex.

    The length of strings is asked of their JSON texts, because the grammar asks for it again.
    """
    together = alternate(*(one.language() for one in sets))
    is_strings = together.has_boolean and isinstance(sets[0], StringSet)
    return None if shortest_length(json_string(together) if is_strings else together) is None else together


def _plan_object(graph: Graph, shape: ObjectShape, pointer: str) -> ObjectPlan | None:
    """Return the plan of an object; None if there is certainly no such object. Raises Unsupported."""
    # Declared members without a possible value are dropped.
    required = set(shape.required)
    check_text("".join(name for name, _ in shape.members), pointer, "properties")
    members: list[tuple[str, Node, bool]] = []
    for name, formulas in shape.members:
        node = graph.node(formulas)
        if node.formulas != NONE:
            members.append((name, node, name in required))
        elif name in required:
            return None
    # Undeclared names that satisfy the same tests form a class. The names of a small class become optional members.
    classes: list[tuple[KeyClass, Node]] = []
    for one in key_classes(graph, shape, pointer):
        node = graph.node(one.formulas)
        names = enumerate_strings(one.names(), MAX_LISTED_NAMES) if one.tests and not shape.witnesses else None
        if names is not None:
            members.extend((name, node, False) for name in sorted(names))
        else:
            classes.append((one, node))
    # A witness may be a member of any class that its key set allows.
    witnesses: list[Witness] = []
    for keys, formulas, source in shape.witnesses:
        options = [(i, one.formulas + formulas) for i, (one, _) in enumerate(classes) if in_keys(one.tests, keys)]
        options = [(i, demanded) for i, demanded in options if graph.node(demanded).formulas != NONE]
        if not options:
            return None
        witnesses.append(Witness(tuple(options), source))
    return ObjectPlan(tuple(members), tuple(classes), tuple(witnesses), shape.low, shape.high, shape.count_source)


def _plan_array(graph: Graph, shape: ArrayShape, pointer: str) -> ArrayPlan | None:
    """Return the plan of an array; None if there is certainly no such array. Raises Unsupported."""
    # From index `length` on, all items have the same formulas. An item without a possible value ends the array.
    length = max([*shape.rule_bounds, *(count.start for count in shape.counts)], default=0)
    limit = graph.budget.limits.array_states
    if length > limit:
        raise over_limit(pointer, "items", f"items of more than {limit} places differ")
    high = shape.high
    nodes: list[Node] = []
    demands = tuple(shape.item_formulas(index) for index in range(length + 1))
    for index, demanded in enumerate(demands):
        node = graph.node(demanded)
        if node.formulas == NONE:
            high = index if high is None else min(high, index)
        nodes.append(node)
    if high is not None and shape.low > high:
        return None
    prefix = tuple(nodes[:length] if high is None else nodes[: min(high, length)])
    rest = nodes[length] if high is None or high > length else None
    plan = ArrayPlan(prefix, rest, shape.low, high, shape.counts, shape.unique, shape.unique_source, demands)
    return plan._replace(unique=None) if plan.unique and _never_equal(graph, plan) else plan


def _never_equal(graph: Graph, plan: ArrayPlan) -> bool:
    """Return True if no two items can be equal. Raises nothing: a refusal counts as no proof."""
    if plan.high is not None and plan.high <= 1:
        return True
    if plan.rest is not None and (plan.high is None or plan.high > len(plan.prefix) + 1):
        return False
    items = plan.items
    if len(items) > MAX_COMPARED_ITEMS:
        return False
    return all(_disjoint(graph, one, two) for place, one in enumerate(items) for two in items[place + 1 :])


def _disjoint(graph: Graph, one: Node, two: Node) -> bool:
    try:
        return is_empty(graph, graph.node((*one.formulas, *two.formulas)), 2)
    except Unsupported:
        return False
