"""Rewriting rules that call themselves first or last into repetitions, without changing the language.

The recognizer requires that a rule reads something before it calls itself again, and llguidance keeps an item for each
level of right recursion, up to a limit. `a ::= a x | y` becomes `a ::= y x*`; `a ::= x a | y` becomes `a ::= x* y`.
Left recursion through several rules is first made direct by substituting bodies for calls (Paull's algorithm). An
expression before a recursive call that may be empty is split into its empty and its nonempty texts.
"""

from __future__ import annotations

from typing import Final

from radixrt.constrained.productions.core import Productions, components, is_circle, left_calls, length_of
from radixrt.constrained.productions.expressions import (
    NO_TEXT,
    NOTHING,
    Alt,
    Expr,
    Lit,
    Ref,
    Rep,
    Seq,
    Term,
    alt,
    fold,
    seq,
)
from radixrt.constrained.regex import ANY, ANY_CHAR, concat, intersect

MAX_SIZE: Final = 5_000
MAX_DEPTH: Final = 200


class Entangled(Exception):
    """Left recursion that cannot be rewritten within bounds.

    Attributes:
        message: for the person who wrote the grammar.
        rule: one of the rules concerned.
    """

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule


def without_left_recursion(productions: Productions) -> Productions:
    """Return productions of the same language without left recursion.

    Args:
        productions: pruned.

    Raises:
        Entangled: a rule grows beyond `MAX_SIZE` or `MAX_DEPTH`.
    """
    shortest = dict(productions.shortest)
    calls = {name: left_calls(body, shortest) for name, body in productions.rules.items()}
    rules = dict(productions.rules)
    for component in components(calls):
        if is_circle(component, calls):
            _Circle(rules, sorted(component, key=list(calls).index), shortest).break_up()
    return Productions(rules, productions.start)


def without_right_recursion(productions: Productions) -> Productions:
    """Return productions of the same language in which no alternative of a rule ends in a call of the same rule."""
    rules = dict(productions.rules)
    for name, body in productions.rules.items():
        again, rest = _last(body, name)
        if again is not NOTHING:
            rules[name] = seq(Rep(again, 0, None), rest)
    return Productions(rules, productions.start)


def _last(expr: Expr, rule: str) -> tuple[Expr, Expr]:
    """Return (again, rest) such that expr equals `again rule | rest`, where `again` has the recursive calls at the end
    of expr that are not inside of repetitions."""
    if isinstance(expr, Ref) and expr.rule == rule:
        return NO_TEXT, NOTHING
    if isinstance(expr, Alt):
        pairs = [_last(option, rule) for option in expr.options]
        if any(again is not NOTHING for again, _ in pairs):
            return alt(*(again for again, _ in pairs)), alt(*(rest for _, rest in pairs))
    elif isinstance(expr, Seq) and expr.parts:
        again, rest = _last(expr.parts[-1], rule)
        if again is not NOTHING:
            return seq(*expr.parts[:-1], again), seq(*expr.parts[:-1], rest)
    elif isinstance(expr, Rep) and (expr.low, expr.high) == (0, 1):
        again, rest = _last(expr.item, rule)
        if again is not NOTHING:
            return again, alt(rest, NO_TEXT)
    return NOTHING, expr


