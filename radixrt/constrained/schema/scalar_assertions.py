"""Assertions on the type of a value, on single values, strings and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from radixrt.constrained.regex import Regex
from radixrt.constrained.schema.assertion import Assertion, Frames, deny
from radixrt.constrained.schema.branch import Alternative, Branch
from radixrt.constrained.schema.errors import MalformedSchema, Unsupported
from radixrt.constrained.schema.evaluated import Marks
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.numbers import is_multiple
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.strings import StringTest
from radixrt.constrained.schema.text import is_utf8
from radixrt.constrained.schema.values import (
    BOOLEAN,
    NULL,
    NUMBER,
    STRING,
    TYPE_BITS,
    decimal_of,
    is_integer,
    key,
    text_of,
    type_of,
)

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph


class TypeAssertion(Assertion):
    """`type`, with `nullable` of OpenAPI taken into it."""

    __slots__ = ("accepts", "whole")
    keyword = "type"

    def __init__(self, graph: Graph, located: Located, names: Iterable[str]) -> None:
        super().__init__(graph, located)
        names = set(names)
        self.accepts = 0
        for name in names:
            self.accepts |= TYPE_BITS[name]
        self.whole = "integer" in names and "number" not in names

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Drop the other types; numbers are whole if only `integer` is named."""
        if not branch.limit_types(self.accepts):
            return False
        return not self.whole or not branch.mask & NUMBER or branch.narrow_number(branch.number.whole(True))

    def refute(self) -> list[Alternative]:
        """Only the other types; numbers with a fraction are another type if only `integer` is named."""

        def others(branch: Branch) -> bool:
            if not branch.drop(self.accepts & ~NUMBER if self.whole else self.accepts):
                return False
            return not self.whole or not branch.mask & NUMBER or branch.narrow_number(branch.number.whole(False))

        return [others]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether the value has one of the types; 1.0 is an integer."""
        bit = type_of(value)
        return bool(bit & self.accepts) and (bit != NUMBER or not self.whole or is_integer(value))


class EnumAssertion(Assertion):
    """`enum` and `const`."""

    __slots__ = ("accepts", "keys", "keyword", "values")

    def __init__(self, graph: Graph, located: Located, keyword: str, values: list[Any]) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        limit = graph.limits.enum_values
        if len(values) > limit:
            raise over_limit(located.pointer, keyword, f"it has {len(values)} values, and at most {limit} are taken")
        try:
            text = text_of(values)
            self.keys = {key(value): value for value in values}
        except (AttributeError, RecursionError, TypeError, ValueError):
            problem = "a value is not JSON, is nested too deeply, or is a number of thousands of digits"
            raise MalformedSchema(f"{located.pointer}/{keyword}", problem) from None
        if not is_utf8(text):
            for name, value in self.keys.items():
                if not is_utf8(text_of(value)):
                    graph.unwritable.setdefault(name, (located.pointer, keyword))
        self.values = list(self.keys.values())
        self.accepts = 0
        for value in self.values:
            self.accepts |= type_of(value)

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """The value is one of them."""
        return branch.one_of(self.values)

    def refute(self) -> list[Alternative]:
        """The value is none of them."""
        return [self._none_of]

    def _none_of(self, branch: Branch) -> bool:
        strings = frozenset(value for value in self.values if type(value) is str)
        numbers = frozenset(decimal_of(value) for value in self.values if type_of(value) == NUMBER)
        if strings and branch.mask & STRING:
            branch.narrow_string(branch.string.without(strings))
        if numbers and branch.mask & NUMBER:
            branch.narrow_number(branch.number.without(numbers))
        if None in self.keys:
            branch.drop(NULL)
        for value in self.values:
            if type(value) is bool and branch.mask & BOOLEAN:
                branch.limit_booleans(1 if value else 2)
        return branch.mask != 0 and all(
            not branch.mask & type_of(value) or deny(branch, self._structure(value))
            for value in self.values
            if isinstance(value, list | dict)
        )

    def _structure(self, value: Any) -> Located:
        """A schema for exactly this array or object, one level deep."""
        schema: dict[str, Any]
        if isinstance(value, list):
            items = [{"const": item} for item in value]
            schema = {"type": "array", "minItems": len(value), "maxItems": len(value), "prefixItems": items}
        else:
            members = {name: {"const": member} for name, member in value.items()}
            schema = {"type": "object", "required": list(value), "properties": members, "additionalProperties": False}
        return self.graph.document.synthetic(schema, self.located)

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether the value equals one of them."""
        return key(value) in self.keys


