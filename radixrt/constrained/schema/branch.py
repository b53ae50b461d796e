"""One branch of a node while it is worked out: what is known so far about the value, and the choices still open.

Every method that adds knowledge returns False once no value at all is left. A type whose values have become
impossible is dropped from the branch; the others go on. What is known about a type that has been dropped is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.expansion import ArrayShape, ItemCount, ItemRule, ObjectShape
from radixrt.constrained.schema.formula import NONE, Formulas
from radixrt.constrained.schema.keys import KeySet, Rest
from radixrt.constrained.schema.numbers import ANY_NUMBER, NumberSet
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.strings import ANY_STRING, Source, StringSet
from radixrt.constrained.schema.values import ALL, ARRAY, BOOLEAN, NUMBER, OBJECT, STRING, key, type_of

if TYPE_CHECKING:
    from radixrt.constrained.schema.evaluated import Frame
    from radixrt.constrained.schema.graph import Graph

Alternative = Callable[["Branch"], bool]
"""Adds to a branch what one alternative of a choice says; False if nothing is left."""
Rank = tuple[int, ...]
"""A place in the document's order: the choices on the way, and a count within the last of them."""


class Branch:
    """A conjunction that is being built.

    Attributes:
        mask: types that are still possible.
        booleans: booleans that are still possible, as bits (1 false, 2 true).
        number, string: sets that a value of the type is in.
        finite: if not None, the value equals one of these.
        pending: choices still open: where in the document each stands, and alternatives of which at least one holds.
        assumed: subschemas that are already part of the branch, with the frames that they were evaluated for.
        frames: what has been evaluated, for each `unevaluated...` keyword that waits for it.
        ranks: where in the document each member is first spoken of; a choice that is made late keeps its own place.
        changes: how often something was added that was not known before.
    """

    __slots__ = (
        "array_high",
        "array_low",
        "assumed",
        "booleans",
        "changes",
        "counts",
        "finite",
        "frames",
        "graph",
        "item_rules",
        "mask",
        "members",
        "number",
        "object_high",
        "object_low",
        "object_source",
        "pending",
        "ranks",
        "required",
        "rules",
        "slot",
        "steps",
        "string",
        "unique",
        "unique_source",
        "witnesses",
    )

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.mask = ALL
        self.booleans = 3
        self.number: NumberSet = ANY_NUMBER
        self.string: StringSet = ANY_STRING
        self.finite: list[Any] | None = None
        self.pending: list[tuple[Rank, list[Alternative]]] = []
        self.changes = 0
        self.slot: Rank = ()
        self.steps = 0
        self.ranks: dict[str, Rank] = {}
        self.assumed: set[tuple[Located, tuple[int, ...]]] = set()
        self.frames: list[Frame] = []
        self.array_low = 0
        self.array_high: int | None = None
        self.item_rules: list[ItemRule] = []
        self.counts: list[ItemCount] = []
        self.unique: bool | None = None
        self.unique_source: Source = ("", "uniqueItems", "")
        self.object_low = 0
        self.object_high: int | None = None
        self.object_source: Source = ("", "minProperties", "")
        self.members: dict[str, Formulas] = {}
        self.required: dict[str, None] = {}
        self.rules: list[tuple[KeySet, Formulas]] = []
        self.witnesses: list[tuple[KeySet, Formulas, Source]] = []

    def clone(self) -> Branch:
        """An independent copy."""
        other = Branch.__new__(Branch)
        other.graph = self.graph
        other.mask, other.booleans, other.number, other.string = self.mask, self.booleans, self.number, self.string
        other.finite = self.finite
        other.array_low, other.array_high = self.array_low, self.array_high
        other.unique, other.unique_source = self.unique, self.unique_source
        other.object_low, other.object_high = self.object_low, self.object_high
        other.object_source = self.object_source
        other.pending, other.assumed = self.pending.copy(), self.assumed.copy()
        other.item_rules, other.counts = self.item_rules.copy(), self.counts.copy()
        other.members, other.required = self.members.copy(), self.required.copy()
        other.rules, other.witnesses = self.rules.copy(), self.witnesses.copy()
        other.frames = [frame.clone() for frame in self.frames]
        other.changes = self.changes
        other.slot, other.steps, other.ranks = self.slot, self.steps, self.ranks.copy()
        return other

    # Types and single values

    def limit_types(self, mask: int) -> bool:
        """The value has one of the types."""
        return self.drop(~mask)

    def drop(self, mask: int) -> bool:
        """The value has none of the types."""
        if self.mask & mask:
            self.mask &= ~mask
            self.changes += 1
        return self.mask != 0

    def limit_booleans(self, bits: int) -> bool:
        """A boolean is one of those."""
        if self.booleans & ~bits:
            self.booleans &= bits
            self.changes += 1
        return self.booleans != 0 or self.drop(BOOLEAN)

    def one_of(self, values: list[Any]) -> bool:
        """The value equals one of these."""
        self.changes += 1
        if self.finite is not None:
            keys = {key(value) for value in values}
            self.finite = [value for value in self.finite if key(value) in keys]
        else:
            self.finite = values
        mask = 0
        for value in self.finite:
            mask |= type_of(value)
        return self.limit_types(mask)

    # Scalars: the new set, or None if nothing of the type is left

    def narrow_number(self, numbers: NumberSet | None) -> bool:
        """A number is in the set, which is part of what was known before."""
        if numbers is None:
            return self.drop(NUMBER)
        if numbers is not self.number:
            self.number = numbers
            self.changes += 1
        return True

    def narrow_string(self, strings: StringSet | None) -> bool:
        """A string is in the set, which is part of what was known before."""
        if strings is None:
            return self.drop(STRING)
        if strings is not self.string:
            self.string = strings
            self.changes += 1
        return True

    # Arrays

    def limit_items(self, low: int, high: int | None) -> bool:
        """An array has at least `low` and at most `high` items."""
        if low > self.array_low:
            self.array_low = low
            self.changes += 1
        if high is not None and (self.array_high is None or high < self.array_high):
            self.array_high = high
            self.changes += 1
        if self.array_high is not None and self.array_low > self.array_high:
            return self.drop(ARRAY)
        return True

    def add_items(self, start: int, stop: int | None, formulas: Formulas) -> bool:
        """Items of an array from start to stop satisfy the formulas."""
        if formulas is NONE:
            return self.limit_items(0, start) if stop is None or stop > start else True
        if formulas and self.mask & ARRAY:
            rule = ItemRule(start, stop, formulas)
            if rule not in self.item_rules:
                self.item_rules.append(rule)
                self.changes += 1
        return True

    def count_items(self, count: ItemCount) -> bool:
        """Some items of an array satisfy formulas, as often as the count says."""
        if self.mask & ARRAY:
            if count.high is not None and count.low > count.high:
                return self.drop(ARRAY)
            if count not in self.counts:
                self.counts.append(count)
                self.changes += 1
            return self.limit_items(count.start + count.low if count.low else 0, None)
        return True

    def set_unique(self, unique: bool, source: Source) -> bool:
        """The items of an array are all different (are not all different)."""
        if self.unique is not None and self.unique is not unique:
            return self.drop(ARRAY)
        if self.unique is None:
            self.unique, self.unique_source = unique, source
            self.changes += 1
        return True if unique else self.limit_items(2, None)

    # Objects

    def limit_members(self, low: int, high: int | None, source: Source) -> bool:
        """An object has at least `low` and at most `high` members."""
        if low > self.object_low:
            self.object_low, self.object_source = low, source
            self.changes += 1
        if high is not None and (self.object_high is None or high < self.object_high):
            self.object_high = high
            self.changes += 1
        return self._object_count_ok()

    def add_member(self, name: str, formulas: Formulas) -> bool:
        """The value of this member, where present, satisfies the formulas."""
        if not self.mask & OBJECT:
            return True
        self.steps += 1
        rank = (*self.slot, self.steps)
        if name not in self.ranks or rank < self.ranks[name]:
            self.ranks[name] = rank
        known = self.members.get(name)
        if known is None:
            known = self.members[name] = ()
            self.changes += not formulas
        if formulas and known is not NONE and not self.graph.hints.implies(self.demanded(name), formulas):
            self.members[name] = NONE if formulas is NONE else known + formulas
            self.changes += 1
        return name not in self.required or self._member_ok(name)

    def forbid(self, name: str) -> bool:
        """An object has no such member."""
        return self.add_member(name, NONE)

    def require(self, name: str) -> bool:
        """An object has this member."""
        if not self.mask & OBJECT or name in self.required:
            return True
        self.required[name] = None
        self.changes += 1
        return self._object_count_ok() and self._member_ok(name)

    def add_keys(self, keys: KeySet, formulas: Formulas) -> bool:
        """Every member whose name is in the set satisfies the formulas."""
        if not self.mask & OBJECT or not (formulas or self.graph.closed):
            return True
        names = self.graph.hints.listed_names(keys)
        if names is not None:
            return all(self.add_member(name, formulas) for name in names)
        if (keys, formulas) not in self.rules:
            self.rules.append((keys, formulas))
            self.changes += 1
        wanted = [name for name in self.required if name in keys]
        return all(not self.mask & OBJECT or self._member_ok(name) for name in wanted)

    def add_witness(self, keys: KeySet, formulas: Formulas, source: Source) -> bool:
        """Some member whose name is in the set satisfies the formulas."""
        if not self.mask & OBJECT:
            return True
        if formulas is NONE:
            return self.drop(OBJECT)
        names = self.graph.hints.listed_names(keys)
        if names is not None:
            return self.choose([lambda b, n=name: b.is_witness(n, formulas) for name in names])  # type: ignore[misc]
        if not any(keys == other and formulas == wanted for other, wanted, _ in self.witnesses):
            self.witnesses.append((keys, formulas, source))
            self.changes += 1
        return self.limit_members(1, None, source) if self.object_low < 1 else True

    def is_witness(self, name: str, formulas: Formulas) -> bool:
        """The value is an object with this member, which satisfies the formulas."""
        return self.limit_types(OBJECT) and self.add_member(name, formulas) and self.require(name)

    def demanded(self, name: str) -> Formulas:
        """All that the value of a member of this name satisfies."""
        found = self.members.get(name, ())
        for keys, formulas in self.rules:
            if name in keys:
                if formulas is NONE:
                    return NONE
                found += formulas
        return found

    def _member_ok(self, name: str) -> bool:
        demanded = self.demanded(name)
        if demanded is NONE or (len(demanded) > 1 and self.graph.hints.contradict(demanded)):
            self.graph.blame(name, demanded)
            return self.drop(OBJECT)
        return True

    def _object_count_ok(self) -> bool:
        if self.object_high is not None and max(self.object_low, len(self.required)) > self.object_high:
            return self.drop(OBJECT)
        return True

    # Choices

    def choose(self, alternatives: list[Alternative]) -> bool:
        """At least one of the alternatives holds."""
        if len(alternatives) <= 1:
            return bool(alternatives) and alternatives[0](self)
        self.steps += 1
        self.changes += 1
        self.pending.append(((*self.slot, self.steps), alternatives))
        return True

    # The result

    def array_shape(self) -> ArrayShape:
        """What is known of an array."""
        rules, counts = tuple(self.item_rules), tuple(dict.fromkeys(self.counts))
        return ArrayShape(self.array_low, self.array_high, rules, counts, self.unique, self.unique_source)

    def object_shape(self) -> ObjectShape:
        """What is known of an object."""
        names = dict.fromkeys(sorted(self.members, key=self.ranks.__getitem__))
        names.update(self.required)
        for keys, *_ in (*self.rules, *self.witnesses):
            if isinstance(keys, Rest):
                names.update(dict.fromkeys(keys.order or sorted(keys.names)))
        return ObjectShape(
            self.object_low,
            self.object_high,
            tuple((name, self.demanded(name)) for name in names),
            tuple(self.required),
            tuple(dict.fromkeys(self.rules)),
            tuple(self.witnesses),
            self.object_source,
        )
