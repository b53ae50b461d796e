"""Sets of strings (length bounds, patterns, exclusions) and sets of property names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from radixrt.constrained.regex import ANY, ANY_CHAR, Regex, complement, intersect, literals, matches, repeat
from radixrt.constrained.schema.document.index import Located

Source = tuple[str, str, str]
"""Origin of a bound or test, for messages and for `explain`: pointer, keyword, the keyword's value as text."""


@dataclass(frozen=True, slots=True)
class StringTest:
    """A string matches `regex`, or (if not `positive`) does not. Equal to another test with the same verdicts.

    Attributes:
        names_schema: for a test made from `propertyNames`, the schema that `regex` comes from.
    """

    regex: Regex
    positive: bool
    source: Source
    names_schema: Located | None = None

    def language(self) -> Regex:
        """Return the strings that pass. Raises RegexTooComplex."""
        return self.regex if self.positive else complement(self.regex)

    def passes(self, text: str) -> bool:
        """Return whether the string passes."""
        return matches(self.regex, text) is self.positive

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

    def with_length(self, low: int, high: int | None) -> StringSet | None:
        """Return the subset whose length lies within the bounds, or None if the bounds exclude one another."""
        low = max(low, self.low)
        if self.high is not None and (high is None or self.high < high):
            high = self.high
        if high is not None and low > high:
            return None
        return self if (low, high) == (self.low, self.high) else replace(self, low=low, high=high)

    def passing(self, test: StringTest) -> StringSet | None:
        """Return the subset that passes another test; None if the set has the negated test."""
        if test in self.tests:
            return self
        if any(test.regex is other.regex for other in self.tests):
            return None
        return replace(self, tests=(*self.tests, test))

    def without(self, strings: frozenset[str]) -> StringSet:
        """Return the set without the strings."""
        return replace(self, excluded=self.excluded | strings)

    def language(self) -> Regex:
        """Return the set as a regular expression. Raises RegexTooComplex."""
        parts = [test.language() for test in self.tests]
        combined = intersect(*parts) if parts else ANY
        shortest, longest = combined.min_length, combined.max_length
        if shortest < self.low or (self.high is not None and (longest is None or longest > self.high)):
            combined = intersect(combined, repeat(ANY_CHAR, self.low, self.high))
        excluded = [text for text in sorted(self.excluded) if matches(combined, text)]
        return intersect(combined, complement(literals(excluded))) if excluded else combined

    def holds(self, text: str) -> bool:
        """Return whether the string is in the set."""
        if len(text) < self.low or (self.high is not None and len(text) > self.high) or text in self.excluded:
            return False
        return all(test.passes(text) for test in self.tests)


@dataclass(frozen=True, slots=True)
class MatchingKeys:
    """The property names that pass a test."""

    test: StringTest

    @property
    def tests(self) -> tuple[StringTest, ...]:
        """The tests that define the set."""
        return (self.test,)

    def __contains__(self, name: str) -> bool:
        return self.test.passes(name)


@dataclass(frozen=True, slots=True)
class RemainingKeys:
    """The property names that are not in `names` and pass none of the tests.

    Attributes:
        order: `names` in the order of the document, where that is known.
    """

    names: frozenset[str]
    tests: tuple[StringTest, ...] = ()
    order: tuple[str, ...] = field(default=(), compare=False)

    def __contains__(self, name: str) -> bool:
        return name not in self.names and not any(test.passes(name) for test in self.tests)


KeySet = MatchingKeys | RemainingKeys
ANY_STRING = StringSet()
