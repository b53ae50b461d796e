"""Productions with more texts, which a library can execute where it cannot execute the productions themselves.

The multiples of n have an automaton of up to n states for each digit that bounds count. The library reads any integers
between the bounds instead, and `runtime.narrowing` removes the tokens in excess from its masks.
"""

from __future__ import annotations

from radixrt.constrained.productions import Expr, Productions, Term
from radixrt.constrained.regex.multiples import is_widened, without_remainders


def widened(productions: Productions) -> Productions:
    """Return the productions with more texts in place of terminals with large automata; the same object where there are
    none."""
    wide = {regex: without_remainders(regex) for regex in productions.layout.terms if is_widened(regex)}
    if not wide:
        return productions

    def visit(expr: Expr) -> Expr:
        return Term(wide[expr.regex]) if isinstance(expr, Term) and expr.regex in wide else expr

    return productions.rewrite(visit)
