"""What has been evaluated of a value, which is all that `unevaluatedProperties` and `unevaluatedItems` leave alone.

`Frame` follows it symbolically along a branch, `Marks` on a concrete value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixrt.constrained.schema.formula import Formulas
from radixrt.constrained.schema.strings import StringTest

if TYPE_CHECKING:
    from radixrt.constrained.schema.assertion import Assertion


@dataclass(slots=True)
class Frame:
    """What the subschemas that apply in place of one schema with `unevaluated...` have evaluated on this branch.

    Attributes:
        outer: the frames around it, to which its own findings count as well.
        waiting: the `unevaluated...` assertions of the schema.
        denied: one of them (by position in `waiting`) must fail; None if all must hold.
        names, tests: property names, as such and by pattern; all_members: every member.
        prefix: items before this index; all_items: every item.
        kinds: items that satisfy one of these conjunctions.
    """

    outer: tuple[int, ...]
    waiting: tuple[Assertion, ...]
    denied: int | None
    names: set[str] = field(default_factory=set)
    tests: list[StringTest] = field(default_factory=list)
    all_members: bool = False
    prefix: int = 0
    all_items: bool = False
    kinds: list[Formulas] = field(default_factory=list)

    def clone(self) -> Frame:
        """An independent copy."""
        return Frame(
            self.outer,
            self.waiting,
            self.denied,
            set(self.names),
            list(self.tests),
            self.all_members,
            self.prefix,
            self.all_items,
            list(self.kinds),
        )


@dataclass(slots=True)
class Marks:
    """Members (by name) and items (by index) of one value that have been evaluated."""

    names: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)

    def merge(self, other: Marks) -> None:
        """Add what another subschema has evaluated."""
        self.names |= other.names
        self.items |= other.items
