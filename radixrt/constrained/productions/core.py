"""Productions: the intermediate form of every grammar, between a client's constraint and the backends.

Productions are rules over regular terminals. JSON schemas, regular expressions, users' EBNF, choices and tool formats
are all converted to `Productions`; `backends` writes them for the two mask libraries, and `recognizer` follows a text
through them. A `Productions` denotes a set of sentences; a sentence is a text in which control tokens of the vocabulary
(`Special`) may stand between characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from radixrt.constrained import regex as regular
from radixrt.constrained.productions.expressions import (
    NO_TEXT,
    NOTHING,
    Alt,
    AnyOrder,
    Expr,
    Lit,
    Part,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    alt,
    children,
    fold,
    postorder,
    with_children,
)
from radixrt.constrained.productions.layout import CALL, Layout, leaf_length, length_above
from radixrt.errors import InvariantError, RequestError


class EmptyLanguage(RequestError):
    """No text at all satisfies the grammar."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="empty_language")


class NotExpressible(Exception):
    """A backend's notation has no exact and affordable form for a grammar; another backend may have one."""


@dataclass(frozen=True)
class Productions:
    """A grammar. The sentences of the grammar are the texts of the rule `start`.

    Attributes:
        rules: the rules by name.
        start: name of the root rule.
    """

    rules: Mapping[str, Expr] = field(hash=False)
    start: str = "start"

    def rewrite(self, visit: Callable[[Expr], Expr]) -> Productions:
        """The grammar with `visit(expr)` in place of each expression, bottom up."""
        made = fold(self.rules.values(), lambda expr, below: visit(with_children(expr, below)))
        return Productions({name: made[id(body)] for name, body in self.rules.items()}, self.start)

    @cached_property
    def layout(self) -> Layout:
        """The grammar as rows."""
        return Layout(self.rules)

    @cached_property
    def specials(self) -> list[str]:
        """The texts of control tokens."""
        return self.layout.specials

    @cached_property
    def shortest(self) -> dict[str, int]:
        """Characters of each rule's shortest text, a control token counting as one; without rules that have no text."""
        lengths = self.layout.lengths
        return {name: length for name, row in self.layout.bodies.items() if (length := lengths[row]) is not None}

    @cached_property
    def size(self) -> int:
        """Expressions, shared ones counted once, and characters of literals: a measure of the work to compile."""
        return sum(1 + (len(expr.text) if isinstance(expr, Lit) else 0) for expr in self.layout.order)

    def validate(self) -> None:
        """Raise `InvariantError` if a rule is missing, a bound is impossible or a rule is left-recursive."""
        if self.start not in self.rules:
            raise InvariantError(f"productions without their root rule {self.start!r}")
        for name, body in self.rules.items():
            for expr in postorder([body]):
                if isinstance(expr, Ref) and expr.rule not in self.rules:
                    raise InvariantError(f"rule {name!r} refers to {expr.rule!r}, which is not defined")
                if isinstance(expr, Rep) and (expr.low < 0 or (expr.high is not None and expr.high < expr.low)):
                    raise InvariantError(f"rule {name!r} repeats from {expr.low} to {expr.high} times")
                if isinstance(expr, AnyOrder):
                    self._validate_parts(name, expr)
        cycle = left_recursion(self)
        if cycle:
            raise InvariantError(f"left recursion through {', '.join(cycle)}")

    def _validate_parts(self, rule: str, expr: AnyOrder) -> None:
        bounds = [(part.low, part.high) for part in expr.parts]
        if expr.low < 1 or any(low < 0 or (high is not None and high < low) for low, high in bounds):
            raise InvariantError(f"rule {rule!r} has parts in any order with bounds that cannot be")
        if any(length_of(one, self.shortest) == 0 for one in children(expr)):
            raise InvariantError(f"rule {rule!r} has parts in any order that may be empty")

    def prune(self) -> Productions:
        """The same language without options and rules that derive nothing, and without unreachable rules.

        Raises:
            EmptyLanguage: the grammar has no sentence.
            GrammarTooComplex: deciding whether a terminal has a text takes too long.
        """
        productive = self.shortest
        if self.start not in productive:
            raise EmptyLanguage("no text satisfies the constraint")
        if self._is_pruned:
            return self
        layout = self.layout
        made: list[Expr] = []
        for expr, below, length in zip(layout.order, layout.below, layout.lengths):
            made.append(NOTHING if length is None else _pruned(expr, [made[one] for one in below]))
        rules: dict[str, Expr] = {}
        queue = [self.start]
        while queue:
            name = queue.pop()
            if name not in rules:
                body = rules[name] = made[layout.bodies[name]]
                queue.extend(e.rule for e in reversed(postorder([body])) if isinstance(e, Ref))
        return Productions(rules, self.start)

    @cached_property
    def _is_pruned(self) -> bool:
        layout = self.layout
        if None in layout.lengths or any(type(expr) is Rep and expr.high == 0 for expr in layout.order):
            return False
        reached = {layout.bodies[self.start]}
        seen = bytearray(len(layout.order))
        stack = [layout.bodies[self.start]]
        while stack:
            row = stack.pop()
            if seen[row]:
                continue
            seen[row] = 1
            stack += layout.below[row]
            if layout.kinds[row] == CALL:
                reached.add(layout.called[row])
                stack.append(layout.called[row])
        return reached == set(layout.bodies.values())

    def encode(self) -> bytes:
        """MessagePack for another process; shared expressions and parts of regular languages stay shared."""
        layout = self.layout
        regexes, places = regular.encode(layout.terms)
        table = [
            ("term", places[expr.regex]) if type(expr) is Term else _row(expr, below)
            for expr, below in zip(layout.order, layout.below)
        ]
        lengths = self.shortest
        rules = [(name, row, _sent(lengths.get(name))) for name, row in layout.distinct(self.start).items()]
        return msgspec.msgpack.encode([self.start, rules, layout.specials, table, regexes])

    @staticmethod
    def decode(data: bytes) -> Productions:
        """The productions of `encode`. Only for trusted bytes: a malformed message raises any exception."""
        start, rules, specials, table, encoded = msgspec.msgpack.decode(data)
        regexes = regular.decode(encoded)
        made: list[Expr] = []
        for row in table:
            made.append(_from_row(row, made, regexes))
        found = Productions({name: made[index] for name, index, _ in rules}, start)
        # Set the cached properties that a recognizer needs, so that it needs no `layout`.
        shortest = {name: int(length) for name, _, length in rules if length is not None}
        vars(found).update(shortest=shortest, specials=specials)
        return found