class LengthAssertion(Assertion):
    """`minLength` and `maxLength`, in code points."""

    __slots__ = ("keyword", "limit")
    domain = STRING

    def __init__(self, graph: Graph, located: Located, keyword: str, limit: int) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.limit = limit

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """A string is long (short) enough."""
        string = branch.string
        return branch.narrow_string(
            string.at_least(self.limit) if self.keyword == "minLength" else string.at_most(self.limit)
        )

    def refute(self) -> list[Alternative]:
        """A string that is too short (long); none is shorter than 0."""
        if self.keyword == "maxLength":
            return [lambda b: b.limit_types(STRING) and b.narrow_string(b.string.at_least(self.limit + 1))]
        if self.limit == 0:
            return []
        return [lambda b: b.limit_types(STRING) and b.narrow_string(b.string.at_most(self.limit - 1))]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether a string is long (short) enough."""
        if type(value) is not str:
            return True
        return len(value) >= self.limit if self.keyword == "minLength" else len(value) <= self.limit


class StringAssertion(Assertion):
    """`pattern`, and `format` where formats are asserted.

    Args:
        test: strings that pass for sure.
        wide: strings that may pass: the same, except for formats (see `formats`); None if that is not known.
    """

    __slots__ = ("keyword", "test", "wide")
    domain = STRING

    def __init__(self, graph: Graph, located: Located, keyword: str, test: StringTest, wide: Regex | None) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.test = test
        self.wide = wide

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """A string passes."""
        return not branch.mask & STRING or branch.narrow_string(branch.string.passing(self.test))

    def refute(self) -> list[Alternative]:
        """A string that does not pass, as far as that is sure."""
        return [self._fails]

    def _fails(self, branch: Branch) -> bool:
        if not branch.limit_types(STRING):
            return False
        if self.wide is None:
            raise self._uncertain()
        return branch.narrow_string(branch.string.passing(StringTest(self.wide, False, self.test.source)))

    def _uncertain(self) -> Unsupported:
        reason = (
            f"it must not hold here, and which strings are not of the format '{self.test.source[2]}' is not certain"
        )
        return self.unsupported(reason, "Write a pattern instead.")

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether a string passes. Raises Unsupported where that must be certain and is not."""
        if type(value) is not str or self.test.regex.matches(value):
            return True
        if self.wide is not self.test.regex and self.graph.denials and (self.wide is None or self.wide.matches(value)):
            raise self._uncertain()
        return False


class BoundAssertion(Assertion):
    """`minimum`, `maximum`, `exclusiveMinimum` and `exclusiveMaximum`."""

    __slots__ = ("bound", "keyword", "lower", "open")
    domain = NUMBER

    def __init__(
        self, graph: Graph, located: Located, keyword: str, bound: Decimal, *, lower: bool, open_: bool
    ) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.bound = bound
        self.lower = lower
        self.open = open_

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """A number is on the right side of the bound."""
        number = branch.number
        if self.lower:
            return branch.narrow_number(number.above(self.bound, open_=self.open))
        return branch.narrow_number(number.below(self.bound, open_=self.open))

    def refute(self) -> list[Alternative]:
        """A number on the other side of the bound."""
        if self.lower:
            return [
                lambda b: b.limit_types(NUMBER) and b.narrow_number(b.number.below(self.bound, open_=not self.open))
            ]
        return [lambda b: b.limit_types(NUMBER) and b.narrow_number(b.number.above(self.bound, open_=not self.open))]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether a number is on the right side of the bound."""
        if type_of(value) != NUMBER:
            return True
        number = decimal_of(value)
        if number == self.bound:
            return not self.open
        return (number > self.bound) is self.lower


class MultipleAssertion(Assertion):
    """`multipleOf`, exactly: 19.99 is a multiple of 0.01."""

    __slots__ = ("of",)
    keyword = "multipleOf"
    domain = NUMBER

    def __init__(self, graph: Graph, located: Located, of: Decimal) -> None:
        super().__init__(graph, located)
        self.of = of

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """A number is a multiple."""
        return branch.narrow_number(branch.number.multiples(self.of))

    def refute(self) -> list[Alternative]:
        """A number that is no multiple."""
        return [lambda b: b.limit_types(NUMBER) and b.narrow_number(b.number.non_multiples(self.of))]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether a number is a multiple."""
        return type_of(value) != NUMBER or is_multiple(decimal_of(value), self.of)
