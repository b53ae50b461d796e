"""`Layout`: a grammar laid out once as rows, which every question about the whole of it goes over.

Compiling asks a grammar half a dozen things (what derives nothing, what is shortest, what may follow a terminal, how it
is written down), and walking the expressions for each of them would take longer than the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from radixrt.constrained.productions.expressions import (
    Alt,
    Expr,
    Lit,
    Ref,
    Rep,
    Seq,
    Term,
    checked,
    children,
    postorder,
)

LEAF: Final = 0
CALL: Final = 1
ALL: Final = 2
ANY: Final = 3
AGAIN: Final = 4

_KINDS: Final = {Ref: CALL, Seq: ALL, Alt: ANY, Rep: AGAIN}


class Layout:
    """Every expression once (by identity), children before their parents; called rules mostly before their callers.

    Args:
        rules: the rules by name. They are kept alive, because rows are found by identity.

    Attributes:
        order: the expressions.
        kinds: LEAF (literal, term or control token), CALL of a rule, ALL of a sequence, ANY of a choice, AGAIN.
        below: the rows directly under each row; of a CALL none.
        bodies: the row of each rule's body.
    """

    def __init__(self, rules: Mapping[str, Expr]) -> None:
        self.order = postorder(reversed(list(rules.values())))
        place = self._place = {id(expr): row for row, expr in enumerate(self.order)}
        self.kinds = [_KINDS.get(type(expr), LEAF) for expr in self.order]
        self.below = [
            tuple([place[id(child)] for child in children(expr)]) if kind > CALL else ()
            for expr, kind in zip(self.order, self.kinds)
        ]
        self.bodies = {rule: place[id(body)] for rule, body in rules.items()}

    def row(self, expr: Expr) -> int:
        """The row of an expression of this grammar."""
        return self._place[id(expr)]

    @cached_property
    def called(self) -> list[int]:
        """Of each row that is a CALL the row of the rule's body; -1 for other rows and for rules that are missing."""
        bodies = self.bodies
        return [bodies.get(expr.rule, -1) if isinstance(expr, Ref) else -1 for expr in self.order]

    @cached_property
    def lengths(self) -> list[int | None]:
        """Characters of each row's shortest text, a control token counting as one; None where it derives nothing.

        Raises:
            GrammarTooComplex: it is not known in time whether a terminal has a text.
        """
        values: list[int | None] = []
        for row, kind in enumerate(self.kinds):
            values.append(leaf_length(self.order[row]) if kind == LEAF else self._length(row, kind, values))
        stale = deque(row for row, body in enumerate(self.called) if body >= 0 and values[row] != values[body])
        if not stale:
            return values
        # Calls of rules that come later, or of themselves: their callers are worked out again until nothing changes.
        users = self._users()
        while stale:
            row = stale.popleft()
            length = self._length(row, self.kinds[row], values)
            before = values[row]
            if length is not None and (before is None or length < before):
                values[row] = length
                stale.extend(users[row])
        return values

    def _users(self) -> list[list[int]]:
        """The rows directly above each row; of a rule's body its calls as well."""
        users: list[list[int]] = [[] for _ in self.order]
        for row, (below, body) in enumerate(zip(self.below, self.called)):
            for one in below:
                users[one].append(row)
            if body >= 0:
                users[body].append(row)
        return users

    def _length(self, row: int, kind: int, values: list[int | None]) -> int | None:
        if kind == CALL:
            body = self.called[row]
            return values[body] if 0 <= body < len(values) else None
        return length_above(self.order[row], [values[one] for one in self.below[row]])


def length_above(expr: Expr, below: Sequence[int | None]) -> int | None:
    """Characters of the shortest text of a sequence, choice or repetition, given those of what is directly under it."""
    if isinstance(expr, Seq):
        total = 0
        for length in below:
            if length is None:
                return None
            total += length
        return total
    if isinstance(expr, Rep):
        return 0 if expr.low == 0 else None if below[0] is None else below[0] * expr.low
    return min([length for length in below if length is not None], default=None)


def leaf_length(expr: Expr) -> int | None:
    """The same of a literal, a term or a control token, which counts as one."""
    if isinstance(expr, Lit):
        return len(expr.text)
    return checked(expr.regex.shortest_length) if isinstance(expr, Term) else 1
