"""Assertions: each keyword of a schema as an object with three sides that must agree.

For an assertion a and every JSON value v, `a.holds(v)` is what the specification says. `a.apply(branch)` leaves in the
branch exactly those values of it for which a holds. `a.refute()` is a list of alternatives; applied to a branch they
leave, together, exactly those values of it for which a does not hold. A schema is the conjunction of its assertions:
`assume` and `deny` are the two sides of a whole schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.branch import Alternative, Branch
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.evaluated import Frame, Marks
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.strings import Source
from radixrt.constrained.schema.values import ALL

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph

Frames = tuple[int, ...]
"""Frames of a branch, by index, to which what an assertion evaluates is added."""


class Assertion:
    """One keyword (with those that it is read together with) at one place.

    Attributes:
        keyword: its name, for messages.
        domain: types of values that it can reject; it holds for all others.
        accepts: types of which it may accept a value; a quick bound for `Graph.contradict`.
    """

    __slots__ = ("graph", "located")

    keyword: str = ""
    domain: int = ALL
    accepts: int = ALL
    waits = False  # it looks at what the other assertions of the schema have evaluated

    def __init__(self, graph: Graph, located: Located) -> None:
        self.graph = graph
        self.located = located

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Keep the values for which it holds; False if none is left."""
        raise NotImplementedError

    def refute(self) -> list[Alternative]:
        """Together, the values for which it does not hold."""
        raise NotImplementedError

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether the value satisfies it; what it evaluates is added to the marks, if any."""
        raise NotImplementedError

    def in_place(self) -> list[Located]:
        """Subschemas that apply to the value itself."""
        return []

    def source(self, shown: Any = "") -> Source:
        """For atoms: where they come from."""
        return (self.located.pointer, self.keyword, str(shown))

    def unsupported(self, reason: str, fix: str) -> Unsupported:
        """The refusal of this keyword."""
        return Unsupported(self.located.pointer, self.keyword, reason, fix)


def assume(branch: Branch, located: Located, frames: Frames = ()) -> bool:
    """Keep the values of the branch that satisfy the schema; False if none is left."""
    if (located, frames) in branch.assumed:
        return True
    branch.assumed.add((located, frames))
    branch.changes += bool(frames)  # what is evaluated may be new
    assertions = branch.graph.assertions(located)
    if assertions and assertions[-1].waits:
        return _assume_with_frame(branch, assertions, frames, denied=None)
    return all(assertion.apply(branch, frames) for assertion in assertions)


def deny(branch: Branch, located: Located) -> bool:
    """Keep the values of the branch that do not satisfy the schema; False if none is left."""
    assertions = branch.graph.assertions(located)
    types = ALL
    for assertion in assertions:
        if assertion.keyword == "type":
            types = assertion.accepts
    alternatives: list[Alternative] = []
    for assertion in assertions:
        if not assertion.waits and assertion.domain & (types if assertion.keyword != "type" else ALL):
            alternatives.extend(assertion.refute())
    waiting = tuple(assertion for assertion in assertions if assertion.waits)
    for place in range(len(waiting)):
        alternatives.append(lambda b, place=place: _assume_with_frame(b, assertions, (), denied=place))  # type: ignore[misc]
    return branch.choose(alternatives)


def _assume_with_frame(
    branch: Branch, assertions: tuple[Assertion, ...], frames: Frames, *, denied: int | None
) -> bool:
    """Apply assertions of which the last ones wait; those are settled when the branch has no open choices any more."""
    waiting = tuple(assertion for assertion in assertions if assertion.waits)
    branch.frames.append(Frame(frames, waiting, denied))
    branch.changes += 1
    inner = (*frames, len(branch.frames) - 1)
    return all(assertion.apply(branch, inner) for assertion in assertions if not assertion.waits)


def satisfies(graph: Graph, located: Located, value: Any, marks: Marks | None = None) -> bool:
    """Whether the value satisfies the schema; if so, what it evaluates is added to the marks."""
    graph.budget.tick(located.pointer)
    assertions = graph.assertions(located)
    own = marks
    if marks is not None or (assertions and assertions[-1].waits):
        own = Marks()
    if not all(assertion.holds(value, own) for assertion in assertions):
        return False
    if marks is not None and own is not None:
        marks.merge(own)
    return True
