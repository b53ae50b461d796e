"""Terminals for structural tags in which the longest match does not show where a part ends.

Two grammars in a row, free text or JSON, a number before digits: only a parser of single characters reads them rightly.
All terminals of such a tag are written as characters, of which `terminal_inference` makes larger terminals again where
a greedy lexer reads them rightly, as for grammars of users. Masks take longer than those of tags with clear borders.
"""

from __future__ import annotations

from typing import Final

from radixrt.constrained.productions import AnyOrder, Expr, Lit, Productions, Rep, Term, alt, seq
from radixrt.constrained.productions.recursion import Entangled, without_left_recursion, without_right_recursion
from radixrt.constrained.productions.terminal_inference import with_terminals
from radixrt.constrained.regex import Regex, RegexTooComplex
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.nodes import Alternate, Chars, Concat, Repeat, Words

MAX_STATES: Final = 64
MAX_SIZE: Final = 2_000
"""Bounds on the automaton, and on the expression, of a terminal that is an intersection or a complement."""


class NotWritten(Exception):
    """The productions cannot be written as characters within bounds."""


def with_inferred_terminals(productions: Productions) -> Productions:
    """Return pruned productions of the same language, whose terminals a greedy lexer reads rightly.

    Raises:
        NotWritten: a terminal is too large, or an object has its keys in any order.
        EmptyLanguage: the productions have no sentence.
    """
    pruned = productions.prune()
    if any(isinstance(expr, AnyOrder) for expr in pruned.layout.order):
        raise NotWritten
    try:
        written = pruned.rewrite(lambda expr: _in_characters(expr.regex) if isinstance(expr, Term) else expr).prune()
        return with_terminals(without_right_recursion(without_left_recursion(written)).prune()).prune()
    except (Entangled, RegexTooComplex):
        raise NotWritten from None


def _in_characters(regex: Regex) -> Expr:
    """Return an expression of single characters and constant texts."""
    if regex.text is not None:
        return Lit(regex.text)
    if isinstance(regex, Chars):
        return Term(regex)
    if isinstance(regex, Words):
        return alt(*map(Lit, regex.words))
    if isinstance(regex, Concat):
        return seq(*map(_in_characters, regex.chain()))
    if isinstance(regex, Alternate):
        return alt(*map(_in_characters, regex.options))
    if isinstance(regex, Repeat):
        return Rep(_in_characters(regex.item), regex.low, regex.high)
    dfa = Dfa.of(regex, MAX_STATES)
    plain = None if dfa is None else dfa.eliminate(MAX_SIZE)
    if plain is None or plain.has_boolean:
        raise NotWritten
    return _in_characters(plain)
