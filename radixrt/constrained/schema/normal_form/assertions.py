"""Assertions: the keywords of a schema object as data.

Three functions define the meaning of an assertion, and must agree for every JSON value. `validation.satisfies` follows
the specification. `propagation.apply` keeps exactly the values of a branch that satisfy the assertion.
`negation.refute` lists alternatives that together keep exactly the values that violate the assertion.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from radixrt.constrained.regex import Regex, RegexError, parse_regex
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.strings import KeySet, Source, StringTest
from radixrt.constrained.schema.values import ALL, ARRAY, NUMBER, OBJECT, STRING


@dataclass(frozen=True, eq=False, slots=True)
class Assertion:
    """A keyword, together with the adjacent keywords that it depends on.

    Attributes:
        located: the schema that holds the keyword.
        keyword: its name.
        domain: types of values that the assertion can reject; it holds for all others.
        is_deferred: the assertion depends on the members and items that the schema's other assertions evaluate.
    """

    domain: ClassVar[int] = ALL
    is_deferred: ClassVar[bool] = False

    located: Located
    keyword: str

    def source(self) -> Source:
        """Return the origin of a bound that this assertion sets."""
        return (self.located.pointer, self.keyword, "")

    def unsupported(self, reason: str, fix: str) -> Unsupported:
        """Return the refusal of this keyword."""
        return Unsupported(self.located.pointer, self.keyword, reason, fix)


@dataclass(frozen=True, eq=False, slots=True)
class FalseSchema(Assertion):
    """The schema `false`."""


# Applicators for the value itself


@dataclass(frozen=True, eq=False, slots=True)
class Reference(Assertion):
    """`$ref`, `$dynamicRef`, `$recursiveRef`: the target holds."""

    target: Located


@dataclass(frozen=True, eq=False, slots=True)
class _Options(Assertion):
    options: tuple[Located, ...]


class AllOf(_Options):
    """`allOf`."""

    __slots__ = ()


class AnyOf(_Options):
    """`anyOf`."""

    __slots__ = ()


class OneOf(_Options):
    """`oneOf`."""

    __slots__ = ()


@dataclass(frozen=True, eq=False, slots=True)
class Not(Assertion):
    """`not`."""

    inner: Located


@dataclass(frozen=True, eq=False, slots=True)
class If(Assertion):
    """`if` with `then` and `else`, either of which may be absent."""

    condition: Located
    then: Located | None
    otherwise: Located | None


# Scalars


@dataclass(frozen=True, eq=False, slots=True)
class Type(Assertion):
    """`type`, with OpenAPI's `nullable` merged into it.

    Attributes:
        types: bits of the types named.
        integer: among numbers, only whole ones are accepted.
    """

    types: int
    integer: bool


@dataclass(frozen=True, eq=False, slots=True)
class Enum(Assertion):
    """`enum` and `const`.

    Attributes:
        values: the values by `values.key`.
        types: bits of the values' types.
    """

    values: dict[Hashable, Any]
    types: int


@dataclass(frozen=True, eq=False, slots=True)
class Pattern(Assertion):
    """`pattern`, and `format` where formats are asserted.

    Attributes:
        test: strings that certainly conform.
        format_superset: for a format, a language with every conforming string: the language of `test`, or a larger
            language where our grammar is stricter than the specification. None if no superset is known.
    """

    domain: ClassVar[int] = STRING

    test: StringTest
    format_superset: Regex | None

    def superset(self) -> Regex | None:
        """Return a language with every string that some reader may take; None if none is known."""
        if self.keyword == "pattern":
            try:
                return parse_regex(self.test.source[2], search=True, mode="wide")
            except RegexError:
                return None
        return self.format_superset

    def uncertain(self) -> Unsupported:
        """Return the refusal for a negated format whose complement is not known exactly."""
        reason = (
            f"it must not hold here, and which strings are not of the format '{self.test.source[2]}' is not certain"
        )
        if self.keyword == "pattern":
            reason = "ECMA-262, Python's re and Rust's regex disagree on whether a listed value matches it"
            return self.unsupported(reason, "Write the characters in place of \\w, \\d, \\s, . or \\b.")
        return self.unsupported(reason, "Write a pattern instead.")


@dataclass(frozen=True, eq=False, slots=True)
class Bound(Assertion):
    """`minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`; `is_lower` and `is_open` tell which."""

    domain: ClassVar[int] = NUMBER

    bound: Decimal
    is_lower: bool
    is_open: bool


@dataclass(frozen=True, eq=False, slots=True)
class MultipleOf(Assertion):
    """`multipleOf`, exact in decimals: 19.99 is a multiple of 0.01."""

    domain: ClassVar[int] = NUMBER

    step: Decimal


@dataclass(frozen=True, eq=False, slots=True)
class Size(Assertion):
    """low <= size <= high. Subclasses define the size."""

    low: int
    high: int | None

    def contains(self, size: int) -> bool:
        """Return whether the size lies within the bounds."""
        return size >= self.low and (self.high is None or size <= self.high)


class StringLength(Size):
    """`minLength`, `maxLength`, in code points."""

    __slots__ = ()
    domain: ClassVar[int] = STRING


class ArrayLength(Size):
    """`minItems`, `maxItems`."""

    __slots__ = ()
    domain: ClassVar[int] = ARRAY


class ObjectSize(Size):
    """`minProperties`, `maxProperties`."""

    __slots__ = ()
    domain: ClassVar[int] = OBJECT


# Arrays


@dataclass(frozen=True, eq=False, slots=True)
class PrefixItems(Assertion):
    """`prefixItems` (`items` as a list in older drafts): one schema for each of the first items."""

    domain: ClassVar[int] = ARRAY

    items: tuple[Located, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Items(Assertion):
    """`items` (`additionalItems` in older drafts): every item from index `start` on satisfies a schema."""

    domain: ClassVar[int] = ARRAY

    start: int
    item: Located


@dataclass(frozen=True, eq=False, slots=True)
class Contains(Assertion):
    """`contains` with `minContains` (`low`) and `maxContains` (`high`)."""

    domain: ClassVar[int] = ARRAY

    item: Located
    low: int
    high: int | None


@dataclass(frozen=True, eq=False, slots=True)
class UniqueItems(Assertion):
    """`uniqueItems: true`; if not `unique`, its negation: two items are equal."""

    domain: ClassVar[int] = ARRAY

    unique: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class UnevaluatedItems(Assertion):
    """`unevaluatedItems`."""

    domain: ClassVar[int] = ARRAY
    is_deferred: ClassVar[bool] = True

    item: Located


# Objects


@dataclass(frozen=True, eq=False, slots=True)
class Properties(Assertion):
    """`properties`: each named member that is present satisfies its schema.

    Attributes:
        required: names that the same schema requires. The negation of `Required` covers their absence and their wrong
            values in one alternative; the negation of `Properties` skips them.
    """

    domain: ClassVar[int] = OBJECT

    members: dict[str, Located]
    required: frozenset[str]


@dataclass(frozen=True, eq=False, slots=True)
class MembersMatching(Assertion):
    """`additionalProperties`, or one pattern of `patternProperties`: members with names in a set satisfy a schema.

    Attributes:
        keys: the names that are in the set for any reader of the patterns.
        certain: the names that are in the set for all readers; another set only where readers differ.
    """

    domain: ClassVar[int] = OBJECT

    keys: KeySet
    certain: KeySet
    member: Located


@dataclass(frozen=True, eq=False, slots=True)
class PropertyNames(Assertion):
    """`propertyNames`: every name satisfies a schema."""

    domain: ClassVar[int] = OBJECT

    names: Located


@dataclass(frozen=True, eq=False, slots=True)
class Required(Assertion):
    """`required`; `declared` holds the schemas of the names that the same schema declares."""

    domain: ClassVar[int] = OBJECT

    names: tuple[str, ...]
    declared: dict[str, Located]


@dataclass(frozen=True, eq=False, slots=True)
class DependentRequired(Assertion):
    """One name of `dependentRequired`: an object with this member has the others too."""

    domain: ClassVar[int] = OBJECT

    name: str
    needed: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class DependentSchema(Assertion):
    """One name of `dependentSchemas`: an object with this member satisfies a schema."""

    domain: ClassVar[int] = OBJECT

    name: str
    then: Located


@dataclass(frozen=True, eq=False, slots=True)
class UnevaluatedProperties(Assertion):
    """`unevaluatedProperties`."""

    domain: ClassVar[int] = OBJECT
    is_deferred: ClassVar[bool] = True

    member: Located


def in_place(assertion: Assertion) -> tuple[Located, ...]:
    """Return the subschemas that an assertion applies to the value itself."""
    if isinstance(assertion, _Options):
        return assertion.options
    if isinstance(assertion, Reference):
        return (assertion.target,)
    if isinstance(assertion, Not):
        return (assertion.inner,)
    if isinstance(assertion, DependentSchema):
        return (assertion.then,)
    if isinstance(assertion, If):
        return tuple(part for part in (assertion.condition, assertion.then, assertion.otherwise) if part is not None)
    return ()


def accepted_types(assertion: Assertion) -> int:
    """Return an upper bound on the types of which the assertion accepts a value, its subschemas not looked at."""
    if isinstance(assertion, Type | Enum):
        return assertion.types
    return 0 if isinstance(assertion, FalseSchema) else ALL
