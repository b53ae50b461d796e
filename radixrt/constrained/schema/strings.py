"""Sets of strings: lengths, patterns and formats that hold or do not hold, and single strings left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radixrt.constrained.regex import ANY, ANY_CHAR, Regex, complement, intersect, literals, repeat

if TYPE_CHECKING:
    from radixrt.constrained.schema.formula import Formulas

Source = tuple[str, str, str]
"""Where an atom comes from, for refusals and for showing it: pointer, keyword, the keyword's value as text."""


@dataclass(frozen=True, slots=True)
class StringTest:
    """A string is in `regex`, or (not `positive`) is not. Equal if they test the same.

    `names`, for the tests of `propertyNames`, are the formulas that `regex` comes from.
    """

    regex: Regex
    positive: bool
    source: Source
    names: Formulas | None = None

    def language(self) -> Regex:
        """The strings that pass."""
        return self.regex if self.positive else complement(self.regex)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StringTest) and self.regex is other.regex and self.positive is other.positive

    def __hash__(self) -> int:
        return hash((id(self.regex), self.positive))


@dataclass(frozen=True, slots=True)
class StringSet:
    """The strings with low <= length <= high (in code points) that pass every test and are not in `excluded`."""

    low: int = 0
    high: int | None = None
    tests: tuple[StringTest, ...] = ()
    excluded: frozenset[str] = frozenset()

    def at_least(self, length: int) -> StringSet | None:
        """Those of at least this length; None if there can be none."""
        if length <= self.low:
            return self
        if self.high is not None and length > self.high:
            return None
        return replace(self, low=length)

    def at_most(self, length: int) -> StringSet | None:
        """Those of at most this length; None if there can be none."""
        if length < self.low:
            return None
        return self if self.high is not None and length >= self.high else replace(self, high=length)

    def passing(self, test: StringTest) -> StringSet | None:
        """Those that pass one more test; None if there can plainly be none."""
        if test in self.tests:
            return self
        if any(test.regex is other.regex for other in self.tests):
            return None
        return replace(self, tests=(*self.tests, test))

    def without(self, strings: frozenset[str]) -> StringSet:
        """Those that are none of the strings."""
        return replace(self, excluded=self.excluded | strings)

    def language(self) -> Regex:
        """The set as a regular expression. Raises RegexTooComplex."""
        parts = [test.language() for test in self.tests]
        combined = intersect(*parts) if parts else ANY
        shortest, longest = combined.min_length, combined.max_length
        if shortest < self.low or (self.high is not None and (longest is None or longest > self.high)):
            combined = intersect(combined, repeat(ANY_CHAR, self.low, self.high))
        left_out = [text for text in sorted(self.excluded) if combined.matches(text)]
        return intersect(combined, complement(literals(left_out))) if left_out else combined

    def holds(self, text: str) -> bool:
        """Whether the string is in the set."""
        if len(text) < self.low or (self.high is not None and len(text) > self.high) or text in self.excluded:
            return False
        return all(test.regex.matches(text) is test.positive for test in self.tests)


ANY_STRING = StringSet()
