"""From the formulas of a node to its expansion: the open choices of a branch are settled one after the other.

The search is that of a satisfiability solver: a choice of which only one alternative is still possible is made at
once, and otherwise the choice with the fewest possible alternatives is split. That keeps chains of conditions, which
exclude one another, from multiplying.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from radixrt.constrained.schema.assertion import assume, deny
from radixrt.constrained.schema.branch import Branch
from radixrt.constrained.schema.expansion import ANY_ARRAY, ANY_OBJECT, Expansion, ObjectShape
from radixrt.constrained.schema.formula import NONE, Either, Formula, Formulas, Is, Node
from radixrt.constrained.schema.keys import Rest
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.logic_assertions import AnyOfAssertion, OneOfAssertion
from radixrt.constrained.schema.numbers import ANY_NUMBER
from radixrt.constrained.schema.strings import ANY_STRING
from radixrt.constrained.schema.values import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, key

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph


def expand(graph: Graph, node: Node) -> Expansion:
    """The union that the node's formulas come to.

    Raises:
        Unsupported: a keyword on the way cannot be enforced, or there are too many branches.
    """
    union = _union(graph, node)
    if union is not None:
        return Expansion(union=union)
    expansion = Expansion()
    branch = Branch(graph)
    if all(add(branch, formula) for formula in node.formulas):
        for settled in _settled(graph, node, branch):
            _collect(graph, node, settled, expansion)
    _absorb(expansion)
    return expansion


def add(branch: Branch, formula: Formula) -> bool:
    """Keep the values of the branch that satisfy the formula; False if none is left."""
    if isinstance(formula, Is):
        return assume(branch, formula.located) if formula.positive else deny(branch, formula.located)
    if isinstance(formula, Either):
        return branch.choose([lambda b, o=option: _add_all(b, o) for option in formula.options])  # type: ignore[misc]
    return False


def _add_all(branch: Branch, formulas: Formulas) -> bool:
    return all(add(branch, formula) for formula in formulas)


def _union(graph: Graph, node: Node) -> tuple[Node, ...] | None:
    """The nodes of a node that is nothing but a choice between schemas, which then keep rules of their own."""
    if len(node.formulas) != 1:
        return None
    formula = node.formulas[0]
    if isinstance(formula, Either):
        return tuple(dict.fromkeys(graph.node(option) for option in formula.options))
    if not isinstance(formula, Is) or not formula.positive:
        return None
    assertions = graph.assertions(formula.located)
    if len(assertions) != 1 or not isinstance(assertions[0], AnyOfAssertion | OneOfAssertion):
        return None
    options = assertions[0].options
    if isinstance(assertions[0], OneOfAssertion) and not graph.hints.all_disjoint(options):
        return None
    found = [graph.formulas(option) for option in options]
    return tuple(dict.fromkeys(graph.node(formulas) for formulas in found if formulas is not NONE))


def _settled(graph: Graph, node: Node, start: Branch) -> Iterator[Branch]:
    """The branches that remain once every choice is made."""
    stack = [start]
    tried = found = 0
    while stack:
        branch = stack.pop()
        graph.budget.check_time(node.pointer, "schema")
        if branch.finite is not None:
            yield branch
            continue
        if not branch.pending:
            for final in _finished(branch):
                found += 1
                yield final
        else:
            live, count = _split(branch)
            tried += count
            stack.extend(reversed(live))
        if found + len(stack) > graph.limits.branches or tried > 20 * graph.limits.branches:
            reason = f"its combinations unfold into more than {graph.limits.branches} alternatives"
            raise over_limit(node.pointer, _chooser(graph, node), reason)


def _split(branch: Branch) -> tuple[list[Branch], int]:
    """The branch with one of its choices made in every way that is possible, and how many ways were tried.

    A choice of which one alternative adds nothing is made already.
    """
    best: list[Branch] | None = None
    tried = 0
    for place, (slot, alternatives) in enumerate(branch.pending):
        live = []
        for alternative in alternatives:
            other = branch.clone()
            del other.pending[place]
            other.slot = slot
            tried += 1
            if alternative(other):
                if other.changes == branch.changes:
                    return [other], tried
                live.append(other)
        if len(live) <= 1:
            return live, tried
        if best is None or len(live) < len(best):
            best = live
    assert best is not None
    return best, tried


def _finished(branch: Branch) -> Iterator[Branch]:
    """The branch with what waited for the choices: `unevaluated...` keywords, and who the witnesses are."""
    for place in reversed(range(len(branch.frames))):
        frame = branch.frames[place]
        for number, assertion in enumerate(frame.waiting):
            if frame.denied is None:
                if not assertion.settle(branch, place):  # type: ignore[attr-defined]
                    return
            elif frame.denied == number and not assertion.settle_denied(branch, place):  # type: ignore[attr-defined]
                return
    branch.frames.clear()
    yield from _with_witnesses(branch, 0)


def _with_witnesses(branch: Branch, first: int) -> Iterator[Branch]:
    """The witnesses from the first on are each a member with a known name, or one of the others."""
    if first >= len(branch.witnesses) or not branch.mask & OBJECT:
        yield branch
        return
    keys, formulas, _ = branch.witnesses[first]
    for name, _ in branch.object_shape().members:
        if name in keys:
            other = branch.clone()
            del other.witnesses[first]
            if other.is_witness(name, formulas):
                yield from _with_witnesses(other, first)
    if not any(keys_ == keys and formulas_ is NONE for keys_, formulas_ in branch.rules):
        yield from _with_witnesses(branch, first + 1)


def _collect(graph: Graph, node: Node, branch: Branch, expansion: Expansion) -> None:
    """Add what a settled branch allows."""
    if branch.finite is not None:
        for value in branch.finite:
            if key(value) not in expansion.values and all(graph.holds(formula, value) for formula in node.formulas):
                expansion.values[key(value)] = value
        return
    mask = branch.mask
    if mask & NULL:
        expansion.null = True
    if mask & BOOLEAN:
        expansion.booleans |= {flag for flag in (False, True) if branch.booleans & (2 if flag else 1)}
    if mask & NUMBER:
        expansion.numbers[branch.number] = None
    if mask & STRING:
        expansion.strings[branch.string] = None
    if mask & ARRAY:
        expansion.arrays[branch.array_shape()] = None
    if mask & OBJECT:
        shape = branch.object_shape()
        expansion.objects[_closed(shape) if graph.closed else shape] = None


def _closed(shape: ObjectShape) -> ObjectShape:
    """The shape without other members than those that it names, if it says nothing about others."""
    if shape.rules or shape.witnesses or not shape.members:
        return shape
    names = frozenset(name for name, _ in shape.members)
    rules = ((Rest(names), NONE),)
    return ObjectShape(shape.low, shape.high, shape.members, shape.required, rules, (), shape.count_source)


def _absorb(expansion: Expansion) -> None:
    """Drop alternatives beside one that has everything of their type."""
    if ANY_NUMBER in expansion.numbers:
        expansion.numbers = {ANY_NUMBER: None}
    if ANY_STRING in expansion.strings:
        expansion.strings = {ANY_STRING: None}
    if ANY_ARRAY in expansion.arrays:
        expansion.arrays = {ANY_ARRAY: None}
    if ANY_OBJECT in expansion.objects:
        expansion.objects = {ANY_OBJECT: None}


def _chooser(graph: Graph, node: Node) -> str:
    """The keyword of the node that is most likely to blame for many branches."""
    for formula in node.formulas:
        if isinstance(formula, Is):
            for assertion in graph.assertions(formula.located):
                if assertion.in_place():
                    return assertion.keyword
    return "schema"
