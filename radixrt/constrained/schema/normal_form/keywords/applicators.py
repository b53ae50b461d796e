"""Keywords that apply other schemas to the value itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.disjointness import (
    are_disjoint,
    is_discriminated,
    lists_other_values,
    options_by_value,
)
from radixrt.constrained.schema.normal_form.keywords.base import (
    REFERENCES,
    Alternative,
    Alternatives,
    Assertion,
    Choice,
)
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas, Is
from radixrt.constrained.schema.normal_form.static_checks import evaluates, evaluates_all_members, possible_types
from radixrt.constrained.schema.values import key

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.branch import Branch, Scopes
    from radixrt.constrained.schema.normal_form.graph import Graph
    from radixrt.constrained.schema.normal_form.keywords.reader import KeywordReader
    from radixrt.constrained.schema.normal_form.validation import Context

MAX_SETS = 64
"""Sets of an `anyOf`'s options that are tried when an object is closed; if there are more, each option is decided."""


@dataclass(frozen=True, eq=False, slots=True)
class Reference(Assertion):
    """`$ref`, `$dynamicRef`, `$recursiveRef`: the target holds."""

    keywords = REFERENCES

    target: Located

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        document = reader.document
        if keyword == "$dynamicRef":
            target = document.resolve_dynamic(located, value)
        elif keyword == "$recursiveRef":
            target = document.resolve_recursive(located)
        else:
            target = document.resolve(located, value)
        yield cls(located, keyword, target)

    def holds(self, context: Context, value: Any) -> bool:
        return context.satisfies_in_place(self.target, value)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.assume(self.target, scopes)

    def refute(self, graph: Graph) -> Alternatives:
        return [(Is(self.target, False),)]

    def formulas(self, graph: Graph, *, positive: bool) -> Formulas:
        return graph.formulas(self.target, positive=positive)

    @property
    def every(self) -> tuple[Located, ...]:
        return (self.target,)


@dataclass(frozen=True, eq=False, slots=True)
class _Options(Assertion):
    options: tuple[Located, ...]

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, reader.children(located, keyword))

    def _conjunction(self, graph: Graph, *, positive: bool) -> Formulas:
        """Return the formulas by which every option holds, or none of them."""
        parts = [graph.formulas(option, positive=positive) for option in self.options]
        if any(part is NONE for part in parts):
            return NONE
        return tuple(dict.fromkeys(formula for part in parts for formula in part))


class AllOf(_Options):
    """`allOf`."""

    __slots__ = ()
    keywords = ("allOf",)

    def holds(self, context: Context, value: Any) -> bool:
        return all(context.satisfies_in_place(option, value) for option in self.options)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return all(branch.assume(option, scopes) for option in self.options)

    def refute(self, graph: Graph) -> Alternatives:
        return [(Is(option, False),) for option in self.options]

    def formulas(self, graph: Graph, *, positive: bool) -> Formulas | None:
        return self._conjunction(graph, positive=True) if positive else None

    @property
    def every(self) -> tuple[Located, ...]:
        return self.options


class AnyOf(_Options):
    """`anyOf`."""

    __slots__ = ()
    keywords = ("anyOf",)

    def holds(self, context: Context, value: Any) -> bool:
        found = False
        for option in self.options:
            found = context.satisfies_in_place(option, value) or found
            if found and context.evaluated is None:
                return True
        return found

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        """Choose an option; if evaluation is recorded, every alternative decides each option."""
        graph = branch.graph
        if scopes and any(evaluates(graph, option) for option in self.options):
            if graph.closing is not None and scopes == (0,):
                sets = self._combinations(graph)
                if sets is not None:
                    return branch.choose(sets, scopes)
            return branch.choose([self._first_of(place) for place in range(len(self.options))], scopes)
        live: Alternatives = []
        for option in self.options:
            if not graph.assertions(option):
                return True
            if possible_types(graph, option) & branch.types:
                live.append((Is(option, True),))
        return branch.choose(live)

    def _combinations(self, graph: Graph) -> Alternatives | None:
        """Return the sets of options that may hold together, at least one of which must hold; None if there are too
        many sets.

        A set does not exclude that further options hold. Where the scope only closes the object, further options would
        only admit more members, and a larger set covers that case.
        """
        sets: list[tuple[Located, ...]] = [()]
        for option in self.options:
            if evaluates_all_members(graph, option):
                sets.append((option,))  # no other option admits more members
            else:
                sets += [
                    (*chosen, option)
                    for chosen in sets
                    if not any(
                        evaluates_all_members(graph, other) or are_disjoint(graph, option, other) for other in chosen
                    )
                ]
            if len(sets) > MAX_SETS:
                return None
        return [tuple(Is(option, True) for option in chosen) for chosen in sorted(sets[1:], key=len)]

    def _first_of(self, place: int) -> Alternative:
        """Return the alternative in which the option at a place is the first that holds."""
        options = self.options
        later = tuple(Choice(((Is(option, True),), (Is(option, False),))) for option in options[place + 1 :])
        return (*(Is(option, False) for option in options[:place]), Is(options[place], True), *later)

    def refute(self, graph: Graph) -> Alternatives:
        return [tuple(Is(option, False) for option in self.options)]

    def formulas(self, graph: Graph, *, positive: bool) -> Formulas | None:
        return None if positive else self._conjunction(graph, positive=False)

    @property
    def some(self) -> tuple[Located, ...]:
        return self.options


