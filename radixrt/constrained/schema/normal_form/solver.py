"""The solver: from the formulas of a node to its expansion.

The search works as in a satisfiability solver: a choice with a single possible alternative is made at once (unit
propagation); otherwise the choice with the fewest possible alternatives is split. So the number of branches does not
multiply along a chain of mutually exclusive conditions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, TypeVar

from radixrt.constrained.schema.limits import Budget, over_limit
from radixrt.constrained.schema.normal_form.branch import Branch, EvaluationScope, Scopes
from radixrt.constrained.schema.normal_form.direct import (
    container_expansion,
    known_expansion,
    remember,
    scalar_content,
    single_schema,
)
from radixrt.constrained.schema.normal_form.disjointness import all_disjoint, options_by_value
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.keywords.applicators import AnyOf, OneOf
from radixrt.constrained.schema.normal_form.keywords.base import Assertion
from radixrt.constrained.schema.normal_form.keywords.reader import FormatMode
from radixrt.constrained.schema.normal_form.nodes import (
    ANY_ARRAY,
    ANY_OBJECT,
    NONE,
    ArrayShape,
    Either,
    Expansion,
    Is,
    Node,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.numbers import ANY_NUMBER, NumberSet
from radixrt.constrained.schema.normal_form.static_checks import declares_members, evaluates_all_members
from radixrt.constrained.schema.normal_form.strings import ANY_STRING, StringSet
from radixrt.constrained.schema.normal_form.validation import Evaluated, holds, satisfies
from radixrt.constrained.schema.values import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, key

T = TypeVar("T")
_BOOLEANS = (frozenset[bool](), frozenset((False,)), frozenset((True,)), frozenset((False, True)))
"""Sets of booleans by `Branch.booleans`."""


def normal_form(
    schema: Any,
    budget: Budget,
    *,
    formats: FormatMode = "assert",
    closed: bool = False,
    ignored: frozenset[tuple[str, str]] = frozenset(),
) -> Graph:
    """Return the normal form of a schema, whose nodes are expanded on demand. See `Graph` for arguments and errors."""
    return Graph(schema, budget, expand, formats=formats, closed=closed, ignored=ignored)


def expand(graph: Graph, node: Node) -> Expansion:
    """Return the union of alternatives that is equivalent to the node's formulas.

    Raises:
        Unsupported: a keyword on the way cannot be enforced, or there are too many branches.
    """
    # A node with a single schema can often be expanded without a search, or from memory.
    located = single_schema(graph, node)
    if located is None:
        return _solve(graph, node)
    content = scalar_content(graph, located)
    if content is None:
        return container_expansion(graph, located) or _solve(graph, node)
    known = known_expansion(content)
    if known is None:
        known = _solve(graph, node)
        remember(graph, content, known)
    return known


def _solve(graph: Graph, node: Node) -> Expansion:
    union = _union(graph, node, _only_assertion(graph, node))
    if union is not None:
        return Expansion(union=union)
    branch = Branch(graph)
    if not branch.apply_all(node.formulas, _closing_scope(branch, node)):
        return Expansion()
    return _collected(graph, node, _solved(graph, node, branch))


def _closing_scope(branch: Branch, node: Node) -> Scopes:
    """If the node's objects are to be closed, add the scope that records the evaluation by all schemas of the node."""
    closing = branch.graph.closing
    if closing is None or not declares_members(branch.graph, node.formulas):
        return ()
    branch.scopes.append(EvaluationScope((), (closing,), None))
    return (0,)


def _only_assertion(graph: Graph, node: Node) -> Assertion | None:
    """Return the assertion of a node that consists of a single schema with a single assertion; None for other nodes."""
    if len(node.formulas) != 1:
        return None
    formula = node.formulas[0]
    if not isinstance(formula, Is) or not formula.positive:
        return None
    assertions = graph.assertions(formula.located)
    return assertions[0] if len(assertions) == 1 else None


def _union(graph: Graph, node: Node, only: Assertion | None) -> tuple[Node, ...] | None:
    """Return the options of a node that is only a choice between schemas; None for other nodes, and where the options
    must be combined. Each option keeps a separate rule in the grammar."""
    if len(node.formulas) == 1 and isinstance(node.formulas[0], Either):
        return tuple(dict.fromkeys(graph.node(option) for option in node.formulas[0].options))
    if not isinstance(only, AnyOf | OneOf) or (isinstance(only, OneOf) and options_by_value(graph, only) is not None):
        return None
    # With objects closed, a value for which two options hold may have the members of both.
    must_part = isinstance(only, OneOf) or (
        graph.closing is not None
        and declares_members(graph, node.formulas)
        and not all(evaluates_all_members(graph, option) for option in only.options)
    )
    if must_part and not all_disjoint(graph, only):
        return None
    found = [graph.formulas(option) for option in only.options]
    return tuple(dict.fromkeys(graph.node(formulas) for formulas in found if formulas is not NONE))


