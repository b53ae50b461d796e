"""Productions for the undeclared members of an object, which stand behind the declared ones in any order.

Their names may repeat in a text, because a grammar cannot remember them; a reader keeps the last member of a name.
That changes nothing where all members of a class satisfy the same node. A member that must exist is the last one of its
class, so that none can replace it; where members are counted from below, at most one is relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from radixrt.constrained.productions import NOTHING, Expr, Ref, Term, alt, seq
from radixrt.constrained.schema.emit.json_text import NOTHING_MORE, TextStyle, joined, repeated
from radixrt.constrained.schema.emit.plan import ObjectPlan
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas, Node

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph

MANY = 200
"""Ways in which the members that must exist can be told apart, at most."""
Group = tuple[int, Formulas]
"""A member that must exist: the place of its class, and what its value satisfies."""


class OthersText:
    """Writes the undeclared members of one object.

    Args:
        graph: where its nodes are.
        plan: what the object is.
        style: punctuation.
        value_of: the expression of a node.
        new_rule: makes rules.
    """

    def __init__(
        self,
        graph: Graph,
        plan: ObjectPlan,
        style: TextStyle,
        value_of: Callable[[Node], Expr],
        new_rule: Callable[[Expr], Ref],
    ) -> None:
        self._plan = plan
        self._style = style
        self._value_of = value_of
        self._node_of = graph.node
        self._new_rule = new_rule
        self._max_states = graph.budget.limits.array_states
        self._pairs = [self._pair(place, node) for place, (_, node) in enumerate(plan.classes)]
        self._groupings = list(self._ways()) if plan.witnesses else [()]
        self._made: dict[tuple[tuple[Group, ...], int, int], Expr] = {}

    @property
    def fewest(self) -> int:
        """Undeclared members that there must be because of what must exist."""
        return min((len(grouping) for grouping in self._groupings), default=0)

    def members(self, count: int | None, *, comma: bool) -> Expr:
        """All undeclared members; without a comma, at least one.

        Args:
            count: declared members that have been written; None where the bounds on their number hold anyway.

        `NOTHING` where the bounds leave no way. Raises Unsupported.
        """
        plan = self._plan
        room = None if count is None or plan.high is None else plan.high - count
        missing = 0 if count is None else max(0, plan.low - count)
        if not plan.witnesses:
            if room is not None and missing > room:
                return NOTHING
            if not plan.classes or room == 0:
                return NOTHING_MORE if comma and not missing else NOTHING
            if comma:
                return repeated(self._others(set()), missing, room)
            rest = repeated(self._others(set()), max(0, missing - 1), None if room is None else room - 1)
            return joined(alt(*self._pairs), rest)
        found = []
        for grouping in self._groupings:
            left = None if room is None else room - len(grouping)
            if left is None or left >= 0:
                found.append(self._from(grouping, 0, left, comma=comma))
        return alt(*found) if found else NOTHING

    def _pair(self, place: int, node: Node) -> Expr:
        return joined(Term(self._plan.classes[place][0].text()), self._style.after(":"), self._value_of(node))

    def _others(self, gone: set[int]) -> Expr:
        """One member of a class that is not gone, with a comma before it."""
        pairs = [pair for place, pair in enumerate(self._pairs) if place not in gone]
        return joined(self._style.after(","), alt(*pairs)) if pairs else NOTHING

    def _from(self, grouping: tuple[Group, ...], first: int, room: int | None, *, comma: bool) -> Expr:
        """The members from the group on that must come next; `room` is for members that need not exist."""
        gone = {place for place, _ in grouping[:first]}
        if first == len(grouping):
            others = self._others(gone)
            return NOTHING_MORE if others is NOTHING else repeated(others, 0, room)
        place, formulas = grouping[first]
        separator = self._style.after(",") if comma else NOTHING_MORE
        needed = joined(separator, self._pair(place, self._node_of(formulas)))
        if room is None and comma:
            others = self._others(gone)
            before = NOTHING_MORE if others is NOTHING else repeated(others, 0, None)
            return seq(before, needed, self._from(grouping, first + 1, None, comma=True))
        key = (grouping, first, -1 if room is None else room)
        if comma and key in self._made:
            return self._made[key]
        options = [joined(needed, self._from(grouping, first + 1, room, comma=True))]
        pairs = [pair for index, pair in enumerate(self._pairs) if index not in gone]
        if pairs and (room is None or room > 0):
            left = None if room is None else room - 1
            options.append(joined(separator, alt(*pairs), self._from(grouping, first, left, comma=True)))
        made = alt(*options)
        if comma:
            if len(self._made) > self._max_states:
                pointer, keyword, _ = self._plan.source
                raise over_limit(pointer, keyword, f"counting the members takes more than {self._max_states} rules")
            made = self._made[key] = self._new_rule(made)
        return made

    def _ways(self) -> Iterator[tuple[Group, ...]]:
        """The ways in which the witnesses are members: some may be the same member, others are in other classes.

        Two of one class that are not the same member cannot be told apart. That is left out where it adds nothing,
        because there is no room for both or because one of them does what the other must do; else it is refused.
        """
        plan = self._plan
        required = sum(needed for *_, needed in plan.members)
        room = None if plan.high is None else plan.high - required
        ways: list[tuple[Group, ...]] = [()]
        for witness in plan.witnesses:
            options = dict(witness.options)
            longer: list[tuple[Group, ...]] = []
            for way in ways:
                for index, (place, formulas) in enumerate(way):
                    if place in options:
                        more = tuple(formula for formula in options[place] if formula not in formulas)
                        longer.append((*way[:index], (place, formulas + more), *way[index + 1 :]))
                longer.extend((*way, group) for group in options.items())
            ways = list(dict.fromkeys(longer))
            if len(ways) > MANY:
                raise self._unsupported(witness.source, "too many kinds of members could be the ones that must exist")
        for way in ways:
            if any(self._node_of(formulas).formulas == NONE for _, formulas in way):
                continue
            if room is not None and len(way) > room:
                continue
            twins = [(one, two) for index, one in enumerate(way) for two in way[index + 1 :] if one[0] == two[0]]
            if not twins:
                yield way
            elif not any(set(one[1]) <= set(two[1]) or set(two[1]) <= set(one[1]) for one, two in twins):
                source = plan.witnesses[-1].source
                raise self._unsupported(source, "several members must exist whose names may be the same")

    @staticmethod
    def _unsupported(source: tuple[str, str, str], reason: str) -> Unsupported:
        pointer, keyword, _ = source
        return Unsupported(pointer, keyword, reason, "Declare the properties in question.")