class _Circle:
    """A set of rules with mutual left recursion, rewritten in place.

    Args:
        rules: of the whole grammar; changed.
        circle: the rules concerned.
        shortest: `Productions.shortest` of all rules; new rules are added.
    """

    def __init__(self, rules: dict[str, Expr], circle: list[str], shortest: dict[str, int]) -> None:
        self._rules = rules
        self._circle = circle
        self._shortest = shortest

    def break_up(self) -> None:
        """Remove the left recursion of these rules, direct and through other rules."""
        # Split every nullable rule r into `r ::= r~ | ""` and a rule r~ for the nonempty texts.
        nullable = [rule for rule in self._circle if self._shortest[rule] == 0]
        others = [rule for rule in self._circle if self._shortest[rule] != 0]
        bodies = {rule: self._rules[rule] for rule in nullable}
        for rule in nullable:
            self._rules[rule] = alt(Ref(self._declare_nonempty(rule)), NO_TEXT)
        for rule, body in bodies.items():
            self._rules[_nonempty_name(rule)] = self._nonempty(body)
        # Paull's algorithm: in a fixed order, substitute the rules that are done into first calls, then turn direct
        # left recursion into a repetition.
        done = nullable
        for rule in [*others, *map(_nonempty_name, nullable)]:
            self._substitute(rule, done)
            after, rest = self._first(self._rules[rule], rule)
            if after is not NOTHING:
                again = self._nonempty(after)
                self._rules[rule] = rest if again is NOTHING else seq(rest, Rep(again, 0, None))
                self._check_size(rule)
            done = [*done, rule]

    def _substitute(self, rule: str, done: list[str]) -> None:
        """Replace first calls of rules that are done by their bodies, until there are no such calls."""
        while first := left_calls(self._rules[rule], self._shortest) & set(done):
            for callee in done:
                if callee in first:
                    after, rest = self._first(self._rules[rule], callee)
                    self._rules[rule] = alt(seq(self._rules[callee], after), rest)
                    self._check_size(rule)

    def _check_size(self, rule: str) -> None:
        size, depth = _written_size(self._rules[rule])
        if size > MAX_SIZE or depth > MAX_DEPTH:
            names = ", ".join(repr(name) for name in self._circle[:5])
            raise Entangled(
                f"the left recursion through {names} is too entangled to be rewritten; "
                "let these rules read something before they call one another",
                rule,
            )

    def _first(self, expr: Expr, rule: str) -> tuple[Expr, Expr]:
        """Return (after, rest) such that expr equals `rule after | rest`, and rest does not begin with the rule."""
        if rule not in left_calls(expr, self._shortest):
            return NOTHING, expr
        if isinstance(expr, Ref):
            return NO_TEXT, NOTHING
        if isinstance(expr, Alt):
            pairs = [self._first(option, rule) for option in expr.options]
            return alt(*(after for after, _ in pairs)), alt(*(rest for _, rest in pairs))
        if isinstance(expr, Rep):
            return self._first_of_repetition(expr, rule)
        assert isinstance(expr, Seq)
        return self._first_of_sequence(expr.parts, rule)

    def _first_of_sequence(self, parts: tuple[Expr, ...], rule: str) -> tuple[Expr, Expr]:
        head, tail = parts[0], Seq(parts[1:])
        after, rest = self._first(head, rule)
        after = seq(after, tail)
        if length_of(rest, self._shortest) != 0 or rule not in left_calls(tail, self._shortest):
            return after, seq(rest, tail)
        tail_after, tail_rest = self._first(tail, rule)
        return alt(after, tail_after), alt(seq(self._nonempty(rest), tail), tail_rest)

    def _first_of_repetition(self, expr: Rep, rule: str) -> tuple[Expr, Expr]:
        item, low = expr.item, expr.low
        if length_of(item, self._shortest) == 0:
            item, low = self._nonempty(item), 0
        after, rest = self._first(item, rule)
        more = Rep(item, max(low - 1, 0), None if expr.high is None else expr.high - 1)
        rest = seq(rest, more)
        return seq(after, more), alt(rest, NO_TEXT) if low == 0 else rest

    def _nonempty(self, expr: Expr) -> Expr:
        """Return an expression for the nonempty texts of an expression."""
        if length_of(expr, self._shortest) != 0:
            return expr
        if isinstance(expr, Alt):
            return alt(*(self._nonempty(option) for option in expr.options))
        if isinstance(expr, Rep):
            return NOTHING if expr.high == 0 else Rep(self._nonempty(expr.item), 1, expr.high)
        if isinstance(expr, Seq):
            options = []
            for i, part in enumerate(expr.parts):
                options.append(seq(self._nonempty(part), *expr.parts[i + 1 :]))
            return alt(*options)
        if isinstance(expr, Ref):
            return self._nonempty_rule(expr.rule)
        if isinstance(expr, Term):
            return Term(intersect(expr.regex, concat(ANY_CHAR, ANY)))
        assert isinstance(expr, Lit)
        return NOTHING

    def _nonempty_rule(self, rule: str) -> Expr:
        """Return a call of the rule for the nonempty texts of a rule. The rule is created by the first call."""
        name = _nonempty_name(rule)
        if name not in self._rules:
            self._declare_nonempty(rule)
            self._rules[name] = self._nonempty(self._rules[rule])
        return Ref(name)

    def _declare_nonempty(self, rule: str) -> str:
        name = _nonempty_name(rule)
        self._rules[name] = NOTHING  # placeholder, because the body may call the rule itself
        self._shortest[name] = 1
        return name


def _nonempty_name(rule: str) -> str:
    return f"{rule}~"  # no name that a user can give


def _written_size(expr: Expr) -> tuple[int, int]:
    """Return the number of expressions when written out, shared ones counted at each use, and their nesting depth."""

    def visit(_: Expr, below: list[tuple[int, int]]) -> tuple[int, int]:
        return 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)

    return fold([expr], visit)[id(expr)]
