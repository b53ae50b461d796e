"""Productions compiled for the recognizer: each rule a small graph of nodes that read characters or call other rules.

A node knows its `distance`, the characters of the shortest way from it to the end of its rule, so a shortest completion
is found by adding distances and never by searching. Rules are compiled when they are first called. A repetition with
bounds is a node that counts, never a chain as long as its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from radixrt.constrained.productions import (
    Alt,
    Expr,
    Lit,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
)
from radixrt.constrained.productions.expressions import checked
from radixrt.constrained.regex import EPSILON, Regex, literal, literals, repeat
from radixrt.errors import InvariantError

END: Final = 0
TEXT: Final = 1
REGULAR: Final = 2
SPECIAL: Final = 3
CALL: Final = 4
FORK: Final = 5
COUNT: Final = 6

_MAX_NESTING: Final = 60
_MIN_WORDS: Final = 3
_MAX_NODES: Final = 1 << 32


class Node:
    """A place in a rule.

    Attributes:
        kind: END of the rule; reads a TEXT, a REGULAR language or a SPECIAL token; CALL of a rule; FORK to several
            nodes; COUNT of repetitions.
        distance: characters of a shortest way from here to the end of the rule; a control token counts as one.
        next: where to go after reading, after the call, or after the repetitions.
        text: of TEXT and SPECIAL.
        regex: of REGULAR.
        targets: of FORK.
        best: of FORK: the target of least distance.
        low, high: of COUNT; low is 0 where the item may be empty.
        item_distance: of COUNT: characters of a shortest item.
        skips: of CALL: the rule may be empty.
        serial: place in the grammar; the same in every process.
    """

    __slots__ = (
        "_body",
        "_make_body",
        "best",
        "distance",
        "high",
        "item_distance",
        "kind",
        "low",
        "next",
        "regex",
        "serial",
        "skips",
        "targets",
        "text",
    )

    def __init__(self, kind: int, next: Node | None, distance: int) -> None:
        self.kind = kind
        self.next: Node = self if next is None else next
        self.distance = distance
        self.text = ""
        self.regex: Regex = EPSILON
        self.targets: list[Node] = []
        self.best: Node = self
        self.low = 0
        self.high: int | None = None
        self.item_distance = 0
        self.skips = False
        self.serial = 0
        self._body: Node | None = None
        self._make_body: Callable[[], Node] | None = None

    @property
    def body(self) -> Node:
        """Of CALL and COUNT: the first node of the rule or the item."""
        if self._body is None:
            assert self._make_body is not None
            self._body = self._make_body()
        return self._body


class Program:
    """The compiled rules of a grammar.

    Args:
        productions: validated and pruned.
    """

    def __init__(self, productions: Productions) -> None:
        self._rules = productions.rules
        self._layout = productions.layout
        self._lengths: Mapping[str, int] = productions.shortest
        self._entries: dict[str, Node] = {}
        self._parts: dict[int, tuple[Expr, Node]] = {}
        self._places = {rule: place for place, rule in enumerate(productions.rules)}
        self._serial = 0
        self.end = Node(END, None, 0)
        self.start = self.entry(productions.start)

    def entry(self, rule: str) -> Node:
        """The first node of a rule."""
        node = self._entries.get(rule)
        if node is None:
            self._serial = self._places[rule] * _MAX_NODES
            node = self._entries[rule] = self._compile(self._rules[rule], self.end, 0)
        return node

    def _entry_of_part(self, expr: Expr) -> Node:
        """The first node of an expression that is compiled like a rule of its own, because it lies deep in another."""
        known = self._parts.get(id(expr))
        if known is None:
            known = self._parts[id(expr)] = (expr, self._compile(expr, self.end, 0))
        return known[1]

    def _compile(self, expr: Expr, next: Node, depth: int) -> Node:
        """The first node of an expression that goes on at `next`."""
        if isinstance(expr, Lit):
            return self._text(expr.text, next)
        if isinstance(expr, Term):
            return self._regular(expr.regex, next)
        if isinstance(expr, Special):
            node = self._node(SPECIAL, next, 1 + next.distance)
            node.text = expr.text
            return node
        if isinstance(expr, Ref):
            rule = expr.rule
            return self._call(self._length(self._lengths.get(rule)), lambda: self.entry(rule), next)
        if depth >= _MAX_NESTING:
            length = self._length(self._layout.lengths[self._layout.row(expr)])
            return self._call(length, lambda: self._entry_of_part(expr), next)
        if isinstance(expr, Seq):
            for part in reversed(expr.parts):
                next = self._compile(part, next, depth + 1)
            return next
        if isinstance(expr, Alt):
            return self._fork(_with_words_together(expr.options), next, depth)
        return self._repeat(expr, next, depth)

    def _node(self, kind: int, next: Node, distance: int) -> Node:
        node = Node(kind, next, distance)
        self._serial += 1
        node.serial = self._serial
        return node

    def _text(self, text: str, next: Node) -> Node:
        if not text:
            return next
        if next.kind == TEXT and len(text) + len(next.text) <= 200:
            text, next = text + next.text, next.next
        node = self._node(TEXT, next, len(text) + next.distance)
        node.text = text
        return node

    def _regular(self, regex: Regex, next: Node) -> Node:
        if regex.text is not None:
            return self._text(regex.text, next)
        node = self._node(REGULAR, next, self._length(checked(regex.shortest_length)) + next.distance)
        node.regex = regex
        return node

    def _call(self, length: int, make_body: Callable[[], Node], next: Node) -> Node:
        node = self._node(CALL, next, length + next.distance)
        node.skips = length == 0
        node._make_body = make_body
        return node

    def _fork(self, options: list[Expr], next: Node, depth: int) -> Node:
        if len(options) == 1:
            return self._compile(options[0], next, depth + 1)
        if not options:
            raise InvariantError("productions that derive nothing must be pruned")
        node = self._node(FORK, next, 0)
        node.targets = [self._compile(option, next, depth + 1) for option in options]
        node.best = min(node.targets, key=lambda target: target.distance)
        node.distance = node.best.distance
        return node

    def _repeat(self, expr: Rep, next: Node, depth: int) -> Node:
        low, high = expr.low, expr.high
        if high == 0:
            return next
        if (low, high) == (1, 1):
            return self._compile(expr.item, next, depth + 1)
        regex = _simple(expr.item)
        if regex is not None:
            return self._regular(repeat(regex, low, high), next)
        if high is None and low <= 1:
            loop = self._node(FORK, next, next.distance)
            loop.best = next
            entry = self._compile(expr.item, loop, depth + 1)
            loop.targets = [entry, next]
            return entry if low == 1 else loop
        if (low, high) == (0, 1):
            node = self._node(FORK, next, next.distance)
            node.targets = [self._compile(expr.item, next, depth + 1), next]
            node.best = next
            return node
        body = self._compile(expr.item, self.end, depth + 1)
        node = self._node(COUNT, next, 0)
        node._body = body
        node.low = low if body.distance else 0
        node.high = high
        node.item_distance = body.distance
        node.distance = low * body.distance + next.distance
        return node

    @staticmethod
    def _length(length: int | None) -> int:
        if length is None:
            raise InvariantError("productions that derive nothing must be pruned")
        return length


def _simple(expr: Expr) -> Regex | None:
    """The language of an expression that reads one character, for repetitions that need no counting node."""
    if isinstance(expr, Term) and not expr.regex.has_boolean and expr.regex.min_length == expr.regex.max_length == 1:
        return expr.regex
    return literal(expr.text) if isinstance(expr, Lit) and len(expr.text) == 1 else None


def _with_words_together(options: tuple[Expr, ...]) -> list[Expr]:
    """The options, with literals joined into one terminal where there are several."""
    words = [option.text for option in options if isinstance(option, Lit)]
    if len(words) < _MIN_WORDS:
        return list(options)
    return [Term(literals(words)), *(option for option in options if not isinstance(option, Lit))]
