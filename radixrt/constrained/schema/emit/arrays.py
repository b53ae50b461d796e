"""Expressions for arrays: the first items one by one, then the others.

Different values of one list, and items of two kinds of which one is counted, are parts in any order. Where the items at
different places differ, or there are several counters, the counts and the values used are states of an automaton.

A grammar cannot remember items that are not listed. That none repeats, or that two are equal, is an `Obligation`, which
guards enforce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixrt.constrained.obligations import DISTINCT_MARK, Obligation, repeating_mark
from radixrt.constrained.productions import AnyOrder, Expr, Part, Ref, Seq, alt, optional, seq
from radixrt.constrained.productions.argument import Argument
from radixrt.constrained.productions.tally import Tally
from radixrt.constrained.regex import enumerate_strings
from radixrt.constrained.schema.emit.json_text import END, SHORT, Emitter, joined, repeated
from radixrt.constrained.schema.emit.plan import ArrayPlan
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas, Node
from radixrt.constrained.schema.normal_form.validation import holds
from radixrt.constrained.schema.values import key

NESTED_OPTIONALS = 8
"""Optional items that are nested within one rule."""
MAX_LISTED_VALUES = 64
"""Maximum number of values of an item that the states distinguish."""
MAX_COUNTED_VALUES = 1_000
"""An item of more values counts as one of infinitely many: an answer does not use up all of them."""
MAX_COUNTED_BY_RULES = 8
"""A counter without upper bound has a rule for each count up to this one. A rule need not exclude the items that match;
for larger counters, the exclusion costs less than the rules."""
State = tuple[int, tuple[int, ...], int, bool]
"""Number of items, matches of each counter, the values used as bits, and whether a value was used twice."""
Move = tuple[Expr, Expr, State]
"""An item written as the first item of the array and as a later item (with a comma), and the state after the item."""


def array_expression(emitter: Emitter, plan: ArrayPlan, *, apart: bool = False) -> Expr:
    """Return the expression of an array.

    Args:
        apart: the text so far tells the array from all other arrays of the grammar.

    Raises:
        Unsupported: the array cannot be expressed.
    """
    if plan.unique is None:
        return _counted_array(emitter, plan) if plan.counts else _plain_array(emitter, plan, emitter.value)
    if _has_listed_values(emitter.graph, plan):
        try:
            order = _unique_values(emitter, plan) if plan.unique else None
            return _ArrayAutomaton(emitter, plan, emitter.value).emit() if order is None else order
        except Unsupported:
            if not emitter.guarded:
                raise
    if not emitter.guarded:
        pointer, keyword, _ = plan.source
        reason = "a grammar cannot remember which items have been written"
        fix = "Leave it out, or list the possible items with an enum of a few values."
        emitter.graph.refuse(Unsupported(pointer, keyword, reason, fix))
        return array_expression(emitter, plan._replace(unique=None))
    return _distinct_array(emitter, plan) if plan.unique else _repeating_array(emitter, plan, apart=apart)


def _counted_array(emitter: Emitter, plan: ArrayPlan) -> Expr:
    order = _counted_items(emitter, plan)
    return _ArrayAutomaton(emitter, plan, emitter.value).emit() if order is None else order


def _distinct_array(emitter: Emitter, plan: ArrayPlan) -> Expr:
    """Return an array whose items guards keep different."""
    pointer, keyword, _ = plan.source
    # Where each item has more values than there are items before it, any beginning can be completed.
    sizes = [emitter.num_values(node, MAX_COUNTED_VALUES) for node in plan.items]
    for place in range(min(plan.low, MAX_COUNTED_VALUES)):
        size = sizes[min(place, len(sizes) - 1)]
        if size is not None and size <= place:
            reason = f"{plan.low} different items must exist, and an item has only {size} values"
            if len(set(plan.items)) == 1:
                emitter.lacks_values(pointer, f"{reason} (uniqueItems, minItems); lower minItems, or allow more values")
                return alt()
            fix = "Allow more values for this item, or set the items at these places apart by const or enum."
            reason = f"items at other places may take all values that the item at place {place} has, which are {size}"
            raise Unsupported(pointer, keyword, reason, fix)
    for counter in plan.counts:
        demanded = emitter.graph.node(plan.demands[-1] + counter.formulas)
        size = emitter.num_values(demanded, MAX_COUNTED_VALUES) if counter.low > 1 else None
        if size is not None and size < counter.low:
            emitter.lacks_values(pointer, f"{counter.low} different items must match contains, and {size} can")
            return alt()
    listed = plan._replace(unique=None)
    if plan.counts:
        body = _ArrayAutomaton(emitter, listed, emitter.canonical_value).emit()
    else:
        body = _plain_array(emitter, listed, emitter.canonical_value)
    if body == alt():
        return body
    emitter.oblige(
        Obligation(
            "items",
            counts=plan.low > 1,
            finite=any(size is not None for size in sizes),
            ordered=emitter.style.key_order == "schema" and all(map(emitter.is_ordered, plan.items)),
            pointer=pointer if plan.low > 1 else "",
        )
    )
    return emitter.marked_rule(body, DISTINCT_MARK)


def _repeating_array(emitter: Emitter, plan: ArrayPlan, *, apart: bool) -> Expr:
    """Return an array of which guards make two items equal.

    Any item may repeat any other, so each beginning without two equal items can be completed while an item may follow.
    """
    pointer, keyword, _ = plan.source
    reason = ""
    if plan.counts:
        reason, fix = "two items must be equal, and items are counted", "Leave contains out, or list the items by enum."
    elif len(set(plan.items)) > 1 and len(set(map(emitter.canonical_value, plan.items))) > 1:
        reason, fix = "two items must be equal, and items at different places differ", "Give all items one schema."
    elif not apart:
        reason = "two items must be equal, and the text may be that of another alternative without this condition"
        fix = "Give the alternatives different types, or list the items by enum."
    if reason:
        emitter.graph.refuse(Unsupported(pointer, keyword, reason, fix))
        return array_expression(emitter, plan._replace(unique=None))
    ends = [plan.high, len(plan.prefix) if plan.rest is None else None]
    high = min([end for end in ends if end is not None], default=None)
    body = _plain_array(emitter, plan._replace(unique=None), emitter.canonical_value)
    if body == alt():
        return body
    ordered = emitter.style.key_order == "schema" and emitter.is_ordered(plan.items[0])
    emitter.oblige(Obligation("repeats", counts=True, ordered=ordered))
    return emitter.marked_rule(body, repeating_mark(high))


def _plain_array(emitter: Emitter, plan: ArrayPlan, value: Callable[[Node], Expr]) -> Expr:
    """Return an array without counters and without unique items.

    Args:
        value: returns the expression of an item.
    """
    style = emitter.style
    comma = style.after(",")
    length = len(plan.prefix)
    if plan.high == 0 or (length == 0 and plan.rest is None):
        return style.enclosed("[", None, "]", may_be_empty=True) if plan.low == 0 else alt()
    if plan.rest is None and plan.low > length:
        return alt()
    rest: Expr = END
    if plan.rest is not None:
        item = value(plan.rest)
        high = None if plan.high is None else plan.high - max(1, length)
        if length == 0 and high != 0 and type(item) is Seq:
            item = emitter.new_rule(item)  # it comes first and again
        rest = repeated(joined(comma, item), max(0, plan.low - max(1, length)), high)
        if length == 0:
            return style.enclosed("[", joined(item, rest), "]", may_be_empty=plan.low == 0)
    tail = rest
    for index in range(length - 1, 0, -1):
        tail = joined(joined(comma, value(plan.prefix[index])), tail)
        if index >= plan.low:
            tail = optional(emitter.new_rule(tail) if index % NESTED_OPTIONALS == 0 else tail)
    return style.enclosed("[", joined(value(plan.prefix[0]), tail), "]", may_be_empty=plan.low == 0)


def _has_listed_values(graph: Graph, plan: ArrayPlan) -> bool:
    return all(listed_values(graph, node, MAX_LISTED_VALUES) is not None for node in plan.items)


def _unique_values(emitter: Emitter, plan: ArrayPlan) -> Expr | None:
    """Return an array of different listed values, each a part that occurs at most once; None if the items at different
    places have different values, or are counted."""
    if plan.counts or len(set(plan.items)) != 1:
        return None
    values = listed_values(emitter.graph, plan.items[0], MAX_LISTED_VALUES) or []
    texts = [emitter.style.value(value) for value in values]
    highs = [high for high in (plan.high, None if plan.rest is not None else len(plan.prefix)) if high is not None]
    high = min(highs, default=len(values))
    comma = emitter.style.after(",")
    parts = tuple([Part(text, joined(comma, text), 0, 1) for text in texts])
    return _array_in_any_order(emitter, plan, parts, None if high >= len(values) else high)


def _counted_items(emitter: Emitter, plan: ArrayPlan) -> Expr | None:
    """Return an array with a counter as items that match, which are counted, and others in any order; None if there are
    several counters, or llguidance cannot carry the counts, or no expression excludes the items that match."""
    counter = plan.counts[0] if len(plan.counts) == 1 else None
    if counter is None or plan.unique is not None or plan.prefix or plan.rest is None or counter.start:
        return None
    if counter.high is None and counter.low <= MAX_COUNTED_BY_RULES:
        return None
    graph = emitter.graph
    try:
        demanded = plan.demands[0]
        nodes = [
            (graph.node(demanded + counter.formulas), counter.low, counter.high),
            (graph.node(demanded + graph.negated(counter.formulas)), 0, None),
        ]
        parts: list[Part] = []
        for node, low, high in nodes:
            if node.formulas != NONE:
                item = emitter.value(node)
                item = item if type(item) in SHORT else emitter.new_rule(item)
                parts.append(Part(item, joined(emitter.style.after(","), item), low, high))
            elif low:
                return alt()
    except Unsupported:
        return None
    return _array_in_any_order(emitter, plan, tuple(parts), plan.high)


def _array_in_any_order(emitter: Emitter, plan: ArrayPlan, parts: tuple[Part, ...], high: int | None) -> Expr | None:
    order = AnyOrder(parts, max(1, plan.low), high)
    if Argument(Tally.of(order)).problem is not None:
        return None
    is_empty = high == 0 or not parts or all(part.high == 0 for part in parts)
    may_be_empty = plan.low == 0 and not any(part.low for part in parts)
    if is_empty:
        return emitter.style.enclosed("[", None, "]", may_be_empty=True) if may_be_empty else alt()
    return emitter.style.enclosed("[", order, "]", may_be_empty=may_be_empty)


class _ArrayAutomaton:
    """An array with counters or with unique items: one rule for each state, which summarizes the items so far.

    The rule of a state derives the items that lead from this state to a state in which the array may end.

    Args:
        value: returns the expression of an item.
    """

    def __init__(self, emitter: Emitter, plan: ArrayPlan, value: Callable[[Node], Expr]) -> None:
        self._emitter = emitter
        self._value = value
        self._graph = emitter.graph
        self._style = emitter.style
        self._plan = plan
        # Beyond this index, only the counts matter.
        self._horizon = max(
            [len(plan.prefix), plan.low if plan.high is None else plan.high, *(c.start for c in plan.counts)]
        )
        self._listed = self._list_values() if plan.unique is not None else None
        self._matching: dict[int, list[bool]] = {}  # by number of the value: whether each counter counts the value

    def emit(self) -> Expr:
        """Return the whole array. Raises Unsupported."""
        # Find all reachable states, and write their rules afterwards, when the rule of each target is known.
        start: State = (0, (0,) * len(self._plan.counts), 0, False)
        rules: dict[State, Ref] = {}
        order: list[State] = []
        moves: dict[State, list[Move]] = {start: self._moves(start)}
        pending = [state for _, _, state in moves[start]]
        limit = self._graph.budget.limits.array_states
        work = 0
        while pending:
            state = pending.pop()
            if state in rules:
                continue
            rules[state] = self._emitter.new_rule(None)
            order.append(state)
            moves[state] = self._moves(state)
            work += len(moves[state])
            if work > 4 * limit or len(order) > limit:
                raise self._too_many_states(limit)
            pending.extend([target for _, _, target in moves[state]])
        for state in order:
            self._emitter.set_rule(rules[state], self._rule(state, moves[state], rules))
        body = alt(*(joined(item, rules[target]) for item, _, target in moves[start]))
        return self._style.enclosed("[", body, "]", may_be_empty=self._may_end(start))

    def _too_many_states(self, limit: int) -> Unsupported:
        pointer, keyword, _ = self._plan.counts[0].source if self._plan.counts else self._plan.source
        fix = "Lower the bounds, or leave it out."
        return Unsupported(pointer, keyword, f"keeping count takes more than {limit} rules", fix)

    def _rule(self, state: State, moves: list[Move], rules: dict[State, Ref]) -> Expr:
        """Return the continuation of a state: items that keep the state, then the end or an item that changes it."""
        same = [later for _, later, target in moves if target == state]
        out = [joined(later, rules[target]) for _, later, target in moves if target != state]
        if self._may_end(state):
            out.append(END)
        return seq(repeated(alt(*same), 0, None), alt(*out)) if same else alt(*out)

    def _may_end(self, state: State) -> bool:
        index, counts, _, repeated_ = state
        plan = self._plan
        if index < plan.low or (plan.unique is False and not repeated_):
            return False
        return all(count >= counter.low for count, counter in zip(counts, plan.counts))

    def _moves(self, state: State) -> list[Move]:
        """Return the items that may come next, with the states that they lead to."""
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
                item = self._value(node)
                later = joined(self._style.after(","), item)
                found.append((item, later, (after, new_counts, used, repeated_)))
        return found

    def _kinds(self, index: int, counts: tuple[int, ...], demanded: Formulas) -> list[tuple[Formulas, tuple[int, ...]]]:
        """Return the kinds of the next item, which matches each counter or does not, with the counts after it.

        Where a counter only has a lower bound, an item that is not counted may match nevertheless.
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

    def _list_values(self) -> list[list[tuple[int, Any, Expr, Expr]]]:
        """Return the values of each first item, and of the later ones: number, value, and the item as in `Move`."""
        known: dict[Any, tuple[int, Any, Expr, Expr]] = {}
        comma = self._style.after(",")
        listed = []
        for node in self._plan.items:
            row = []
            for value in listed_values(self._graph, node, MAX_LISTED_VALUES) or []:
                name = key(value)
                if name not in known:
                    text = self._style.value(value)
                    known[name] = (len(known), value, text, joined(comma, text))
                row.append(known[name])
            listed.append(row)
        return listed

    def _listed_moves(self, state: State, after: int) -> list[Move]:
        index, counts, used, repeated_ = state
        assert self._listed is not None
        found: list[Move] = []
        for number, value, text, later in self._listed[min(index, len(self._listed) - 1)]:
            twice = bool(used >> number & 1)
            if twice and self._plan.unique:
                continue
            new_counts = self._counted(index, counts, number, value) if counts else counts
            if new_counts is not None:
                target = (after, new_counts, used | 1 << number, repeated_ or twice)
                if self._plan.unique is False and target[3]:
                    target = (after, new_counts, 0, True)
                found.append((text, later, target))
        return found

    def _counted(self, index: int, counts: tuple[int, ...], number: int, value: Any) -> tuple[int, ...] | None:
        found = []
        matching = self._matching.get(number)
        if matching is None:
            matching = self._matching[number] = [
                all(holds(self._graph, formula, value, exact=True) for formula in counter.formulas)
                for counter in self._plan.counts
            ]
        for counter, count, matches in zip(self._plan.counts, counts, matching):
            count += matches and index >= counter.start
            if counter.high is not None and count > counter.high:
                return None
            found.append(count if counter.high is not None else min(count, counter.low))
        return tuple(found)


def listed_values(graph: Graph, node: Node, limit: int) -> list[Any] | None:
    """Return all values of a node, if they are scalars or listed and at most `limit`; else None."""
    # A dictionary by `key` removes equal values, such as 1 and 1.0.
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
        texts = enumerate_strings(strings.language(), limit)
        if texts is None:
            return None
        scalars += texts
    found.update({key(value): value for value in scalars})
    return list(found.values()) if len(found) <= limit else None
