"""Conditions on a value, and assertions: the keywords of a schema object as conditions.

An assertion is an instance of its keyword's class. The methods of a class define the meaning of the keyword, and must
agree for every JSON value: `holds` follows the specification; `apply` keeps exactly the values of a branch that satisfy
the assertion; `refute` lists alternatives that together keep exactly the values that violate the assertion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.nodes import Formulas
from radixrt.constrained.schema.normal_form.strings import Source
from radixrt.constrained.schema.values import ALL, ARRAY, NUMBER, OBJECT, STRING

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.branch import Branch, EvaluationScope, Scopes
    from radixrt.constrained.schema.normal_form.graph import Graph
    from radixrt.constrained.schema.normal_form.keywords.reader import KeywordReader
    from radixrt.constrained.schema.normal_form.validation import Context

REFERENCES = ("$dynamicRef", "$recursiveRef", "$ref")


class Condition(Protocol):
    """A condition on a value, which the solver applies to a branch."""

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        """Keep the values of the branch for which the condition holds.

        Args:
            scopes: the scopes that record the members and items evaluated by the condition.

        Returns:
            False if no value is left; the branch is of no further use then.

        Raises:
            Unsupported: a keyword cannot be enforced.
        """


Alternative = tuple[Condition, ...]
"""A conjunction of conditions. The empty tuple holds for every value."""
Alternatives = list[Alternative]


@dataclass(frozen=True, eq=False, slots=True)
class Assertion(ABC):
    """A keyword, together with the adjacent keywords that it depends on.

    Attributes:
        keywords: the keywords that the class reads.
        domain: types of values that the assertion can reject; it holds for all others.
        is_deferred: the assertion depends on the members and items that the schema's other assertions evaluate.
        located: the schema that holds the keyword.
        keyword: its name.
    """

    keywords: ClassVar[tuple[str, ...]] = ()
    domain: ClassVar[int] = ALL
    is_deferred: ClassVar[bool] = False

    located: Located
    keyword: str

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        """Yield the assertions of a keyword with this value. Raises Unsupported, MalformedSchema."""
        raise NotImplementedError

    @abstractmethod
    def holds(self, context: Context, value: Any) -> bool:
        """Return whether a parsed value satisfies the assertion. Raises Unsupported; see `Context.exact`."""

    @abstractmethod
    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        """See `Condition.apply`."""

    @abstractmethod
    def refute(self, graph: Graph) -> Alternatives:
        """Return alternatives that together hold for exactly the values that do not satisfy the assertion."""

    def formulas(self, graph: Graph, *, positive: bool) -> Formulas | None:
        """Return the formulas that are equivalent to the assertion, or to its negation; None where only a formula of
        the whole schema is."""
        return None

    @property
    def accepted_types(self) -> int:
        """An upper bound on the types of which the assertion accepts a value, its subschemas not looked at."""
        return ALL

    @property
    def every(self) -> tuple[Located, ...]:
        """Subschemas that every value satisfies that satisfies the assertion."""
        return ()

    @property
    def some(self) -> tuple[Located, ...]:
        """Subschemas of which every value that satisfies the assertion satisfies one; empty if none are known."""
        return ()

    @property
    def in_place(self) -> tuple[Located, ...]:
        """The subschemas that the assertion applies to the value itself."""
        return self.every or self.some

    def source(self) -> Source:
        """Return the origin of a bound that this assertion sets."""
        return (self.located.pointer, self.keyword, "")

    def unsupported(self, reason: str, fix: str) -> Unsupported:
        """Return the refusal of this keyword."""
        return Unsupported(self.located.pointer, self.keyword, reason, fix)


class Excludable(Assertion):
    """A keyword whose violation a branch states without alternatives."""

    __slots__ = ()

    @abstractmethod
    def exclude(self, branch: Branch) -> bool:
        """Keep the values of the branch that do not satisfy the assertion. Raises Unsupported."""


@dataclass(frozen=True, eq=False, slots=True)
class Deferred(Assertion):
    """`unevaluatedItems` and `unevaluatedProperties`, which the solver settles when no choice is open."""

    is_deferred: ClassVar[bool] = True

    inner: Located

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, reader.child(located, keyword))

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return True

    def refute(self, graph: Graph) -> Alternatives:
        return []  # see `UnevaluatedFails`

    @abstractmethod
    def settle(self, branch: Branch, scope: EvaluationScope) -> bool:
        """Apply the assertion to the members and items that the scope did not record as evaluated."""

    @abstractmethod
    def settle_denied(self, branch: Branch, scope: EvaluationScope) -> bool:
        """Apply the negation to the members and items that the scope did not record as evaluated."""


@dataclass(frozen=True, eq=False, slots=True)
class Size(Assertion):
    """low <= size <= high. Subclasses define the size."""

    low: int
    high: int | None

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, int(value), None) if keyword[:3] == "min" else cls(located, keyword, 0, int(value))

    def refute(self, graph: Graph) -> Alternatives:
        has_type, kind = OfType(self.domain), type(self)
        if self.high is not None:
            return [(has_type, kind(self.located, self.keyword, self.high + 1, None))]
        return [(has_type, kind(self.located, self.keyword, 0, self.low - 1))] if self.low else []

    def contains(self, size: int) -> bool:
        """Return whether the size lies within the bounds."""
        return size >= self.low and (self.high is None or size <= self.high)


# Other conditions


@dataclass(frozen=True, eq=False, slots=True)
class OfType:
    """The value has one of the types; numbers are whole (have a fraction) if `integer` is True (False)."""

    types: int
    integer: bool | None = None

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        if not branch.limit_types(self.types):
            return False
        return (
            self.integer is None or not branch.types & NUMBER or branch.narrow_number(branch.number.whole(self.integer))
        )


IS_NUMBER, IS_STRING, IS_ARRAY, IS_OBJECT = OfType(NUMBER), OfType(STRING), OfType(ARRAY), OfType(OBJECT)


@dataclass(frozen=True, eq=False, slots=True)
class Excluded:
    """The value does not satisfy the assertion."""

    assertion: Excludable

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return self.assertion.exclude(branch)


@dataclass(frozen=True, eq=False, slots=True)
class UnevaluatedFails:
    """All assertions of a schema hold but the deferred one with this number, which does not."""

    assertions: tuple[Assertion, ...]
    denied: int

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.apply_with_scope(self.assertions, (), denied=self.denied)


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """At least one of the alternatives holds."""

    alternatives: tuple[Alternative, ...]

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.choose(self.alternatives, scopes)
