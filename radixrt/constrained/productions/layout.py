"""A grammar's expressions as numbered rows, which passes over the whole grammar walk as lists of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Final

from radixrt.constrained.productions.expressions import (
    TERMINALS,
    Alt,
    AnyOrder,
    Expr,
    Lit,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    checked,
    children,
    postorder,
)
from radixrt.constrained.productions.tally import Tally
from radixrt.constrained.regex import Regex, shortest_length

LEAF: Final = 0
CALL: Final = 1
ALL: Final = 2
ANY: Final = 3
AGAIN: Final = 4
MIXED: Final = 5
MARKS: Final = frozenset("!?")
"""Last characters of the names of marked rules. The recognizer tells where a text of a marked rule begins, so calls of
a marked rule are kept apart from calls of another rule with the same body."""


class Layout:
    """The distinct expressions of a grammar in rows: children before their parents, and rules before their callers.

    Equal expressions share a row. Where rules call one another, some call comes before the body of the rule. Rules with
    the same body are treated as the first of them, except for marked rules.

    Args:
        rules: the rules by name. They are kept alive, because rows are found by identity.

    Attributes:
        order: the expressions.
        kinds: LEAF (literal, term or control token), CALL of a rule, ALL of a sequence, ANY of a choice, AGAIN of a
            repetition, MIXED of parts in any order.
        below: the rows directly under each row; of a CALL none; of MIXED the first and the later form of each part.
        bodies: the row of each rule's body.
        terminals: the rows of literals and terms with their texts and languages, without the empty text.
        calls: the rows that are a CALL, with the names of their rules.
        specials: the texts of control tokens.
    """

    def __init__(self, rules: Mapping[str, Expr]) -> None:
        self.order: list[Expr] = []
        self.kinds: list[int] = []
        self.below: list[tuple[int, ...]] = []
        self.terminals: list[tuple[int, str | Regex]] = []
        self.calls: list[tuple[int, str]] = []
        self.specials: list[str] = []
        index = self._index = dict[int, int]()
        known: dict[object, int] = {}
        for expr in _callees_first(rules):
            # Children come first, so an expression is identified by its kind and the rows of its children. Comparing
            # expressions as trees would take quadratic time in a deep grammar.
            kind = LEAF
            below: tuple[int, ...] = ()
            key: object = expr
            if type(expr) is Lit:
                key = expr.text
            elif type(expr) is Seq:
                kind, below = ALL, tuple([index[id(part)] for part in expr.parts])
                key = (kind, below)
            elif type(expr) is Alt:
                kind, below = ANY, tuple([index[id(option)] for option in expr.options])
                key = (kind, below)
            elif type(expr) is Rep:
                kind, below = AGAIN, (index[id(expr.item)],)
                key = (kind, below, expr.low, expr.high)
            elif type(expr) is AnyOrder:
                kind, below = MIXED, tuple([index[id(one)] for one in children(expr)])
                bounds = tuple([(part.low, part.high) for part in expr.parts])
                key = (kind, below, bounds, expr.low, expr.high)
            elif type(expr) is Term:
                key = expr.regex
            elif type(expr) is Ref:
                # A call shares the row of an earlier call. The first call has its own row, unless the body is known
                # already.
                kind, key = CALL, (CALL, expr.rule)
                if key not in known and expr.rule[-1:] not in MARKS:
                    key = index.get(id(rules.get(expr.rule)), key)
            row = known.setdefault(key, len(self.order))
            if row == len(self.order):
                self.order.append(expr)
                self.kinds.append(kind)
                self.below.append(below)
                if type(expr) is Lit:
                    if expr.text:
                        self.terminals.append((row, expr.text))
                elif type(expr) is Term:
                    self.terminals.append((row, expr.regex))
                elif type(expr) is Ref:
                    self.calls.append((row, expr.rule))
                elif type(expr) is Special:
                    self.specials.append(expr.text)
            index[id(expr)] = row
        self.bodies = {rule: index[id(body)] for rule, body in rules.items()}
        self._distinct: dict[str, dict[str, int]] = {}

    def distinct(self, start: str) -> dict[str, int]:
        """Return the row of each rule's body. Rules that nobody calls are excluded if a called rule has the same body,
        except for `start`."""
        found = self._distinct.get(start)
        if found is None:
            names = {start, *[rule for _, rule in self.calls]}
            called = {row for rule, row in self.bodies.items() if rule in names}
            rules = self.bodies.items()
            found = self._distinct[start] = {rule: row for rule, row in rules if rule in names or row not in called}
        return found

    @property
    def terms(self) -> list[Regex]:
        """The languages of terms, in the order of their rows."""
        return [one for _, one in self.terminals if isinstance(one, Regex)]

    def row(self, expr: Expr) -> int:
        """The row of an expression of this grammar."""
        return self._index[id(expr)]

    @cached_property
    def called(self) -> list[int]:
        """The row of the called rule's body for each row that is a CALL; -1 for other rows and for missing rules."""
        found = [-1] * len(self.order)
        for row, rule in self.calls:
            found[row] = self.bodies.get(rule, -1)
        return found

    @cached_property
    def lengths(self) -> list[int | None]:
        """Characters of each row's shortest text, a control token counting as one; None where it derives nothing.

        Raises:
            GrammarTooComplex: it is not known in time whether a terminal has a text.
        """
        # A single pass suffices for a grammar without recursion, because children and callees come first.
        values: list[int | None] = []
        called = self.called
        for row, (expr, kind, below) in enumerate(zip(self.order, self.kinds, self.below)):
            length: int | None
            if kind == LEAF:
                length = len(expr.text) if type(expr) is Lit else leaf_length(expr)
            elif kind == CALL:
                length = values[called[row]] if 0 <= called[row] < row else None
            elif kind == ALL:
                length = 0
                for one in below:
                    part = values[one]
                    if part is None:
                        length = None
                        break
                    length += part
            elif kind == ANY:
                length = min([part for one in below if (part := values[one]) is not None], default=None)
            else:
                length = length_above(expr, [values[one] for one in below])
            values.append(length)
        # Recursive calls come before the rule's body. Where the length of the body differs from the assumed length,
        # update the rows above, lowest first, until nothing changes.
        stale = [row for row, _ in self.calls if called[row] >= 0 and values[row] != values[called[row]]]
        heapify(stale)
        waiting = set(stale)
        while stale:
            row = heappop(stale)
            waiting.discard(row)
            length = self._length(row, self.kinds[row], values)
            before = values[row]
            if length is not None and (before is None or length < before):
                values[row] = length
                for user in self.users[row]:
                    if user not in waiting:
                        waiting.add(user)
                        heappush(stale, user)
        return values

    @cached_property
    def users(self) -> list[list[int]]:
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


