"""Validation of parsed values against the keywords of a schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.nodes import Either, Formula, Is

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph


@dataclass(slots=True)
class Evaluated:
    """Members (by name) and items (by index) of one value that some keyword has evaluated."""

    names: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a validation of a value against a schema.

    Attributes:
        graph: the graph of the schema.
        exact: the value may have to fail, and an uncertain format raises Unsupported.
        evaluated: collects the members and items evaluated by succeeding keywords; None if no keyword needs them.
    """

    graph: Graph
    exact: bool = False
    evaluated: Evaluated | None = None

    def satisfies(self, located: Located, value: Any, *, exact: bool = False) -> bool:
        """Return whether a child of the validated value satisfies a schema."""
        return satisfies(self.graph, located, value, exact=exact or self.exact)

    def satisfies_in_place(self, located: Located, value: Any, *, exact: bool = False) -> bool:
        """Return whether the validated value itself satisfies a schema; if so, collect the members and items evaluated
        by the schema."""
        return satisfies(self.graph, located, value, exact=exact or self.exact, evaluated=self.evaluated)


def holds(graph: Graph, formula: Formula, value: Any, *, exact: bool = False) -> bool:
    """Return whether a value satisfies a formula. Raises Unsupported where an uncertain format decides."""
    if isinstance(formula, Is):
        if formula.positive:
            return satisfies(graph, formula.located, value, exact=exact)
        return not satisfies(graph, formula.located, value, exact=True)
    if isinstance(formula, Either):
        return any(all(holds(graph, part, value, exact=exact) for part in option) for option in formula.options)
    return False


def satisfies(
    graph: Graph, located: Located, value: Any, *, exact: bool = False, evaluated: Evaluated | None = None
) -> bool:
    """Return whether the value satisfies the schema; if so, add the members and items evaluated by the schema to
    `evaluated`.

    Raises:
        Unsupported: `exact`, and whether the value is of some format is uncertain.
    """
    graph.budget.tick(located.pointer)
    assertions = graph.assertions(located)
    own = None
    if evaluated is not None or (assertions and assertions[-1].is_deferred):
        own = Evaluated()
    context = Context(graph, exact, own)
    for assertion in assertions:
        if not assertion.holds(context, value):
            return False
    if evaluated is not None and own is not None:
        evaluated.names |= own.names
        evaluated.items |= own.items
    return True
