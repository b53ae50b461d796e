"""Which characters a terminal can be followed by, anywhere in a grammar.

Sets of characters are bits of an integer: what a bit stands for is the caller's choice. They are passed up and down the
rows of the grammar's `Layout` until nothing changes, which is mostly once: every grammar for llguidance goes through
here.
"""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.constrained.productions.core import Productions
from radixrt.constrained.productions.expressions import Lit, Rep, Term
from radixrt.constrained.productions.layout import AGAIN, ALL, ANY, CALL, LEAF, Layout
from radixrt.constrained.regex import Regex

Terminal = str | Regex


def terminals_of(productions: Productions) -> list[Terminal]:
    """The texts of literals and the languages of terms, without the empty text, in the order of the grammar's rows."""
    found: dict[Terminal, None] = {}
    for expr in productions.layout.order:
        if isinstance(expr, Lit):
            found[expr.text] = None
        elif isinstance(expr, Term):
            found[expr.regex] = None
    found.pop("", None)
    return list(found)


def followers(productions: Productions, begins: Mapping[Terminal, int]) -> dict[Terminal, int]:
    """The bits that may follow each terminal, given those that each begins with."""
    layout = productions.layout
    terminals: list[tuple[int, Terminal]] = []
    for row, expr in enumerate(layout.order):
        if isinstance(expr, Lit) and expr.text:
            terminals.append((row, expr.text))
        elif isinstance(expr, Term):
            terminals.append((row, expr.regex))
    firsts = [0] * len(layout.order)
    for row, terminal in terminals:
        firsts[row] = begins[terminal]
    empty = [length == 0 for length in layout.lengths]
    _pass_up(layout, empty, firsts)
    after = _pass_down(layout, empty, firsts)
    found: dict[Terminal, int] = dict.fromkeys(begins, 0)
    for row, terminal in terminals:
        found[terminal] |= after[row]
    return found


def _inner(layout: Layout) -> list[tuple[int, int, tuple[int, ...]]]:
    """Rows that are no leaves, with their kind and what is below them; below a call is the rule's body."""
    return [
        (row, kind, (layout.called[row],) if kind == CALL else layout.below[row])
        for row, kind in enumerate(layout.kinds)
        if kind != LEAF
    ]


def _pass_up(layout: Layout, empty: list[bool], firsts: list[int]) -> None:
    """Adds the bits that each inner row may begin with."""
    inner = _inner(layout)
    changed = True
    while changed:
        changed = False
        for row, kind, below in inner:
            bits = 0
            for one in below:
                bits |= firsts[one]
                if kind == ALL and not empty[one]:
                    break
            if bits != firsts[row]:
                firsts[row] = bits
                changed = True
        changed = changed and any(firsts[row] != firsts[below[0]] for row, kind, below in inner if kind == CALL)


def _pass_down(layout: Layout, empty: list[bool], firsts: list[int]) -> list[int]:
    """For each row the bits that may follow it."""
    after = [0] * len(layout.order)
    inner = [
        (row, ANY if kind == AGAIN and not _repeats(layout.order[row]) else kind, below)
        for row, kind, below in reversed(_inner(layout))
    ]
    changed = True
    while changed:
        changed = False
        for row, kind, below in inner:
            follow = after[row]
            if kind == ALL:
                for one in reversed(below):
                    after[one] |= follow
                    follow = firsts[one] | follow if empty[one] else firsts[one]
                continue
            if kind == AGAIN:
                follow |= firsts[below[0]]
            for one in below:
                if follow & ~after[one]:
                    after[one] |= follow
                    changed = changed or one > row  # a rule's body that was passed already
    return after


def _repeats(expr: object) -> bool:
    return isinstance(expr, Rep) and (expr.high is None or expr.high > 1)
