"""Joins characters of a user's grammar into terminals, where a greedy lexer still reads the grammar correctly.

In llguidance, masks of a grammar with terminals are ten to a hundred times faster than masks of a grammar of single
characters, and xgrammar is as fast for a terminal's automaton. But llguidance ends a terminal only where no terminal
can continue; `maximal_munch` states when that is correct. The largest regular parts are tried first. A terminal that
violates the rule is split (a literal just at the violation) until the rule holds for all pairs of terminals. Single
characters always satisfy the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from radixrt.constrained.productions.core import Productions, components
from radixrt.constrained.productions.expressions import (
    Alt,
    Expr,
    Lit,
    Ref,
    Rep,
    Seq,
    Term,
    children,
    fold,
    postorder,
    with_children,
)
from radixrt.constrained.productions.maximal_munch import MaximalMunch, Terminal
from radixrt.constrained.regex import Regex, RegexTooComplex, alternate, concat, literal, repeat

_MAX_TERMINAL: Final = 2_000
_MAX_DEPTH: Final = 60
_MAX_TERMINALS: Final = 200
_MAX_ROUNDS: Final = 30
_MAX_WORK: Final = 60_000


def with_terminals(productions: Productions) -> Productions:
    """Return productions of the same language whose terminals satisfy the maximal-munch rule. If no larger terminals
    are found in time, the terminals are single characters.

    Args:
        productions: pruned; each `Term` reads a single character.
    """
    draft = _Draft(productions)
    rule = MaximalMunch()
    for _ in range(min(_MAX_ROUNDS, max(2, _MAX_WORK // productions.size))):
        written, sources = draft.write()
        if len(sources) > _MAX_TERMINALS:
            break
        conflicts = rule.violations(written)
        if not conflicts:
            return written.rewrite(_as_literal)
        for terminal, length in conflicts.items():
            for source in sources[terminal]:
                draft.take_apart(source, length)
    return productions.rewrite(_in_characters)


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of a terminal: an expression of the draft, or the part of a literal from an offset on."""

    expr: Expr
    offset: int


