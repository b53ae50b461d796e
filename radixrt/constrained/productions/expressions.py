"""The expressions of which the rules of a grammar are made.

They are immutable trees that may share subtrees. Everything here walks them with an explicit stack, so that their
depth is bounded by memory and not by the interpreter's stack.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from radixrt.constrained.regex import Regex, RegexTooComplex
from radixrt.errors import RequestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lit:
    """Exactly this text, which may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Term:
    """Any text of a regular language.

    Attributes:
        mark: for free text with which the output may end, the text that ends the free text; None for any other
            terminal. Lost when the grammar is encoded.
    """

    regex: Regex
    mark: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """Any text of a rule."""

    rule: str


@dataclass(frozen=True, slots=True)
class Seq:
    """One text of each part, in order; of no parts, the empty text."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """A text of any of the options; of no options, nothing."""

    options: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Rep:
    """From `low` to `high` consecutive texts of `item`; without upper bound if `high` is None."""

    item: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Special:
    """A control token of the vocabulary, e.g. "<tool_call>": the token itself, never the characters of its text."""

    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an `AnyOrder`: neither expression has the empty text, and both derive something or neither does.

    Attributes:
        first: the part where no other part precedes it.
        later: the part after another part, separator included; longer than `first` by as much as in every other part.
        low, high: bounds on the occurrences; `high` None is unbounded.
    """

    first: Expr
    later: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class AnyOrder:
    """The parts in any order, each as often as its bounds say, and at least one in all.

    This is the only expression with a memory: what may follow depends on how often each part has occurred.

    Attributes:
        low, high: bounds on the occurrences of all parts together; `low` is at least 1, `high` None is unbounded.
    """

    parts: tuple[Part, ...]
    low: int
    high: int | None


Expr = Lit | Term | Ref | Seq | Alt | Rep | AnyOrder | Special

_LEAVES = frozenset((Lit, Term, Ref, Special))
TERMINALS = frozenset((Lit, Term, Special))

NOTHING: Expr = Alt(())
NO_TEXT: Expr = Seq(())


class GrammarTooComplex(RequestError):
    """A question about a grammar takes more steps than the answer is worth."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="grammar_too_complex")


def checked(question: Callable[[Regex], T], regex: Regex) -> T:
    """The answer of a regular language, as a request's error where there is none."""
    try:
        return question(regex)
    except RegexTooComplex as error:
        raise GrammarTooComplex(f"a pattern of the grammar is too complex: {error}") from None


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly under this one."""
    if type(expr) is Seq:
        return expr.parts
    if type(expr) is Alt:
        return expr.options
    if type(expr) is AnyOrder:
        return tuple([one for part in expr.parts for one in (part.first, part.later)])
    return (expr.item,) if type(expr) is Rep else ()


def with_children(expr: Expr, below: Sequence[Expr]) -> Expr:
    """The expression with other expressions directly under it; the same object where they are the same."""
    before = children(expr)
    if all(map(operator.is_, before, below)):
        return expr
    if isinstance(expr, Seq):
        return Seq(tuple(below))
    if isinstance(expr, Alt):
        return Alt(tuple(below))
    if isinstance(expr, AnyOrder):
        pairs = zip(expr.parts, below[::2], below[1::2], strict=True)
        parts = tuple([Part(first, later, part.low, part.high) for part, first, later in pairs])
        return AnyOrder(parts, expr.low, expr.high)
    return Rep(below[0], expr.low, expr.high) if isinstance(expr, Rep) else expr


def postorder(roots: Iterable[Expr]) -> list[Expr]:
    """Every expression under `roots` once (by identity), children before their parents."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[Expr | None] = []
    for root in roots:
        stack.append(root)
        while stack:
            expr = stack.pop()
            if expr is None:  # marks that all children of the next expression on the stack are in the order
                done = stack.pop()
                assert done is not None
                order.append(done)
                continue
            if id(expr) in seen:
                continue
            seen.add(id(expr))
            if type(expr) in _LEAVES:
                order.append(expr)
                continue
            below = children(expr)
            if below:
                stack += (expr, None)
                stack += below[::-1]
            else:
                order.append(expr)
    return order


def fold(roots: Iterable[Expr], visit: Callable[[Expr, list[T]], T]) -> dict[int, T]:
    """`visit(expr, values of its children)` for everything under `roots`, bottom up; values by `id(expr)`."""
    values: dict[int, T] = {}
    for expr in postorder(roots):
        values[id(expr)] = visit(expr, [values[id(child)] for child in children(expr)])
    return values


def seq(*parts: Expr) -> Expr:
    """A sequence, flattened one level, empty literals dropped; `NOTHING` if a part is `NOTHING`."""
    flat: list[Expr] = []
    for part in parts:
        if isinstance(part, Seq):
            flat.extend(part.parts)
        elif isinstance(part, Alt) and not part.options:
            return NOTHING
        elif not (isinstance(part, Lit) and not part.text):
            flat.append(part)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*options: Expr) -> Expr:
    """A choice, flattened one level, `NOTHING` of no options; the same object or an equal leaf is taken once."""
    flat: list[Expr] = []
    seen: set[object] = set()
    for option in options:
        for one in option.options if isinstance(option, Alt) else (option,):
            key: object = one if type(one) in _LEAVES else id(one)
            if key not in seen:
                seen.add(key)
                flat.append(one)
    if not flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else Alt(tuple(flat))


def optional(expr: Expr) -> Expr:
    """`expr` or nothing."""
    return Rep(expr, 0, 1)
