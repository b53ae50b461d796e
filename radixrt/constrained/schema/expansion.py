"""What a node comes to: finitely many values, and alternatives of one JSON type each.

The union of them all is exactly the set of values that satisfy the node's formulas.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from radixrt.constrained.schema.formula import Formulas, Node
from radixrt.constrained.schema.keys import KeySet
from radixrt.constrained.schema.numbers import NumberSet
from radixrt.constrained.schema.strings import Source, StringSet


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


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The arrays with low <= length <= high whose items keep the rules and counts.

    `unique` is True if no two items may be equal, False if some two must be, None if nothing is asked.
    """

    low: int = 0
    high: int | None = None
    rules: tuple[ItemRule, ...] = ()
    counts: tuple[ItemCount, ...] = ()
    unique: bool | None = None
    unique_source: Source = field(default=("", "uniqueItems", ""), compare=False)


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The objects that satisfy all of this.

    Attributes:
        low: least number of members; high: greatest, or None.
        members: names that the document speaks of, in its order, with what their values satisfy where present (that
            of the rules included).
        required: those of them that must be present.
        rules: every member whose name is in the set satisfies the formulas.
        witnesses: for each, some member whose name is in the set and not among `members` satisfies the formulas.
        count_source: where the bound on the number of members comes from.
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


@dataclass(slots=True)
class Expansion:
    """A union.

    Attributes:
        values: single values, by `values.key`.
        null: null is in it; booleans: those that are.
        numbers, strings, arrays, objects: alternatives of these types, in order.
        union: nodes that are in it whole; if not None, everything else is empty.
    """

    values: dict[Hashable, Any] = field(default_factory=dict)
    null: bool = False
    booleans: set[bool] = field(default_factory=set)
    numbers: dict[NumberSet, None] = field(default_factory=dict)
    strings: dict[StringSet, None] = field(default_factory=dict)
    arrays: dict[ArrayShape, None] = field(default_factory=dict)
    objects: dict[ObjectShape, None] = field(default_factory=dict)
    union: tuple[Node, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is in it; what its parts contain is not looked at."""
        if self.union is not None:
            return not self.union
        parts = (self.values, self.booleans, self.numbers, self.strings, self.arrays, self.objects)
        return not self.null and not any(parts)