class _Draft:
    """A grammar whose regular parts are terminals unless they have been taken apart."""

    def __init__(self, productions: Productions) -> None:
        self._start = productions.start
        self._regexes: dict[int, Regex | None] = {}
        self._sizes: dict[int, int] = {}
        self._depths: dict[int, int] = {}
        self._rules: dict[str, Expr] = {}
        self._apart: set[int] = set()
        self._cuts: dict[int, set[int]] = {}
        joined = productions.rewrite(_with_joined_literals)
        calls = {
            rule: {expr.rule for expr in postorder([body]) if isinstance(expr, Ref)}
            for rule, body in joined.rules.items()
        }
        for component in components(calls):
            for rule in component:
                self._rules[rule] = self._group_regular(joined.rules[rule])

    def take_apart(self, source: _Source, length: int) -> None:
        """Split an expression that was a single terminal. A literal is split after `length` characters."""
        if isinstance(source.expr, Lit):
            self._cuts.setdefault(id(source.expr), set()).add(source.offset + length)
        else:
            self._apart.add(id(source.expr))

    def write(self) -> tuple[Productions, dict[Terminal, list[_Source]]]:
        """Return the current grammar, and the source of each terminal."""
        sources: dict[Terminal, list[_Source]] = {}
        rules: dict[str, Expr] = {}
        queue = [self._start]
        while queue:
            rule = queue.pop()
            if rule not in rules:
                rules[rule] = self._written(self._rules[rule], sources)
                queue.extend(expr.rule for expr in postorder([rules[rule]]) if isinstance(expr, Ref))
        return Productions(rules, self._start), sources

    def _written(self, expr: Expr, sources: dict[Terminal, list[_Source]]) -> Expr:
        if isinstance(expr, Ref):
            body = self._rules[expr.rule]
            return self._whole(body, sources) or expr
        whole = self._whole(expr, sources)
        if whole is not None:
            return whole
        if isinstance(expr, Lit):
            cuts = [0, *sorted(self._cuts[id(expr)]), len(expr.text)]
            parts = []
            for low, high in pairwise(cuts):
                regex = literal(expr.text[low:high])
                sources.setdefault(regex, []).append(_Source(expr, low))
                parts.append(Term(regex))
            return Seq(tuple(parts))
        if isinstance(expr, Rep):
            return Rep(self._written(expr.item, sources), expr.low, expr.high)
        if isinstance(expr, Seq):
            return Seq(tuple(self._written(part, sources) for part in expr.parts))
        if isinstance(expr, Alt):
            return Alt(tuple(self._written(option, sources) for option in expr.options))
        return expr

    def _whole(self, expr: Expr, sources: dict[Terminal, list[_Source]]) -> Expr | None:
        """Return the expression as a single terminal; None if it is not regular, or has been split before."""
        regex = self._regexes[id(expr)]
        if regex is None or id(expr) in self._apart or id(expr) in self._cuts:
            return None
        if regex.text == "":
            return Seq(())
        sources.setdefault(regex, []).append(_Source(expr, 0))
        return Term(regex)

    def _group_regular(self, body: Expr) -> Expr:
        """Return the body in which adjacent regular parts of each sequence are grouped into a sequence."""

        def visit(expr: Expr, below: list[Expr]) -> Expr:
            if isinstance(expr, Seq) and any(self._regexes[id(part)] is None for part in below):
                below = self._runs(below)
                made: Expr = Seq(tuple(below))
            else:
                made = with_children(expr, below)
            self._measure(made)
            return made

        return fold([body], visit)[id(body)]

    def _runs(self, parts: list[Expr]) -> list[Expr]:
        runs: list[Expr] = []
        run: list[Expr] = []
        for part in [*parts, None]:
            if part is not None and self._regexes[id(part)] is not None:
                run.append(part)
                continue
            if len(run) > 1:
                joined = Seq(tuple(run))
                self._measure(joined)
                runs.append(joined)
            else:
                runs.extend(run)
            run = []
            if part is not None:
                runs.append(part)
        return runs

    def _measure(self, expr: Expr) -> None:
        """Compute the language of an expression from the languages of its children; None if it is not regular or too
        large."""
        below = children(expr)
        if isinstance(expr, Ref) and expr.rule in self._rules:
            below = (self._rules[expr.rule],)
        words = isinstance(expr, Alt)  # literals of a choice become one set of words
        size = 1 + sum(self._sizes[id(part)] for part in below if not (words and isinstance(part, Lit)))
        regexes = [regex for regex in (self._regexes[id(part)] for part in below) if regex is not None]
        found: Regex | None = None
        depth = 1 + max((self._depths[id(part)] for part in below), default=0)
        if len(regexes) == len(below) and size <= _MAX_TERMINAL and depth <= _MAX_DEPTH:
            try:
                found = _language(expr, regexes)
            except RegexTooComplex:
                found = None
        self._regexes[id(expr)] = found
        self._sizes[id(expr)] = min(size, _MAX_TERMINAL + 1)
        self._depths[id(expr)] = min(depth, _MAX_DEPTH + 1)


def _language(expr: Expr, below: list[Regex]) -> Regex | None:
    if isinstance(expr, Lit):
        return literal(expr.text)
    if isinstance(expr, Term):
        return expr.regex
    if isinstance(expr, Seq):
        return concat(*below)
    if isinstance(expr, Alt):
        return alternate(*below)
    if isinstance(expr, Rep):
        return repeat(below[0], expr.low, expr.high)
    return below[0] if isinstance(expr, Ref) and below else None


def _with_joined_literals(expr: Expr) -> Expr:
    """A sequence with neighboring literals joined."""
    if not isinstance(expr, Seq):
        return expr
    parts: list[Expr] = []
    for part in expr.parts:
        if isinstance(part, Lit) and parts and isinstance(parts[-1], Lit):
            parts[-1] = Lit(parts[-1].text + part.text)
        else:
            parts.append(part)
    return parts[0] if len(parts) == 1 else Seq(tuple(parts))


def _in_characters(expr: Expr) -> Expr:
    """A literal of several characters as a sequence."""
    return Seq(tuple(map(Lit, expr.text))) if isinstance(expr, Lit) and len(expr.text) > 1 else expr


def _as_literal(expr: Expr) -> Expr:
    """A terminal of one text as a literal."""
    return Lit(expr.regex.text) if isinstance(expr, Term) and expr.regex.text is not None else expr
