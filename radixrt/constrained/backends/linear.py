"""Terminals as rules of single characters, for regular languages that llguidance has no terminal for.

The multiples of a number are a small automaton, but mostly no expression of reasonable size. As right-linear rules,
one for each state, they can be written. Their terminals are then single characters, so every other terminal that could
be read in place of the first of them is written in the same way: see `lexer_law.py` for the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from radixrt.constrained.productions import (
    NO_TEXT,
    Expr,
    Lit,
    NotExpressible,
    Productions,
    Ref,
    Seq,
    Term,
    alt,
)
from radixrt.constrained.regex import CharSet, Regex, chars
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.derivatives import first

MAX_STATES: Final = 400


def with_linear_rules(productions: Productions, is_terminal: Callable[[Regex], bool]) -> Productions:
    """The same language, every `Term` being one that `is_terminal` takes; the same object where all are already.

    Raises:
        NotExpressible: the automaton of a terminal has more than `MAX_STATES` states.
    """
    leaves = [expr for expr in productions.layout.order if isinstance(expr, Lit | Term)]
    regexes = dict.fromkeys(expr.regex for expr in leaves if isinstance(expr, Term))
    linear = {regex for regex in regexes if not is_terminal(regex)}
    if not linear:
        return productions
    read = CharSet(())
    for regex in linear:
        read = read | regex.alphabet()
    while True:
        more = {regex for regex in regexes if regex not in linear and regex.max_length != 1 and first(regex) & read}
        if not more:
            break
        linear |= more
        for regex in more:
            read = read | regex.alphabet()
    rules: dict[str, Expr] = {}
    entries = {regex: _add_rules(regex, rules) for regex in regexes if regex in linear}

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Term) and expr.regex in entries:
            return Ref(entries[expr.regex])
        if isinstance(expr, Lit) and len(expr.text) > 1 and expr.text[0] in read:
            return Seq(tuple(map(Lit, expr.text)))
        return expr

    return Productions({**productions.rewrite(visit).rules, **rules}, productions.start)


def _add_rules(regex: Regex, rules: dict[str, Expr]) -> str:
    """Adds a rule for each state of the automaton; the name of the first."""
    dfa = Dfa.of(regex, MAX_STATES)
    if dfa is None:
        raise NotExpressible(f"a terminal has an automaton of more than {MAX_STATES} states")
    base = len(rules)

    def name(state: int) -> str:
        return f"state~{base + state}"  # no name that anyone else gives

    for state, arrows in enumerate(dfa.arrows):
        options: list[Expr] = [Seq((Term(chars(charset)), Ref(name(target)))) for charset, target in arrows]
        if dfa.accepting[state]:
            options.append(NO_TEXT)
        rules[name(state)] = alt(*options)
    return name(0)
