"""Productions for an object: declared members in their order, then undeclared ones.

The grammar is linear in the number of members. It only remembers whether something has been written yet (for the
comma) or, where the number of members is bounded, how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from radixrt.constrained.productions import NOTHING, Expr, Lit, Ref, Term, alt, optional, seq
from radixrt.constrained.schema.emit.json_text import NOTHING_MORE, TextStyle, joined
from radixrt.constrained.schema.emit.plan import ObjectPlan
from radixrt.constrained.schema.emit.undeclared import OthersText
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.nodes import Node

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph


class ObjectText:
    """Writes one object.

    Args:
        graph: where its nodes are.
        plan: what it is.
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
        self._graph = graph
        self._plan = plan
        self._style = style
        self._new_rule = new_rule
        self._values = [value_of(node) for _, node, _ in plan.members]
        self._others = OthersText(graph, plan, style, value_of, new_rule)

    def write(self) -> Expr:
        """The whole object. Raises Unsupported."""
        plan = self._plan
        required = sum(needed for *_, needed in plan.members)
        possible = None if plan.classes else len(plan.members)
        if possible is not None and plan.low > possible:
            return NOTHING
        bounded_above = plan.high is not None and (possible is None or plan.high < possible)
        if bounded_above or plan.low > max(required + self._others.fewest, 0 if required else 1):
            return self._counted(required)
        if not plan.members and not plan.classes:
            return self._style.enclosed("{", None, "}", may_be_empty=True)
        may_be_empty = required == 0 and not plan.witnesses and plan.low == 0
        return self._style.enclosed("{", self._body(), "}", may_be_empty=may_be_empty)

    # Without counting

    def _body(self) -> Expr:
        """At least one member."""
        members = self._plan.members
        if not members:
            return self._others.members(None, comma=False)
        first_required = next((place for place, member in enumerate(members) if member[2]), len(members))
        after: Expr = self._chain(first_required + 1)
        if first_required == 0:
            return joined(self._member(0, comma=False), after)
        options: list[Expr] = []
        if first_required < len(members):
            shared: Expr = self._new_rule(after) if after != NOTHING_MORE else after
            options.append(joined(self._member(first_required, comma=False), shared))
            tail: Expr = self._new_rule(joined(self._member(first_required, comma=True), shared))
        else:
            tail = self._others.members(None, comma=True)
            if self._plan.classes:
                options.append(self._others.members(None, comma=False))
                tail = self._new_rule(tail)
        for place in range(first_required - 1, -1, -1):
            self._share(place)
            options.append(joined(self._member(place, comma=False), tail))
            if place:
                tail = self._new_rule(seq(optional(self._member(place, comma=True)), tail))
        return alt(*reversed(options))

    def _share(self, place: int) -> None:
        """Make a rule of a value that is written in two places."""
        if not isinstance(self._values[place], Ref | Lit | Term):
            self._values[place] = self._new_rule(self._values[place])

    def _chain(self, start: int) -> Expr:
        """Members from a place on, something having been written before, and the undeclared ones."""
        members = self._plan.members
        parts = [
            self._member(place, comma=True) if members[place][2] else optional(self._member(place, comma=True))
            for place in range(start, len(members))
        ]
        return joined(*parts, self._others.members(None, comma=True))

    def _member(self, place: int, *, comma: bool) -> Expr:
        return self._style.member(self._plan.members[place][0], self._values[place], comma=comma)

    # With counting

    def _counted(self, required: int) -> Expr:
        plan = self._plan
        pointer, keyword, _ = plan.source
        if plan.classes and plan.low > required + max(1, self._others.fewest):
            reason = "members whose names are not declared could repeat, and a grammar cannot tell"
            fix = "Declare the properties that are counted, or require fewer."
            self._graph.refuse(Unsupported(pointer, keyword, reason, fix))
        most = len(plan.members) if plan.high is None else min(plan.high, len(plan.members))
        if (len(plan.members) + 1) * (most + 1) > self._graph.budget.limits.array_states:
            reason = (
                f"counting {len(plan.members)} members takes more than {self._graph.budget.limits.array_states} rules"
            )
            raise over_limit(pointer, keyword, reason)
        for place in range(len(plan.members)):
            self._share(place)
        tails: dict[tuple[int, int], Expr] = {}
        counts = [{0}]  # of members written before each place
        for *_, needed in plan.members:
            more = {count + 1 for count in counts[-1] if count < most}
            counts.append(more if needed else more | counts[-1])
        for place in range(len(plan.members), -1, -1):
            for count in counts[place]:
                tails[place, count] = self._state(place, count, tails)
        empty_allowed = required == 0 and plan.low == 0 and not plan.witnesses
        if tails[0, 0] is NOTHING:
            return self._style.enclosed("{", None, "}", may_be_empty=True) if empty_allowed else NOTHING
        return self._style.enclosed("{", tails[0, 0], "}", may_be_empty=empty_allowed)

    def _state(self, place: int, count: int, tails: dict[tuple[int, int], Expr]) -> Expr:
        """What may follow when `count` of the members before `place` are written; NOTHING if nothing may.

        With count 0, at least one member follows: an object without any is written apart.
        """
        plan = self._plan
        if place == len(plan.members):
            if count or plan.classes:
                return self._others.members(count, comma=count > 0)
            return NOTHING
        options: list[Expr] = []
        if tails.get((place + 1, count + 1), NOTHING) is not NOTHING:
            options.append(joined(self._member(place, comma=count > 0), tails[place + 1, count + 1]))
        if not plan.members[place][2] and tails[place + 1, count] is not NOTHING:
            options.append(tails[place + 1, count])
        if not options:
            return NOTHING
        return options[0] if len(options) == 1 and not isinstance(options[0], Lit) else self._new_rule(alt(*options))