class OneOf(_Options):
    """`oneOf`."""

    __slots__ = ()
    keywords = ("oneOf",)

    def holds(self, context: Context, value: Any) -> bool:
        listed = options_by_value(context.graph, self)
        if listed is not None:
            found = listed.get(key(value))
            return found is not None and context.satisfies_in_place(found[0], value, exact=True)
        return sum(context.satisfies_in_place(option, value, exact=True) for option in self.options) == 1

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        listed = options_by_value(branch.graph, self)
        if listed is not None:
            return branch.limit_values([value for _, value in listed.values()])
        possible = tuple(option for option in self.options if possible_types(branch.graph, option) & branch.types)
        return branch.choose([(OnlyOne(self, option, possible),) for option in possible], scopes)

    def refute(self, graph: Graph) -> Alternatives:
        found: Alternatives = [tuple(Is(option, False) for option in self.options)]
        if is_discriminated(graph, self):
            return found
        for place, one in enumerate(self.options):
            for two in self.options[place + 1 :]:
                if one is two or not are_disjoint(graph, one, two):
                    found.append((Is(one, True), Is(two, True)))
        return found

    @property
    def some(self) -> tuple[Located, ...]:
        return self.options


@dataclass(frozen=True, eq=False, slots=True)
class OnlyOne:
    """A given option of `oneOf` holds, and all other possible options fail."""

    assertion: OneOf
    option: Located
    possible: tuple[Located, ...]

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        graph = branch.graph
        if self.possible.count(self.option) > 1 or not branch.assume(self.option, scopes):
            return False
        if is_discriminated(graph, self.assertion):
            return True
        # Deny the options that can hold together with the given one.
        values = branch.required_values()
        return all(
            other is self.option
            or (values and lists_other_values(graph, other, values))
            or are_disjoint(graph, self.option, other)
            or branch.deny(other)
            for other in self.possible
            if possible_types(graph, other) & branch.types
        )


@dataclass(frozen=True, eq=False, slots=True)
class Not(Assertion):
    """`not`."""

    keywords = ("not",)

    inner: Located

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, reader.child(located, keyword))

    def holds(self, context: Context, value: Any) -> bool:
        return not context.satisfies(self.inner, value, exact=True)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.deny(self.inner)

    def refute(self, graph: Graph) -> Alternatives:
        return [(Is(self.inner, True),)]

    def formulas(self, graph: Graph, *, positive: bool) -> Formulas:
        return graph.formulas(self.inner, positive=not positive)

    @property
    def in_place(self) -> tuple[Located, ...]:
        return (self.inner,)


@dataclass(frozen=True, eq=False, slots=True)
class If(Assertion):
    """`if` with `then` and `else`, either of which may be absent."""

    keywords = ("if",)

    condition: Located
    then: Located | None
    otherwise: Located | None

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        then = reader.child(located, "then") if "then" in located.schema else None
        otherwise = reader.child(located, "else") if "else" in located.schema else None
        yield cls(located, keyword, reader.child(located, keyword), then, otherwise)

    def holds(self, context: Context, value: Any) -> bool:
        taken = self.then if context.satisfies_in_place(self.condition, value, exact=True) else self.otherwise
        return taken is None or context.satisfies_in_place(taken, value)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        if self.then is None and self.otherwise is None and not scopes:
            return True
        then = () if self.then is None else (Is(self.then, True),)
        otherwise = () if self.otherwise is None else (Is(self.otherwise, True),)
        return branch.choose([(Is(self.condition, True), *then), (Is(self.condition, False), *otherwise)], scopes)

    def refute(self, graph: Graph) -> Alternatives:
        found: Alternatives = []
        if self.then is not None:
            found.append((Is(self.condition, True), Is(self.then, False)))
        if self.otherwise is not None:
            found.append((Is(self.condition, False), Is(self.otherwise, False)))
        return found

    @property
    def in_place(self) -> tuple[Located, ...]:
        return tuple(part for part in (self.condition, self.then, self.otherwise) if part is not None)
