"""What is asked of one value: formulas, and nodes, which are conjunctions of them.

A node is a position of the normalized schema. Nodes are memoized by the set of their formulas, so that recursive
schemas have finitely many, and everything that can apply to one value (`allOf`, `$ref` with siblings, `not`, the sides
of a condition) is only another formula of its node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixrt.constrained.schema.resources import Located

if TYPE_CHECKING:
    from radixrt.constrained.schema.expansion import Expansion


class Formula:
    """A condition on a value. Compared by identity; `Graph` makes each one only once."""

    __slots__ = ()


class Is(Formula):
    """The value satisfies (`positive`), or does not satisfy, a subschema."""

    __slots__ = ("located", "positive")

    def __init__(self, located: Located, positive: bool) -> None:
        self.located = located
        self.positive = positive

    def __repr__(self) -> str:
        return f"{'' if self.positive else 'not '}{self.located!r}"


class Either(Formula):
    """The value satisfies every formula of at least one of the options."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Formulas, ...]) -> None:
        self.options = options


class Never(Formula):
    """No value satisfies it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "never"


Formulas = tuple[Formula, ...]
NEVER = Never()
NONE: Formulas = (NEVER,)


class Node:
    """A conjunction of formulas.

    Attributes:
        formulas: in the order in which the document has them, each once.
        index: number of the node in its graph.
        expansion: what the conjunction comes to, once `Graph.expand` has worked it out.
    """

    __slots__ = ("expansion", "formulas", "index")

    def __init__(self, formulas: Formulas, index: int) -> None:
        self.formulas = formulas
        self.index = index
        self.expansion: Expansion | None = None

    @property
    def pointer(self) -> str:
        """A place in the document to name in messages."""
        pointers = [formula.located.pointer for formula in self.formulas if isinstance(formula, Is)]
        return pointers[0] if pointers else ""

    def __repr__(self) -> str:
        return f"Node({self.index}: {list(self.formulas)})"