def _callees_first(rules: Mapping[str, Expr]) -> list[Expr]:
    """Return the rows of a `Layout`. A recursive call comes before the body of the called rule."""
    order: list[Expr] = []
    seen: set[int] = set()
    unfinished: set[int] = set()
    stack: list[Expr | None] = []
    for root in rules.values():
        stack.append(root)
        while stack:
            expr = stack.pop()
            if expr is None:  # marks that everything under the next expression on the stack is in the order
                done = stack.pop()
                assert done is not None
                if id(done) in unfinished:
                    unfinished.discard(id(done))
                    order.append(done)
            elif id(expr) not in seen:
                seen.add(id(expr))
                below = children(expr)
                if type(expr) is Ref:
                    body = rules.get(expr.rule)
                    below = () if body is None or id(body) in seen else (body,)
                if below:
                    unfinished.add(id(expr))
                    stack += (expr, None)
                    for part in reversed(below):
                        if type(part) not in TERMINALS:
                            stack.append(part)
                        elif id(part) not in seen:
                            seen.add(id(part))
                            order.append(part)
                else:
                    order.append(expr)
            elif id(expr) in unfinished:
                if type(expr) is not Ref:  # two rules that call each other share it
                    return postorder(reversed(list(rules.values())))
                unfinished.discard(id(expr))
                order.append(expr)
    return order


def length_above(expr: Expr, below: Sequence[int | None]) -> int | None:
    """Return the length of the shortest text of an expression with children, given the lengths of the children."""
    if isinstance(expr, Seq):
        total = 0
        for length in below:
            if length is None:
                return None
            total += length
        return total
    if isinstance(expr, Rep):
        return 0 if expr.low == 0 else None if below[0] is None else below[0] * expr.low
    if isinstance(expr, AnyOrder):
        return Tally.of(expr).shortest_length(below[::2], below[1::2])
    return min([length for length in below if length is not None], default=None)


def leaf_length(expr: Expr) -> int | None:
    """Characters of the shortest text of a literal, a term or a control token, which counts as one."""
    if isinstance(expr, Lit):
        return len(expr.text)
    return checked(shortest_length, expr.regex) if isinstance(expr, Term) else 1
