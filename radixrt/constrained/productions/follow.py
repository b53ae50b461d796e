"""Which characters a terminal can be followed by, anywhere in a grammar.

Sets of characters are bits of an integer: what a bit stands for is the caller's choice. The grammar is laid out once as
rows, children before their parents, over which the sets are passed up and down until nothing changes; that is a
millisecond for a large schema, which matters because every grammar for llguidance goes through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from radixrt.constrained.productions.core import Productions
from radixrt.constrained.productions.expressions import Alt, Lit, Ref, Rep, Seq, Term, children, postorder
from radixrt.constrained.regex import Regex

Terminal = str | Regex

_LEAF: Final = 0
_CALL: Final = 1
_ALL: Final = 2
_ANY: Final = 3
_AGAIN: Final = 4


def terminals_of(productions: Productions) -> list[Terminal]:
    """The texts of literals and the languages of terms, without the empty text, in the order of the grammar."""
    found: dict[Terminal, None] = {}
    for expr in postorder(productions.rules.values()):
        if isinstance(expr, Lit):
            found[expr.text] = None
        elif isinstance(expr, Term):
            found[expr.regex] = None
    found.pop("", None)
    return list(found)


def followers(productions: Productions, begins: Mapping[Terminal, int]) -> dict[Terminal, int]:
    """The bits that may follow each terminal, given those that each begins with."""
    layout = _Layout(productions)
    firsts = layout.pass_up(begins)
    after = layout.pass_down(firsts)
    found: dict[Terminal, int] = dict.fromkeys(begins, 0)
    for terminal, row in layout.terminals:
        found[terminal] |= after[row]
    return found


class _Layout:
    """A grammar as rows.

    Attributes:
        terminals: each terminal with its row; several rows may have the same one.
    """

    def __init__(self, productions: Productions) -> None:
        shortest = productions.shortest
        order = postorder(productions.rules.values())
        place = {id(expr): row for row, expr in enumerate(order)}
        bodies = {rule: place[id(body)] for rule, body in productions.rules.items()}
        self.terminals: list[tuple[Terminal, int]] = []
        self._rows: list[tuple[int, tuple[int, ...]]] = []
        self._empty: list[bool] = []
        for row, expr in enumerate(order):
            below = tuple([place[id(child)] for child in children(expr)])
            kind, empty = _LEAF, False
            if isinstance(expr, Lit):
                empty = not expr.text
                if expr.text:
                    self.terminals.append((expr.text, row))
            elif isinstance(expr, Term):
                empty = expr.regex.nullable
                self.terminals.append((expr.regex, row))
            elif isinstance(expr, Ref):
                kind, empty, below = _CALL, shortest.get(expr.rule) == 0, (bodies[expr.rule],)
            elif isinstance(expr, Seq):
                kind, empty = _ALL, all(self._empty[one] for one in below)
            elif isinstance(expr, Alt):
                kind, empty = _ANY, any(self._empty[one] for one in below)
            elif isinstance(expr, Rep):
                kind = _AGAIN if expr.high is None or expr.high > 1 else _ANY
                empty = expr.low == 0 or self._empty[below[0]]
            self._rows.append((kind, below))
            self._empty.append(empty)

    def pass_up(self, begins: Mapping[Terminal, int]) -> list[int]:
        """For each row the bits that it may begin with."""
        firsts = [0] * len(self._rows)
        for terminal, row in self.terminals:
            firsts[row] = begins[terminal]
        inner = [(row, kind, below) for row, (kind, below) in enumerate(self._rows) if kind != _LEAF]
        empty = self._empty
        changed = True
        while changed:
            changed = False
            for row, kind, below in inner:
                bits = 0
                for one in below:
                    bits |= firsts[one]
                    if kind == _ALL and not empty[one]:
                        break
                if bits != firsts[row]:
                    firsts[row] = bits
                    changed = True
        return firsts

    def pass_down(self, firsts: list[int]) -> list[int]:
        """For each row the bits that may follow it."""
        after = [0] * len(self._rows)
        inner = [(row, kind, below) for row, (kind, below) in enumerate(self._rows) if kind != _LEAF][::-1]
        empty = self._empty
        changed = True
        while changed:
            changed = False
            for row, kind, below in inner:
                follow = after[row]
                if kind == _ALL:
                    for one in reversed(below):
                        after[one] |= follow
                        follow = firsts[one] | follow if empty[one] else firsts[one]
                    continue
                if kind == _AGAIN:
                    follow |= firsts[below[0]]
                for one in below:
                    if follow & ~after[one]:
                        after[one] |= follow
                        changed = changed or kind == _CALL
        return after