def length_of(expr: Expr, shortest: Mapping[str, int]) -> int | None:
    """Characters of the shortest text of an expression, given `Productions.shortest`; None where it derives nothing."""

    def visit(one: Expr, below: list[int | None]) -> int | None:
        if isinstance(one, Ref):
            return shortest.get(one.rule)
        return leaf_length(one) if isinstance(one, Lit | Term | Special) else length_above(one, below)

    return fold([expr], visit)[id(expr)]


def left_calls(body: Expr, shortest: Mapping[str, int]) -> set[str]:
    """Return the rules that the body may call before reading anything."""

    def visit(expr: Expr, below: list[tuple[bool, frozenset[str]]]) -> tuple[bool, frozenset[str]]:
        if isinstance(expr, Ref):
            return shortest.get(expr.rule) == 0, frozenset((expr.rule,))
        if isinstance(expr, Alt):
            return any(nullable for nullable, _ in below), frozenset().union(*(calls for _, calls in below))
        if isinstance(expr, Rep):
            if expr.high == 0:
                return True, frozenset()
            return expr.low == 0 or below[0][0], below[0][1]
        if isinstance(expr, AnyOrder):
            return False, frozenset().union(*(calls for _, calls in below[::2]))
        if isinstance(expr, Seq):
            calls: frozenset[str] = frozenset()
            for nullable, first in below:
                calls |= first
                if not nullable:
                    return False, calls
            return True, calls
        return leaf_length(expr) == 0, frozenset()

    return set(fold([body], visit)[id(body)][1])


