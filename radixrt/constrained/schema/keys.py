"""Sets of property names: those that match a pattern, and those that are left over."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.constrained.schema.strings import StringTest


@dataclass(frozen=True, slots=True)
class Matching:
    """The names that pass a test."""

    test: StringTest

    @property
    def names(self) -> frozenset[str]:
        """The names that the set is told by."""
        return frozenset()

    @property
    def tests(self) -> tuple[StringTest, ...]:
        """The tests that the set is told by."""
        return (self.test,)

    def __contains__(self, name: str) -> bool:
        return self.test.regex.matches(name) is self.test.positive


@dataclass(frozen=True, slots=True)
class Rest:
    """The names that are none of some names and pass none of some tests; `order` has those of the document in order."""

    names: frozenset[str]
    tests: tuple[StringTest, ...] = ()
    order: tuple[str, ...] = field(default=(), compare=False)

    def __contains__(self, name: str) -> bool:
        if name in self.names:
            return False
        return not any(test.regex.matches(name) is test.positive for test in self.tests)


KeySet = Matching | Rest
