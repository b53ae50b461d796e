"""The normal form of a schema: nodes, each defined by formulas and expanded to a union of alternatives.

A node is a position of the normalized schema and stands for a conjunction of formulas. Nodes are interned by the set of
their formulas, which keeps recursive schemas finite. Every subschema that applies to the same value (`allOf`, `$ref`
with siblings, `not`, the branches of a condition) is one more formula of the same node. The expansion of a node lists
its values and, for each JSON type, alternatives whose children are again formulas.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.numbers import NumberSet
from radixrt.constrained.schema.normal_form.strings import KeySet, Source, StringSet

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.branch import Branch, Scopes


@dataclass(frozen=True, eq=False, slots=True)
class Is:
    """The value satisfies (`positive`), or does not satisfy, a subschema. `Graph.formulas` interns these."""

    located: Located
    positive: bool

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.assume(self.located, scopes) if self.positive else branch.deny(self.located)


@dataclass(frozen=True, eq=False, slots=True)
class Either:
    """The value satisfies every formula of at least one option."""

    options: tuple[Formulas, ...]

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.choose(self.options)


@dataclass(frozen=True, eq=False, slots=True)
class Never:
    """No value satisfies this formula."""

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return False


Formula = Is | Either | Never
Formulas = tuple[Formula, ...]
"""A conjunction. The empty tuple is satisfied by every value."""
NEVER = Never()
NONE: Formulas = (NEVER,)


def either(options: tuple[Formulas, ...]) -> Formulas:
    """Return the conjunction that is equivalent to the disjunction of the options."""
    live = tuple(dict.fromkeys(option for option in options if option is not NONE))
    if not live:
        return NONE
    if () in live:
        return ()
    return live[0] if len(live) == 1 else (Either(live),)


@dataclass(frozen=True, slots=True)
class ItemRule:
    """Every item with start <= index < stop satisfies the formulas; `stop` None is the end of the array."""

    start: int
    stop: int | None
    formulas: Formulas


@dataclass(frozen=True, slots=True)
class ItemCount:
    """At least `low` and at most `high` of the items with index >= start satisfy the formulas."""

    start: int
    formulas: Formulas
    low: int
    high: int | None
    source: Source

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.count_items(self)


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The arrays with low <= length <= high whose items satisfy the rules and counts.

    Attributes:
        unique: True if all items differ, False if two items are equal, None for no condition.
        unique_source: origin of `unique`.
    """

    low: int = 0
    high: int | None = None
    rules: tuple[ItemRule, ...] = ()
    counts: tuple[ItemCount, ...] = ()
    unique: bool | None = None
    unique_source: Source = field(default=("", "uniqueItems", ""), compare=False)

    def item_formulas(self, index: int) -> Formulas:
        """Return the formulas that the rules demand of the item at an index."""
        found: Formulas = ()
        for rule in self.rules:
            if rule.start <= index and (rule.stop is None or index < rule.stop):
                found += rule.formulas
        return found

    @property
    def rule_bounds(self) -> list[int]:
        """The indices at which some rule starts or stops."""
        return [bound for rule in self.rules for bound in (rule.start, rule.stop) if bound is not None]


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The objects that satisfy all of the attributes.

    Attributes:
        low, high: bounds on the number of members; `high` None is unbounded.
        members: names mentioned in the document, in the document's order, with the formulas for the value if the member
            is present, including formulas of `rules`.
        required: the names among `members` that must be present.
        rules: every member whose name is in the set satisfies the formulas.
        witnesses: for each entry, some member whose name is in the set and not among `members` satisfies the formulas.
        count_source: origin of the bound on the number of members.
    """

    low: int = 0
    high: int | None = None
    members: tuple[tuple[str, Formulas], ...] = ()
    required: tuple[str, ...] = ()
    rules: tuple[tuple[KeySet, Formulas], ...] = ()
    witnesses: tuple[tuple[KeySet, Formulas, Source], ...] = ()
    count_source: Source = field(default=("", "minProperties", ""), compare=False)


ANY_ARRAY = ArrayShape()
ANY_OBJECT = ObjectShape()


class Expansion(NamedTuple):
    """The union of all alternatives of a node: exactly the values that satisfy its formulas.

    Attributes:
        values: single values, by `values.key`.
        null: null belongs to the union.
        booleans: the booleans that belong to the union.
        numbers, strings, arrays, objects: alternatives of these types, in order.
        union: nodes that belong to the union as a whole; if not None, everything else is empty.
    """

    values: Mapping[Hashable, Any] = MappingProxyType({})
    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[NumberSet, ...] = ()
    strings: tuple[StringSet, ...] = ()
    arrays: tuple[ArrayShape, ...] = ()
    objects: tuple[ObjectShape, ...] = ()
    union: tuple[Node, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """True if there is no alternative; an alternative without values still counts as one."""
        if self.union is not None:
            return not self.union
        parts = (self.values, self.booleans, self.numbers, self.strings, self.arrays, self.objects)
        return not self.null and not any(parts)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A conjunction of formulas.

    Attributes:
        formulas: in the order of the document, each once.
        index: number of the node in its graph.
    """

    formulas: Formulas
    index: int

    @property
    def pointer(self) -> str:
        """A place in the document to name in messages."""
        return next((formula.located.pointer for formula in self.formulas if isinstance(formula, Is)), "")