def _solved(graph: Graph, node: Node, start: Branch) -> Iterator[Branch]:
    """Yield the branches that remain once every choice is made."""
    # Depth first, so that only the branches of one path are in memory. A branch with listed values needs no search:
    # `_collected` tests each value.
    limit = graph.budget.limits.branches
    stack = [start]
    tried = found = 0
    while stack:
        branch = stack.pop()
        graph.budget.check_time(node.pointer, "schema")
        if branch.finite is not None:
            yield branch
            continue
        if not branch.choices:
            for final in _settled(branch):
                found += 1
                yield final
        else:
            live, count = _split(branch)
            tried += count
            stack.extend(reversed(live))
        if found + len(stack) > limit or tried > 20 * limit:
            reason = f"its combinations unfold into more than {limit} alternatives"
            raise over_limit(node.pointer, _combining_keyword(graph, node), reason)


def _split(branch: Branch) -> tuple[list[Branch], int]:
    """Make the choice with the fewest possible alternatives. Return the resulting branches, and the number of
    alternatives that were tried.

    A choice with an alternative that adds no knowledge is satisfied already, and is removed.
    """
    best: list[Branch] | None = None
    tried = 0
    for place, choice in enumerate(branch.choices):
        live = []
        for alternative in choice.alternatives:
            other = branch.with_choice(place)
            tried += 1
            if other.apply_all(alternative, choice.scopes):
                if other.changes == branch.changes:
                    return [other], tried
                live.append(other)
        if len(live) <= 1:
            return live, tried
        if best is None or len(live) < len(best):
            best = live
    assert best is not None
    return best, tried


def _settled(branch: Branch) -> Iterator[Branch]:
    """Yield the branches with the deferred assertions applied and the witnesses identified."""
    for place in reversed(range(len(branch.scopes))):
        if not _settle(branch, place):
            return
    branch.scopes.clear()
    yield from _with_witnesses(branch, 0)


def _settle(branch: Branch, place: int) -> bool:
    """Apply the deferred assertions of a scope to the members and items that the scope did not record as evaluated."""
    scope = branch.scopes[place]
    for number, assertion in enumerate(scope.deferred):
        if scope.denied is None:
            if not assertion.settle(branch, scope):
                return False
        elif scope.denied == number and not assertion.settle_denied(branch, scope):
            return False
    return True


def _with_witnesses(branch: Branch, first: int) -> Iterator[Branch]:
    """Yield the branches in which each witness from `first` on is a declared member, or an undeclared one."""
    if first >= len(branch.object.witnesses) or not branch.types & OBJECT:
        yield branch
        return
    keys, formulas, _ = branch.object.witnesses[first]
    for name, _ in branch.object.shape().members:
        if name in keys:
            other = branch.fork()
            del other.object.witnesses[first]
            if other.add_required_member(name, formulas):
                yield from _with_witnesses(other, first)
    if not any(rule_keys == keys and demanded is NONE for rule_keys, demanded in branch.object.rules):
        yield from _with_witnesses(branch, first + 1)


def _collected(graph: Graph, node: Node, branches: Iterator[Branch]) -> Expansion:
    """Return the union of the branches. An alternative with all values of its type absorbs the other alternatives."""
    # Listed values are tested against the formulas one by one. Other branches contribute an alternative for each type;
    # the dictionaries remove duplicates and keep the order.
    values: dict[Hashable, Any] = {}
    types = booleans = 0
    numbers: dict[NumberSet, None] = {}
    strings: dict[StringSet, None] = {}
    arrays: dict[ArrayShape, None] = {}
    objects: dict[ObjectShape, None] = {}
    for branch in branches:
        if branch.finite is not None:
            for value in branch.finite:
                if key(value) in values or not all(holds(graph, formula, value) for formula in node.formulas):
                    continue
                if not _has_more_members(graph, node, value):
                    values[key(value)] = value
            continue
        types |= branch.types
        if branch.types & BOOLEAN:
            booleans |= branch.booleans
        if branch.types & NUMBER:
            numbers[branch.number] = None
        if branch.types & STRING:
            strings[branch.string] = None
        if branch.types & ARRAY:
            arrays[branch.array] = None
        if branch.types & OBJECT:
            objects[branch.object.shape()] = None
    return Expansion(
        values,
        bool(types & NULL),
        _BOOLEANS[booleans],
        _absorbed(numbers, ANY_NUMBER),
        _absorbed(strings, ANY_STRING),
        _absorbed(arrays, ANY_ARRAY),
        _absorbed(objects, ANY_OBJECT),
    )


def _absorbed(found: dict[T, None], everything: T) -> tuple[T, ...]:
    return (everything,) if len(found) > 1 and everything in found else tuple(found)


def _has_more_members(graph: Graph, node: Node, value: Any) -> bool:
    """Return True if a listed value is an object with members that a closed object would not have."""
    if graph.closing is None or type(value) is not dict or not declares_members(graph, node.formulas):
        return False
    evaluated = Evaluated()
    for formula in node.formulas:
        if isinstance(formula, Is) and formula.positive:
            satisfies(graph, formula.located, value, evaluated=evaluated)
    return not evaluated.names.issuperset(value)


def _combining_keyword(graph: Graph, node: Node) -> str:
    """Return the keyword of the node that most likely causes many branches."""
    for formula in node.formulas:
        if isinstance(formula, Is):
            for assertion in graph.assertions(formula.located):
                if assertion.in_place:
                    return assertion.keyword
    return "schema"