def left_recursion(productions: Productions) -> list[str]:
    """Rules that call one another in a circle and read nothing in between; empty if there are none."""
    shortest = productions.shortest
    calls = {name: left_calls(body, shortest) for name, body in productions.rules.items()}
    return next((found for found in components(calls) if is_circle(found, calls)), [])


def components(calls: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of calls, callees before their callers (Tarjan's algorithm, iterative)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: list[str] = []
    open_rules: set[str] = set()
    found: list[list[str]] = []
    for root in calls:
        path = [(root, iter(sorted(calls[root])))] if root not in index else []
        while path:
            name, callees = path[-1]
            if name not in index:
                index[name] = low[name] = len(index)
                component.append(name)
                open_rules.add(name)
            callee = next((one for one in callees if one in calls and (one not in index or one in open_rules)), None)
            if callee is not None:
                if callee in index:
                    low[name] = min(low[name], index[callee])
                else:
                    path.append((callee, iter(sorted(calls[callee]))))
                continue
            # All callees are done: pass the low link on, and close the component if this rule is its root.
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[name])
            if low[name] == index[name]:
                first = component.index(name)
                found.append(component[first:])
                open_rules.difference_update(component[first:])
                del component[first:]
    return found


def is_circle(component: list[str], calls: Mapping[str, set[str]]) -> bool:
    """Return True if the rules of a component call one another."""
    return len(component) > 1 or component[0] in calls[component[0]]


def _pruned(expr: Expr, below: list[Expr]) -> Expr:
    """Return the expression without options that derive no text.

    Args:
        below: the pruned children; `NOTHING` for a child that derives no text.
    """
    if isinstance(expr, Alt):
        kept = [option for option in below if option is not NOTHING]
        return with_children(expr, kept) if len(kept) == len(below) else alt(*kept)
    if isinstance(expr, AnyOrder):
        pairs = zip(expr.parts, below[::2], below[1::2], strict=True)
        live = [(part, first, later) for part, first, later in pairs if first is not NOTHING and later is not NOTHING]
        if len(live) < len(expr.parts):
            parts = tuple([Part(first, later, part.low, part.high) for part, first, later in live])
            return AnyOrder(parts, expr.low, expr.high)
    if isinstance(expr, Rep) and (expr.high == 0 or below[0] is NOTHING):
        return NO_TEXT
    return with_children(expr, below)


def _row(expr: Expr, below: Sequence[int]) -> tuple[Any, ...]:
    if type(expr) is Lit:
        return ("lit", expr.text)
    if type(expr) is Seq:
        return ("seq", *below)
    if type(expr) is Ref:
        return ("ref", expr.rule)
    if type(expr) is Alt:
        return ("alt", *below)
    if type(expr) is Special:
        return ("special", expr.text)
    if type(expr) is AnyOrder:
        bounds = [(_sent(part.low), _sent(part.high)) for part in expr.parts]
        return ("any_order", bounds, _sent(expr.low), _sent(expr.high), *below)
    assert isinstance(expr, Rep)
    return ("rep", str(expr.low), _sent(expr.high), *below)


def _sent(count: int | None) -> str | None:
    """A count as text, because integers of the wire form have an end."""
    return None if count is None else str(count)


def _from_row(row: list[Any], made: list[Expr], regexes: list[regular.Regex]) -> Expr:
    kind, *rest = row
    if kind == "lit":
        return Lit(rest[0])
    if kind == "term":
        return Term(regexes[rest[0]])
    if kind == "ref":
        return Ref(rest[0])
    if kind == "special":
        return Special(rest[0])
    if kind == "seq":
        return Seq(tuple(made[index] for index in rest))
    if kind == "alt":
        return Alt(tuple(made[index] for index in rest))
    if kind == "rep":
        return Rep(made[rest[2]], int(rest[0]), None if rest[1] is None else int(rest[1]))
    if kind == "any_order":
        bounds, low, high, *below = rest
        pairs = zip(below[::2], below[1::2], strict=True)
        parts = [
            Part(made[first], made[later], int(least), None if most is None else int(most))
            for (first, later), (least, most) in zip(pairs, bounds, strict=True)
        ]
        return AnyOrder(tuple(parts), int(low), None if high is None else int(high))
    raise ValueError(f"unknown kind of expression {kind!r}")
