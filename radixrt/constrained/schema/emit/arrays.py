"""Productions for an array: the first items one by one, then the others; counters and uniqueness as states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixrt.constrained.productions import Expr, Ref, alt, optional, seq
from radixrt.constrained.schema.emit.json_text import NOTHING_MORE, TextStyle, joined, repeated
from radixrt.constrained.schema.emit.plan import ArrayPlan
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas, Node
from radixrt.constrained.schema.normal_form.validation import holds
from radixrt.constrained.schema.values import key

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.graph import Graph

NESTED = 8
"""Optional items up to which they are written in one another instead of as rules."""
MOST_VALUES = 64
"""Values of an item that are listed one by one."""
State = tuple[int, tuple[int, ...], frozenset[int], bool]
"""Items so far, matches of each counter so far, values used, and whether one has been used twice."""
Move = tuple[Expr, State]


class ArrayText:
    """Writes one array.

    Args:
        graph: where its nodes are.
        plan: what it is.
        style: punctuation.
        value_of: the expression of a node.
        new_rule: makes rules; `None` reserves a name whose expression `set_rule` gives.
    """

    def __init__(
        self,
        graph: Graph,
        plan: ArrayPlan,
        style: TextStyle,
        value_of: Callable[[Node], Expr],
        new_rule: Callable[[Expr | None], Ref],
        set_rule: Callable[[Ref, Expr], None],
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._style = style
        self._value_of = value_of
        self._new_rule = new_rule
        self._set_rule = set_rule

    def write(self) -> Expr:
        """The whole array. Raises Unsupported."""
        plan = self._plan
        if plan.unique is not None and not self._can_list():
            pointer, keyword, _ = plan.source
            reason = "a grammar cannot remember which items have been written"
            fix = "Leave it out, list the possible items with an enum of a few values, or set maxItems to 1."
            self._graph.refuse(Unsupported(pointer, keyword, reason, fix))
            plan.unique = None
        if plan.counts or plan.unique is not None:
            return Automaton(self._graph, plan, self._style, self._value_of, self._new_rule, self._set_rule).write()
        length = len(plan.prefix)
        if plan.high == 0 or (length == 0 and plan.rest is None):
            return self._style.enclosed("[", None, "]", may_be_empty=True) if plan.low == 0 else alt()
        if plan.rest is None and plan.low > length:
            return alt()
        rest: Expr = NOTHING_MORE
        if plan.rest is not None:
            item = self._value_of(plan.rest)
            high = None if plan.high is None else plan.high - max(1, length)
            rest = repeated(self._after_comma(item), max(0, plan.low - max(1, length)), high)
            if length == 0:
                return self._style.enclosed("[", joined(item, rest), "]", may_be_empty=plan.low == 0)
        tail = rest
        for index in range(length - 1, 0, -1):
            tail = joined(self._after_comma(self._value_of(plan.prefix[index])), tail)
            if index >= plan.low:
                tail = optional(self._new_rule(tail) if index % NESTED == 0 else tail)
        body = joined(self._value_of(plan.prefix[0]), tail)
        return self._style.enclosed("[", body, "]", may_be_empty=plan.low == 0)

    def _after_comma(self, item: Expr) -> Expr:
        return joined(self._style.after(","), item)

    def _can_list(self) -> bool:
        nodes = [*self._plan.prefix, *([] if self._plan.rest is None else [self._plan.rest])]
        return all(listed_values(self._graph, node, MOST_VALUES) is not None for node in nodes)


class Automaton:
    """An array with counters or with unique items: one rule per state, that is, per what is known of the items so far.

    Law: the texts from a state are those whose items lead from it to a state in which the array may end.
    """

    def __init__(
        self,
        graph: Graph,
        plan: ArrayPlan,
        style: TextStyle,
        value_of: Callable[[Node], Expr],
        new_rule: Callable[[Expr | None], Ref],
        set_rule: Callable[[Ref, Expr], None],
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._style = style
        self._value_of = value_of
        self._new_rule = new_rule
        self._set_rule = set_rule
        # Beyond this index, what was counted is all that matters.
        self._horizon = max(
            [len(plan.prefix), plan.low if plan.high is None else plan.high, *(c.start for c in plan.counts)]
        )
        self._listed = self._list_values() if plan.unique is not None else None
        keys = dict.fromkeys(key(value) for values in self._listed or () for value in values)
        self._numbers = {one: number for number, one in enumerate(keys)}

    def write(self) -> Expr:
        """The whole array. Raises Unsupported."""
        start: State = (0, (0,) * len(self._plan.counts), frozenset(), False)
        rules: dict[State, Ref] = {}
        order: list[State] = []
        moves: dict[State, list[Move]] = {start: self._moves(start)}
        pending = [state for _, state in moves[start]]
        limit = self._graph.budget.limits.array_states
        work = 0
        while pending:
            state = pending.pop()
            if state in rules:
                continue
            rules[state] = self._new_rule(None)
            order.append(state)
            moves[state] = self._moves(state)
            work += len(moves[state])
            if work > 4 * limit or len(order) > limit:
                pointer, keyword, _ = self._plan.counts[0].source if self._plan.counts else self._plan.source
                fix = "Lower the bounds, or leave it out."
                raise Unsupported(pointer, keyword, f"keeping count takes more than {limit} rules", fix)
            pending.extend(target for _, target in moves[state])
        for state in order:
            self._set_rule(rules[state], self._rule(state, moves[state], rules))
        body = alt(*(joined(item, rules[target]) for item, target in moves[start]))
        return self._style.enclosed("[", body, "]", may_be_empty=self._may_end(start))

    def _rule(self, state: State, moves: list[Move], rules: dict[State, Ref]) -> Expr:
        """What may follow a state: items that do not change it, then the end or an item that does."""
        comma = self._style.after(",")
        same = [joined(comma, item) for item, target in moves if target == state]
        out = [joined(comma, item, rules[target]) for item, target in moves if target != state]
        if self._may_end(state):
            out.append(NOTHING_MORE)
        return seq(repeated(alt(*same), 0, None), alt(*out)) if same else alt(*out)

    def _may_end(self, state: State) -> bool:
        index, counts, _, repeated_ = state
        plan = self._plan
        if index < plan.low or (plan.unique is False and not repeated_):
            return False
        return all(count >= counter.low for count, counter in zip(counts, plan.counts))

    def _moves(self, state: State) -> list[Move]:
        """The items that may come next, with the states that they lead to."""
        index, counts, used, repeated_ = state
        plan = self._plan
        if plan.high is not None and index >= plan.high:
            return []
        if index >= len(plan.prefix) and plan.rest is None:
            return []
        after = min(index + 1, self._horizon)
        if self._listed is not None:
            return self._listed_moves(state, after)
        demanded = plan.demands[min(index, len(plan.demands) - 1)]
        found: list[Move] = []
        for formulas, new_counts in self._kinds(index, counts, demanded):
            node = self._graph.node(formulas)
            if node.formulas != NONE:
                found.append((self._value_of(node), (after, new_counts, used, repeated_)))
        return found

    def _kinds(self, index: int, counts: tuple[int, ...], demanded: Formulas) -> list[tuple[Formulas, tuple[int, ...]]]:
        """What the next item may be, as far as the counters tell: it matches each of them or not.

        Where a counter only has a lower bound, an item that is not counted may match all the same.
        """
        kinds: list[tuple[Formulas, tuple[int, ...]]] = [(demanded, ())]
        for counter, count in zip(self._plan.counts, counts):
            options: list[tuple[Formulas, int]] = []
            if index < counter.start or (counter.high is None and count >= counter.low):
                options.append(((), count))
            elif counter.high is None:
                options += [(counter.formulas, count + 1), ((), count)]
            else:
                options.append((self._graph.negated(counter.formulas), count))
                if count < counter.high:
                    options.append((counter.formulas, count + 1))
            kinds = [
                (formulas + more, (*done, next_count))
                for formulas, done in kinds
                for more, next_count in options
                if more is not NONE
            ]
        return kinds

    # Single values, for unique items

    def _list_values(self) -> list[list[Any]]:
        """The values of each first item, and of the others."""
        plan = self._plan
        nodes = [*plan.prefix, *([] if plan.rest is None else [plan.rest])]
        return [listed_values(self._graph, node, MOST_VALUES) or [] for node in nodes]

    def _listed_moves(self, state: State, after: int) -> list[Move]:
        index, counts, used, repeated_ = state
        assert self._listed is not None
        found: list[Move] = []
        for value in self._listed[min(index, len(self._listed) - 1)]:
            number = self._numbers[key(value)]
            twice = number in used
            if twice and self._plan.unique:
                continue
            new_counts = self._counted(index, counts, value)
            if new_counts is not None:
                target = (after, new_counts, used | {number}, repeated_ or twice)
                if self._plan.unique is False and target[3]:
                    target = (after, new_counts, frozenset(), True)
                found.append((self._style.value(value), target))
        return found

    def _counted(self, index: int, counts: tuple[int, ...], value: Any) -> tuple[int, ...] | None:
        found = []
        for counter, count in zip(self._plan.counts, counts):
            matches = all(holds(self._graph, formula, value, exact=True) for formula in counter.formulas)
            count += matches and index >= counter.start
            if counter.high is not None and count > counter.high:
                return None
            found.append(count if counter.high is not None else min(count, counter.low))
        return tuple(found)


def listed_values(graph: Graph, node: Node, limit: int) -> list[Any] | None:
    """All the values of a node, if it has only scalars and listed values and at most `limit` of them; else None."""
    expansion = graph.expand(node)
    found: dict[Any, Any] = {}
    if expansion.union is not None:
        for part in expansion.union:
            values = listed_values(graph, part, limit)
            if values is None:
                return None
            found.update({key(value): value for value in values})
        return list(found.values()) if len(found) <= limit else None
    if expansion.arrays or expansion.objects:
        return None
    found.update(expansion.values)
    scalars: list[Any] = [*([None] if expansion.null else []), *sorted(expansion.booleans)]
    for numbers in expansion.numbers:
        points = numbers.points(limit)
        if points is None:
            return None
        scalars += [int(point) if point == int(point) else float(point) for point in points]
    for strings in expansion.strings:
        texts = strings.language().enumerate(limit)
        if texts is None:
            return None
        scalars += texts
    found.update({key(value): value for value in scalars})
    return list(found.values()) if len(found) <= limit else None
