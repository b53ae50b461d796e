"""`Branch`: the knowledge about one value while a node is being solved, and the choices that are still open.

Every method that adds knowledge returns False once no value is left. A type whose values have become impossible is
dropped from the branch, and nothing more is recorded about that type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.keywords.base import (
    Alternative,
    Alternatives,
    Assertion,
    Condition,
    Deferred,
    UnevaluatedFails,
)
from radixrt.constrained.schema.normal_form.keywords.scalars import Type
from radixrt.constrained.schema.normal_form.nodes import (
    ANY_ARRAY,
    NONE,
    ArrayShape,
    Formulas,
    ItemCount,
    ItemRule,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.numbers import ANY_NUMBER, NumberSet
from radixrt.constrained.schema.normal_form.static_checks import contradict, implies, listed_values
from radixrt.constrained.schema.normal_form.strings import (
    ANY_STRING,
    KeySet,
    RemainingKeys,
    Source,
    StringSet,
    StringTest,
)
from radixrt.constrained.schema.values import ALL, ARRAY, BOOLEAN, NUMBER, OBJECT, STRING, key, type_of

Scopes = tuple[int, ...]
"""Indices of the branch's scopes that record the evaluation by an assertion."""
Rank = tuple[int, ...]
"""A position in the order of the document: the choices on the way, and a count within the last of them."""


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """The members and items that the in-place subschemas of one schema with `unevaluated...` have evaluated so far.

    Attributes:
        outer: the enclosing scopes, which record the same.
        deferred: the `unevaluated...` assertions of the schema.
        denied: the number of the deferred assertion that must fail; None if all must hold.
        names, tests: evaluated property names, listed and by pattern; `all_members`: every member is evaluated.
        prefix: items before this index are evaluated; `all_items`: every item is.
        kinds: conjunctions; an item that satisfies any of the conjunctions is evaluated.
    """

    outer: Scopes
    deferred: tuple[Deferred, ...]
    denied: int | None
    names: frozenset[str] = frozenset()
    tests: tuple[StringTest, ...] = ()
    all_members: bool = False
    prefix: int = 0
    all_items: bool = False
    kinds: tuple[Formulas, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenChoice:
    """At least one of the alternatives holds.

    Attributes:
        slot: the position of the choice in the document.
        scopes: the scopes that record the evaluation by the alternatives.
    """

    slot: Rank
    alternatives: tuple[Alternative, ...]
    scopes: Scopes


@dataclass(slots=True)
class ObjectFacts:
    """The knowledge about an object, as in `ObjectShape`; `members` without the formulas of `rules`.

    Attributes:
        ranks: where the document first mentions each member; a choice that is made late keeps its own position.
    """

    low: int = 0
    high: int | None = None
    source: Source = ("", "minProperties", "")
    members: dict[str, Formulas] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    rules: list[tuple[KeySet, Formulas]] = field(default_factory=list)
    witnesses: list[tuple[KeySet, Formulas, Source]] = field(default_factory=list)
    ranks: dict[str, Rank] = field(default_factory=dict)

    def demanded(self, name: str) -> Formulas:
        """Return all formulas that the value of a member of this name satisfies."""
        found = self.members.get(name, ())
        for keys, formulas in self.rules:
            if name in keys:
                if formulas is NONE:
                    return NONE
                found += formulas
        return found

    def shape(self) -> ObjectShape:
        """Return the knowledge as an alternative of the normal form."""
        names = dict.fromkeys(sorted(self.members, key=self.ranks.__getitem__))
        names.update(self.required)
        for keys, *_ in (*self.rules, *self.witnesses):
            if isinstance(keys, RemainingKeys):
                names.update(dict.fromkeys(keys.order or sorted(keys.names)))
        return ObjectShape(
            self.low,
            self.high,
            tuple((name, self.demanded(name)) for name in names),
            tuple(self.required),
            tuple(dict.fromkeys(self.rules)),
            tuple(self.witnesses),
            self.source,
        )

    def fork(self) -> ObjectFacts:
        """Return an independent copy."""
        return ObjectFacts(
            self.low,
            self.high,
            self.source,
            self.members.copy(),
            self.required.copy(),
            self.rules.copy(),
            self.witnesses.copy(),
            self.ranks.copy(),
        )


@dataclass(slots=True)
class Branch:
    """A conjunction that is being built.

    Attributes:
        types: types that are still possible, as bits.
        booleans: booleans that are still possible, as bits (1 false, 2 true).
        number, string, array, object: the knowledge about a value of the type.
        finite: the only values that are still possible; None if they are not listed.
        choices: choices that are still open.
        assumed: subschemas that the branch already satisfies, with the scopes that they were evaluated for.
        scopes: the evaluated members and items, for each schema with deferred assertions.
        changes: number of additions that were not known before.
        slot: position of the current choice; `steps` counts the steps within the choice.
    """

    graph: Graph
    types: int = ALL
    booleans: int = 3
    number: NumberSet = ANY_NUMBER
    string: StringSet = ANY_STRING
    array: ArrayShape = ANY_ARRAY
    object: ObjectFacts = field(default_factory=ObjectFacts)
    finite: list[Any] | None = None
    choices: list[OpenChoice] = field(default_factory=list)
    assumed: set[tuple[Located, Scopes]] = field(default_factory=set)
    scopes: list[EvaluationScope] = field(default_factory=list)
    changes: int = 0
    slot: Rank = ()
    steps: int = 0

    def with_choice(self, place: int) -> Branch:
        """Return a copy without the choice at this place, to which the caller applies an alternative of the choice."""
        other = self.fork()
        other.slot = other.choices.pop(place).slot
        return other

    def fork(self) -> Branch:
        """Return an independent copy."""
        return Branch(
            self.graph,
            self.types,
            self.booleans,
            self.number,
            self.string,
            self.array,
            self.object.fork(),
            self.finite,
            self.choices.copy(),
            self.assumed.copy(),
            self.scopes.copy(),
            self.changes,
            self.slot,
            self.steps,
        )

    def next_rank(self) -> Rank:
        """Return a new position in the order of the document."""
        self.steps += 1
        return (*self.slot, self.steps)

    # Conditions

    def apply_all(self, conditions: Iterable[Condition], scopes: Scopes = ()) -> bool:
        """Every condition holds. See `Condition.apply`."""
        return all(condition.apply(self, scopes) for condition in conditions)

    def choose(self, alternatives: Iterable[Alternative], scopes: Scopes = ()) -> bool:
        """Some alternative holds. A real choice is left open."""
        found = tuple(alternatives)
        if len(found) <= 1:
            return bool(found) and self.apply_all(found[0], scopes)
        self.choices.append(OpenChoice(self.next_rank(), found, scopes))
        self.changes += 1
        return True

    def assume(self, located: Located, scopes: Scopes = ()) -> bool:
        """The value satisfies the schema. Raises Unsupported."""
        if (located, scopes) in self.assumed:
            return True
        self.assumed.add((located, scopes))
        self.changes += bool(scopes)  # what is evaluated may be new
        assertions = self.graph.assertions(located)
        if assertions and assertions[-1].is_deferred:
            return self.apply_with_scope(assertions, scopes, denied=None)
        return self.apply_all(assertions, scopes)

    def deny(self, located: Located) -> bool:
        """The value does not satisfy the schema. Raises Unsupported."""
        assertions = self.graph.assertions(located)
        types = next((one.types for one in reversed(assertions) if isinstance(one, Type)), ALL)
        alternatives: Alternatives = []
        for assertion in assertions:
            if isinstance(assertion, Type) or assertion.domain & types:
                alternatives += assertion.refute(self.graph)
        deferred = sum(assertion.is_deferred for assertion in assertions)
        alternatives += [(UnevaluatedFails(assertions, number),) for number in range(deferred)]
        return self.choose(alternatives)

    def apply_with_scope(self, assertions: tuple[Assertion, ...], scopes: Scopes, *, denied: int | None) -> bool:
        """All but the deferred assertions hold; the solver settles those when no choice is open."""
        deferred = tuple(assertion for assertion in assertions if isinstance(assertion, Deferred))
        self.scopes.append(EvaluationScope(scopes, deferred, denied))
        self.changes += 1
        return self.apply_all(assertions, (*scopes, len(self.scopes) - 1))

    # Types and single values

    def limit_types(self, mask: int) -> bool:
        """The value has one of the types."""
        return self.drop(~mask)

    def drop(self, mask: int) -> bool:
        """The value has none of the types."""
        if self.types & mask:
            self.types &= ~mask
            self.changes += 1
        return self.types != 0

    def limit_booleans(self, bits: int) -> bool:
        """A boolean is one of these."""
        if self.booleans & ~bits:
            self.booleans &= bits
            self.changes += 1
        return self.booleans != 0 or self.drop(BOOLEAN)

    def limit_values(self, values: list[Any]) -> bool:
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

    # Scalars: the new set is a subset of the known one; None is the empty set

    def narrow_number(self, numbers: NumberSet | None) -> bool:
        """A number is in the set."""
        if numbers is None:
            return self.drop(NUMBER)
        if numbers is not self.number:
            self.number = numbers
            self.changes += 1
        return True

    def narrow_string(self, strings: StringSet | None) -> bool:
        """A string is in the set."""
        if strings is None:
            return self.drop(STRING)
        if strings is not self.string:
            self.string = strings
            self.changes += 1
        return True

    # Arrays

    def limit_items(self, low: int, high: int | None) -> bool:
        """An array has at least `low` and at most `high` items."""
        if low > self.array.low:
            self.array = replace(self.array, low=low)
            self.changes += 1
        if high is not None and (self.array.high is None or high < self.array.high):
            self.array = replace(self.array, high=high)
            self.changes += 1
        if self.array.high is not None and self.array.low > self.array.high:
            return self.drop(ARRAY)
        return True

    def add_items(self, start: int, stop: int | None, formulas: Formulas) -> bool:
        """Items of an array with start <= index < stop satisfy the formulas."""
        if formulas is NONE:
            return self.limit_items(0, start) if stop is None or stop > start else True
        if formulas and self.types & ARRAY:
            rule = ItemRule(start, stop, formulas)
            if rule not in self.array.rules:
                self.array = replace(self.array, rules=(*self.array.rules, rule))
                self.changes += 1
        return True

    def count_items(self, count: ItemCount) -> bool:
        """The number of items of an array that satisfy some formulas is within bounds."""
        if self.types & ARRAY:
            if count.high is not None and count.low > count.high:
                return self.drop(ARRAY)
            if count not in self.array.counts:
                self.array = replace(self.array, counts=(*self.array.counts, count))
                self.changes += 1
            return self.limit_items(count.start + count.low if count.low else 0, None)
        return True

    def set_unique(self, unique: bool, source: Source) -> bool:
        """All items of an array differ (two of them are equal)."""
        if self.array.unique is not None and self.array.unique is not unique:
            return self.drop(ARRAY)
        if self.array.unique is None:
            self.array = replace(self.array, unique=unique, unique_source=source)
            self.changes += 1
        return True if unique else self.limit_items(2, None)

    # Objects

    def limit_members(self, low: int, high: int | None, source: Source) -> bool:
        """An object has at least `low` and at most `high` members."""
        facts = self.object
        if low > facts.low:
            facts.low, facts.source = low, source
            self.changes += 1
        if high is not None and (facts.high is None or high < facts.high):
            facts.high = high
            self.changes += 1
        return self._check_member_count()

    def add_member(self, name: str, formulas: Formulas) -> bool:
        """The value of this member, where present, satisfies the formulas; NONE forbids the member."""
        if not self.types & OBJECT:
            return True
        facts = self.object
        rank = self.next_rank()
        if name not in facts.ranks or rank < facts.ranks[name]:
            facts.ranks[name] = rank
        known = facts.members.get(name)
        if known is None:
            known = facts.members[name] = ()
            self.changes += not formulas
        if formulas and known is not NONE and not implies(self.graph, facts.demanded(name), formulas):
            facts.members[name] = NONE if formulas is NONE else known + formulas
            self.changes += 1
        return name not in facts.required or self._check_member(name)

    def require(self, name: str) -> bool:
        """An object has this member."""
        if not self.types & OBJECT or name in self.object.required:
            return True
        self.object.required[name] = None
        self.changes += 1
        return self._check_member_count() and self._check_member(name)

    def add_rule(self, keys: KeySet, formulas: Formulas) -> bool:
        """Every member whose name is in the set satisfies the formulas."""
        if not self.types & OBJECT or not formulas:
            return True
        names = self.graph.listed_names(keys)
        if names is not None:
            return all(self.add_member(name, formulas) for name in names)
        if (keys, formulas) not in self.object.rules:
            self.object.rules.append((keys, formulas))
            self.changes += 1
        wanted = [name for name in self.object.required if name in keys]
        return all(not self.types & OBJECT or self._check_member(name) for name in wanted)

    def add_witness(self, keys: KeySet, formulas: Formulas, source: Source) -> bool:
        """Some member whose name is in the set satisfies the formulas."""
        facts = self.object
        if not any(keys == other and formulas == wanted for other, wanted, _ in facts.witnesses):
            facts.witnesses.append((keys, formulas, source))
            self.changes += 1
        return self.limit_members(1, None, source) if facts.low < 1 else True

    def add_required_member(self, name: str, formulas: Formulas) -> bool:
        """The value is an object with this member, which satisfies the formulas."""
        return self.limit_types(OBJECT) and self.add_member(name, formulas) and self.require(name)

    def required_values(self) -> dict[str, frozenset[Hashable]]:
        """Return the listed values of the members that the value must have; {} where it may be no object."""
        found: dict[str, frozenset[Hashable]] = {}
        for name in self.object.required if self.types == OBJECT else ():
            for formula in self.object.demanded(name):
                values = listed_values(self.graph, formula)
                if values is not None:
                    found[name] = frozenset([key(value) for value in values])
        return found

    def _check_member(self, name: str) -> bool:
        demanded = self.object.demanded(name)
        if demanded is NONE or (len(demanded) > 1 and contradict(self.graph, demanded)):
            self.graph.note_conflict(name, demanded)
            return self.drop(OBJECT)
        return True

    def _check_member_count(self) -> bool:
        facts = self.object
        if facts.high is not None and max(facts.low, len(facts.required)) > facts.high:
            return self.drop(OBJECT)
        return True
