"""Keywords for types and single values, strings and numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from radixrt.constrained.regex import FORMATS, Regex, RegexError, matches, parse_regex
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.keywords.base import (
    IS_NUMBER,
    IS_STRING,
    Alternatives,
    Assertion,
    Excludable,
    Excluded,
    OfType,
    Size,
)
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas
from radixrt.constrained.schema.normal_form.numbers import is_multiple
from radixrt.constrained.schema.normal_form.strings import StringTest
from radixrt.constrained.schema.values import ALL, BOOLEAN, NULL, NUMBER, STRING, decimal_of, is_integer, key, type_of

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.branch import Branch, Scopes
    from radixrt.constrained.schema.normal_form.graph import Graph
    from radixrt.constrained.schema.normal_form.keywords.reader import KeywordReader
    from radixrt.constrained.schema.normal_form.validation import Context

EXACT_FORMATS = frozenset({"date", "ipv4", "json-pointer", "uuid"})
"""Formats whose language is everything that their specification allows."""
_VISIBLE = r"[^\u0000-\u0020]"
_OFFSET = r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
_CLOCK = rf"[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?{_OFFSET}"
_SUPERSETS = {
    "date-time": rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[^0-9]{_CLOCK}",
    "duration": r"P[0-9A-Z.,]+",
    "email": r"[^]*@[^]*",
    "hostname": r"[A-Za-z0-9._-]+",
    "idn-email": r"[^]*@[^]*",
    "idn-hostname": rf"{_VISIBLE}+",
    "ipv6": r"[0-9A-Fa-f:.]{2,}",
    "iri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_VISIBLE}*",
    "iri-reference": rf"{_VISIBLE}*",
    "relative-json-pointer": r"[0-9][^]*",
    "time": _CLOCK,
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*",
    "uri-reference": r"[!-~]*",
    "uri-template": rf"{_VISIBLE}*",
}
"""Languages with every string of a format, and others, for a format that must not hold."""


@cache
def format_superset(name: str) -> Regex | None:
    """Return a language that has every string of the format; None if none is known.

    The language of a format (`regex.FORMATS`) never has a string that violates the specification, but may lack some
    that conform. Where a format must not hold, the complement of this superset is enforced instead.
    """
    if name in EXACT_FORMATS:
        return FORMATS[name]
    pattern = _SUPERSETS.get(name)
    return None if pattern is None else parse_regex(pattern, search=False, mode="ecma")


@dataclass(frozen=True, eq=False, slots=True)
class FalseSchema(Assertion):
    """The schema `false`."""

    def holds(self, context: Context, value: Any) -> bool:
        return False

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return False

    def refute(self, graph: Graph) -> Alternatives:
        return [()]

    def formulas(self, graph: Graph, *, positive: bool) -> Formulas:
        return NONE if positive else ()

    @property
    def accepted_types(self) -> int:
        return 0


@dataclass(frozen=True, eq=False, slots=True)
class Type(Assertion):
    """`type`, with OpenAPI's `nullable` merged into it.

    Attributes:
        types: bits of the types named.
        integer: among numbers, only whole ones are accepted.
    """

    keywords = ("type",)

    types: int
    integer: bool

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        types, integer = located.resource.dialect.types(located.schema)
        yield cls(located, keyword, types, integer)

    def holds(self, context: Context, value: Any) -> bool:
        bit = type_of(value)
        return bool(bit & self.types) and (bit != NUMBER or not self.integer or is_integer(value))

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return OfType(self.types, self.integer or None).apply(branch, scopes)

    def refute(self, graph: Graph) -> Alternatives:
        if self.integer:
            return [(OfType(ALL & ~(self.types & ~NUMBER), integer=False),)]
        return [(OfType(ALL & ~self.types),)]

    @property
    def accepted_types(self) -> int:
        return self.types


@dataclass(frozen=True, eq=False, slots=True)
class Enum(Excludable):
    """`enum` and `const`.

    Attributes:
        values: the values by `values.key`.
        types: bits of the values' types.
    """

    keywords = ("enum", "const")

    values: dict[Hashable, Any]
    types: int

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        values = reader.listed(located, keyword, value if keyword == "enum" else [value])
        types = 0
        for one in values.values():
            types |= type_of(one)
        yield cls(located, keyword, values, types)

    def holds(self, context: Context, value: Any) -> bool:
        return key(value) in self.values

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.limit_values(list(self.values.values()))

    def refute(self, graph: Graph) -> Alternatives:
        return [(Excluded(self),)]

    def exclude(self, branch: Branch) -> bool:
        values = list(self.values.values())
        strings = frozenset(value for value in values if type(value) is str)
        numbers = frozenset(decimal_of(value) for value in values if type_of(value) == NUMBER)
        if strings and branch.types & STRING:
            branch.narrow_string(branch.string.without(strings))
        if numbers and branch.types & NUMBER:
            branch.narrow_number(branch.number.without(numbers))
        if None in self.values:
            branch.drop(NULL)
        for value in values:
            if type(value) is bool and branch.types & BOOLEAN:
                branch.limit_booleans(1 if value else 2)
        return branch.types != 0 and all(
            not branch.types & type_of(value) or branch.deny(self._schema_of(branch.graph, value))
            for value in values
            if isinstance(value, list | dict)
        )

    def _schema_of(self, graph: Graph, value: list[Any] | dict[str, Any]) -> Located:
        """Return a schema for exactly this array or object, one level deep."""
        schema: dict[str, Any]
        if isinstance(value, list):
            items = [{"const": item} for item in value]
            schema = {"type": "array", "minItems": len(value), "maxItems": len(value), "prefixItems": items}
        else:
            members = {name: {"const": member} for name, member in value.items()}
            schema = {"type": "object", "required": list(value), "properties": members, "additionalProperties": False}
        return graph.document.synthetic(schema, self.located)

    @property
    def accepted_types(self) -> int:
        return self.types


# Strings


@dataclass(frozen=True, eq=False, slots=True)
class Pattern(Excludable):
    """`pattern`, and `format` where formats are asserted.

    Attributes:
        test: strings that certainly conform.
        format_superset: for a format, a language with every conforming string: the language of `test`, or a larger
            language where our grammar is stricter than the specification. None if no superset is known.
    """

    keywords = ("pattern", "format")
    domain: ClassVar[int] = STRING

    test: StringTest
    format_superset: Regex | None

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        if keyword == "pattern":
            yield cls(located, keyword, reader.pattern_test(located, keyword, value, located.pointer), None)
        elif reader.formats != "assert" or value not in FORMATS:
            reader.annotations[located.pointer, keyword] = None
        else:
            test = StringTest(FORMATS[value], True, (located.pointer, keyword, value))
            yield cls(located, keyword, test, format_superset(value))

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not str or matches(self.test.regex, value):
            return True
        if context.exact:
            superset = self._superset()
            if superset is None or (superset is not self.test.regex and matches(superset, value)):
                raise self._uncertain()
        return False

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return not branch.types & STRING or branch.narrow_string(branch.string.passing(self.test))

    def refute(self, graph: Graph) -> Alternatives:
        return [(IS_STRING, Excluded(self))]

    def exclude(self, branch: Branch) -> bool:
        superset = self._superset()
        if superset is None:
            raise self._uncertain()
        return branch.narrow_string(branch.string.passing(StringTest(superset, False, self.test.source)))

    def _superset(self) -> Regex | None:
        """Return a language with every string that some reader may take; None if none is known."""
        if self.keyword == "pattern":
            try:
                return parse_regex(self.test.source[2], search=True, mode="wide")
            except RegexError:
                return None
        return self.format_superset

    def _uncertain(self) -> Unsupported:
        """Return the refusal for a negated format whose complement is not known exactly."""
        reason = (
            f"it must not hold here, and which strings are not of the format '{self.test.source[2]}' is not certain"
        )
        if self.keyword == "pattern":
            reason = "ECMA-262, Python's re and Rust's regex disagree on whether a listed value matches it"
            return self.unsupported(reason, "Write the characters in place of \\w, \\d, \\s, . or \\b.")
        return self.unsupported(reason, "Write a pattern instead.")


class StringLength(Size):
    """`minLength`, `maxLength`, in code points."""

    __slots__ = ()
    keywords = ("minLength", "maxLength")
    domain: ClassVar[int] = STRING

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not str or self.contains(len(value))

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.narrow_string(branch.string.with_length(self.low, self.high))


# Numbers


@dataclass(frozen=True, eq=False, slots=True)
class Bound(Assertion):
    """`minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`; `is_lower` and `is_open` tell which."""

    keywords = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    domain: ClassVar[int] = NUMBER

    bound: Decimal
    is_lower: bool
    is_open: bool

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        if isinstance(value, bool):
            return  # draft 4: read together with `minimum` or `maximum`
        is_lower = keyword.lower().endswith("minimum")
        is_open = keyword.startswith("exclusive")
        is_open = is_open or located.schema.get("exclusiveMinimum" if is_lower else "exclusiveMaximum") is True
        yield cls(located, keyword, decimal_of(value), is_lower, is_open)

    def holds(self, context: Context, value: Any) -> bool:
        if type_of(value) != NUMBER:
            return True
        number = decimal_of(value)
        return not self.is_open if number == self.bound else (number > self.bound) is self.is_lower

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        limit = branch.number.above if self.is_lower else branch.number.below
        return branch.narrow_number(limit(self.bound, open_=self.is_open))

    def refute(self, graph: Graph) -> Alternatives:
        return [(IS_NUMBER, replace(self, is_lower=not self.is_lower, is_open=not self.is_open))]


@dataclass(frozen=True, eq=False, slots=True)
class MultipleOf(Excludable):
    """`multipleOf`, exact in decimals: 19.99 is a multiple of 0.01."""

    keywords = ("multipleOf",)
    domain: ClassVar[int] = NUMBER

    step: Decimal

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, decimal_of(value))

    def holds(self, context: Context, value: Any) -> bool:
        return type_of(value) != NUMBER or is_multiple(decimal_of(value), self.step)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.narrow_number(branch.number.multiples(self.step))

    def refute(self, graph: Graph) -> Alternatives:
        return [(IS_NUMBER, Excluded(self))]

    def exclude(self, branch: Branch) -> bool:
        return branch.narrow_number(branch.number.non_multiples(self.step))
