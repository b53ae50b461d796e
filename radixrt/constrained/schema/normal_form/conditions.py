"""Conditions on a value, which the solver applies to a branch one by one, and alternatives made of conditions."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.assertions import Assertion, Enum, MultipleOf, OneOf, Pattern, PropertyNames
from radixrt.constrained.schema.normal_form.nodes import Either, Formulas, Is, ItemCount, Never
from radixrt.constrained.schema.normal_form.strings import KeySet, Source


@dataclass(frozen=True, eq=False, slots=True)
class OfType:
    """The value has one of the types; numbers are whole (have a fraction) if `integer` is True (False)."""

    types: int
    integer: bool | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Negated:
    """The value does not satisfy the assertion, which the solver can state without alternatives."""

    assertion: Enum | Pattern | MultipleOf | PropertyNames


@dataclass(frozen=True, eq=False, slots=True)
class ItemFails:
    """The value is an array with an item at this index, which does not satisfy the schema."""

    index: int
    item: Located


@dataclass(frozen=True, eq=False, slots=True)
class MemberFails:
    """The value is an object whose member of this name does not satisfy the schema.

    Attributes:
        schema: None if no value satisfies the condition, that is, the member is absent.
        present: the member must be present; otherwise it may be absent too.
    """

    name: str
    schema: Located | None
    present: bool


@dataclass(frozen=True, eq=False, slots=True)
class Member:
    """The member of this name, where present, satisfies the formulas; it is present if `required`."""

    name: str
    formulas: Formulas
    required: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class SomeMember:
    """The value is an object with a member whose name is in the set and whose value satisfies the formulas."""

    keys: KeySet
    formulas: Formulas
    source: Source


@dataclass(frozen=True, eq=False, slots=True)
class OnlyOne:
    """A given option of `oneOf` holds, and all other possible options fail."""

    assertion: OneOf
    option: Located
    possible: tuple[Located, ...]


@dataclass(frozen=True, eq=False, slots=True)
class UnevaluatedFails:
    """All assertions of a schema hold but the deferred one with this number, which does not."""

    assertions: tuple[Assertion, ...]
    denied: int


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """At least one of the alternatives holds."""

    alternatives: tuple[Alternative, ...]


Condition = (
    Assertion
    | Is
    | Either
    | Never
    | OfType
    | Negated
    | ItemFails
    | ItemCount
    | MemberFails
    | Member
    | SomeMember
    | OnlyOne
    | UnevaluatedFails
    | Choice
)
Alternative = tuple[Condition, ...]
"""A conjunction of conditions. The empty tuple holds for every value."""
