"""Productions compiled for the recognizer: each rule a small graph of nodes that read characters or call other rules.

The `distance` of a node is the number of characters on the shortest path to the end of the node's rule. A shortest
completion is found by adding distances and never by searching. Rules are compiled when they are first called. A
repetition with bounds is a node that counts, never a chain as long as its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from radixrt.constrained.productions import Alt, AnyOrder, Expr, Lit, Productions, Ref, Rep, Seq, Special, Term
from radixrt.constrained.productions.expressions import checked
from radixrt.constrained.productions.layout import MARKS, Layout
from radixrt.constrained.productions.tally import Tally
from radixrt.constrained.regex import EPSILON, Regex, literal, literals, repeat, shortest_length, shortest_string
from radixrt.errors import InvariantError

END: Final = 0
TEXT: Final = 1
REGULAR: Final = 2
SPECIAL: Final = 3
CALL: Final = 4
FORK: Final = 5
COUNT: Final = 6
ANY_ORDER: Final = 7

_MAX_NESTING: Final = 60
_MIN_WORDS: Final = 3
_MAX_NODES: Final = 1 << 32
_MAX_PART: Final = 1 << 12


class Node:
    """A position in a rule.

    Attributes:
        kind: END of the rule; reads a TEXT, a REGULAR language or a SPECIAL token; CALL of a rule; FORK to several
            nodes; COUNT of repetitions; parts in ANY_ORDER.
        distance: characters of a shortest path to the end of the rule; a control token counts as one.
        next: the node after reading, after the call, or after the repetitions.
        text: of TEXT and SPECIAL.
        regex: of REGULAR.
        targets: of FORK.
        best: of FORK: the target of least distance.
        low, high: of COUNT; low is 0 where the item may be empty.
        item_distance: of COUNT: characters of a shortest item.
        skips: of CALL: the rule may be empty.
        tally: of ANY_ORDER.
        bodies: of ANY_ORDER: the first node of each part, as the first of all parts and as a later part.
        lengths: of ANY_ORDER: characters of a shortest text of each part, likewise.
        make_body, known_body: of CALL and COUNT: compiles the rule or item, or holds the first node of it.
        serial: position in the grammar; the same in every process.
    """

    __slots__ = (
        "best",
        "bodies",
        "distance",
        "high",
        "item_distance",
        "kind",
        "known_body",
        "lengths",
        "low",
        "make_body",
        "next",
        "regex",
        "serial",
        "skips",
        "tally",
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
        self.tally: Tally | None = None
        self.bodies: tuple[list[Node], list[Node]] = ([], [])
        self.lengths: tuple[list[int], list[int]] = ([], [])
        self.known_body: Node | None = None
        self.make_body: Callable[[], Node] | None = None

    @property
    def body(self) -> Node:
        """The first node of the rule of a CALL, or of the item of a COUNT."""
        if self.known_body is None:
            assert self.make_body is not None
            self.known_body = self.make_body()
        return self.known_body

    def missing(self, count: int) -> list[tuple[Node, int]]:
        """Return the bodies of a shortest completion of a COUNT or of parts in ANY_ORDER, and how often each comes.

        Args:
            count: repetitions so far, or `started(state)` of the tally; 0 at the beginning.
        """
        if self.tally is None:
            return [(self.body, self.low - count)] if count < self.low else []
        firsts, laters = self.bodies
        if count:
            return [(laters[part], times) for part, times in self.tally.missing(count >> 1, self.lengths[1])]
        (first, times), *rest = self.tally.shortest(self.lengths[1])
        return [(firsts[first], 1), (laters[first], times - 1), *[(laters[part], often) for part, often in rest]]

    def missing_length(self, count: int) -> int:
        """Return the characters of `missing`, for a count above 0."""
        if self.tally is None:
            return max(self.low - count, 0) * self.item_distance
        return sum([self.lengths[1][part] * times for part, times in self.tally.missing(count >> 1, self.lengths[1])])


def started(state: int) -> int:
    """Return the count of a node of ANY_ORDER after its first part: the state of the tally, and never 0."""
    return state << 1 | 1


class Program:
    """The compiled rules of a grammar.

    Args:
        productions: validated and pruned.

    Attributes:
        marked: the names of marked rules by the nodes that read the first characters of their texts.
    """

    def __init__(self, productions: Productions) -> None:
        self._rules = productions.rules
        self._productions = productions
        self._lengths: Mapping[str, int] = productions.shortest
        self._entries: dict[str, Node] = {}
        self._parts: dict[int, tuple[Expr, Node]] = {}
        self._places = {rule: place for place, rule in enumerate(productions.rules)}
        self._names = list(productions.rules)
        self._serial = 0
        self.marked: dict[Node, str] = {}
        self.end = Node(END, None, 0)
        self.start = self.entry(productions.start)

    def entry(self, rule: str) -> Node:
        """Return the first node of a rule, compiled by the first call."""
        node = self._entries.get(rule)
        if node is None:
            self._serial = self._places[rule] * _MAX_NODES
            node = self._entries[rule] = self._compile(self._rules[rule], self.end, 0)
            if rule[-1:] in MARKS:
                self.marked.update(dict.fromkeys(node.targets or [node], rule))
        return node

    @property
    def _layout(self) -> Layout:
        """Made for deep grammars only."""
        return self._productions.layout

    @property
    def longest_rule(self) -> int:
        """Characters of the longest among the shortest texts of the rules."""
        return max(self._lengths.values())

    def rule_of(self, node: Node) -> str:
        """Return the name of the rule that a node belongs to."""
        return self._names[node.serial // _MAX_NODES]

    def _entry_of_part(self, expr: Expr, place: int) -> Node:
        """Return the first node of an expression that is compiled like a separate rule, because of deep nesting.

        Args:
            place: number of the rule that contains the expression.
        """
        known = self._parts.get(id(expr))
        if known is None:
            # Serials do not depend on what was compiled before.
            self._serial = place * _MAX_NODES + (self._layout.row(expr) + 1) * _MAX_PART
            known = self._parts[id(expr)] = (expr, self._compile(expr, self.end, 0))
        return known[1]

    def _compile(self, expr: Expr, next: Node, depth: int) -> Node:
        """Return the first node of an expression that continues at `next`."""
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
        # Deeply nested expressions become separate rules, because this method is recursive.
        if depth >= _MAX_NESTING:
            row, place = self._layout.row(expr), self._serial // _MAX_NODES
            return self._call(self._length(self._layout.lengths[row]), lambda: self._entry_of_part(expr, place), next)
        if isinstance(expr, Seq):
            for part in reversed(expr.parts):
                next = self._compile(part, next, depth + 1)
            return next
        if isinstance(expr, AnyOrder):
            return self._any_order(expr, next, depth)
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
        node = self._node(REGULAR, next, self._length(checked(shortest_length, regex)) + next.distance)
        node.regex = regex
        return node

    def _call(self, length: int, make_body: Callable[[], Node], next: Node) -> Node:
        node = self._node(CALL, next, length + next.distance)
        node.skips = length == 0
        node.make_body = make_body
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
        # Prefer nodes without a counter: a regular language, a loop, or a fork.
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
        # A nullable item makes any smaller number of repetitions possible, so the lower bound becomes 0.
        body = self._compile(expr.item, self.end, depth + 1)
        node = self._node(COUNT, next, 0)
        node.known_body = body
        node.low = low if body.distance else 0
        node.high = high
        node.item_distance = body.distance
        node.distance = low * body.distance + next.distance
        return node

    def _any_order(self, expr: AnyOrder, next: Node, depth: int) -> Node:
        firsts = [self._compile(part.first, self.end, depth + 1) for part in expr.parts]
        laters = [self._compile(part.later, self.end, depth + 1) for part in expr.parts]
        node = self._node(ANY_ORDER, next, 0)
        node.tally = Tally.of(expr)
        node.bodies = firsts, laters
        node.lengths = [one.distance for one in firsts], [one.distance for one in laters]
        node.distance = self._length(node.tally.shortest_length(*node.lengths)) + next.distance
        return node

    @staticmethod
    def _length(length: int | None) -> int:
        if length is None:
            raise InvariantError("productions that derive nothing must be pruned")
        return length


def _simple(expr: Expr) -> Regex | None:
    """Return the language of an expression that reads a single character, for repetitions without a counting node."""
    if isinstance(expr, Term) and not expr.regex.has_boolean and expr.regex.min_length == expr.regex.max_length == 1:
        return expr.regex
    return literal(expr.text) if isinstance(expr, Lit) and len(expr.text) == 1 else None


def _with_words_together(options: tuple[Expr, ...]) -> list[Expr]:
    """Return the options. If there are many literals, they are joined into a single terminal."""
    words = [option.text for option in options if isinstance(option, Lit)]
    if len(words) < _MIN_WORDS:
        return list(options)
    return [Term(literals(words)), *(option for option in options if not isinstance(option, Lit))]


# --- shortest texts ---


Pieces = tuple[str | Special, ...]


class Spelling:
    """The shortest texts of a program's rules and of regular languages."""

    def __init__(self) -> None:
        self._shortest: dict[Regex, str] = {}
        self._texts: dict[Node, Pieces] = {}

    def forget(self) -> None:
        """Drop the texts of languages, which are as many as there were states."""
        self._shortest.clear()

    def shortest_text(self, regex: Regex) -> str:
        """Return a shortest text of a nonempty language."""
        text = self._shortest.get(regex)
        if text is None:
            found = checked(shortest_string, regex)
            if found is None:
                raise InvariantError("an empty language among the configurations")
            text = self._shortest[regex] = found
        return text

    def text_of(self, body: Node) -> Pieces:
        """Return the shortest text of a rule or item, given its first node."""
        # Texts of called rules first, with an explicit stack, because calls may nest deeper than Python's stack.
        unfinished = [body]
        while unfinished:
            missing = [] if unfinished[-1] in self._texts else self._called(unfinished[-1])
            if missing:
                unfinished.extend(missing)
                continue
            node = unfinished.pop()
            if node not in self._texts:
                pieces: list[str | Special] = []
                self.spell(node, pieces)
                self._texts[node] = joined(pieces)
        return self._texts[body]

    def _called(self, node: Node) -> list[Node]:
        """Return the rules and items on the shortest path from the node whose shortest texts are not known yet."""
        missing = []
        while node.kind != END:
            if node.kind == CALL and node.next.kind == END:
                node = node.body
                continue
            if node.kind in (CALL, COUNT) and node.distance > node.next.distance and node.body not in self._texts:
                missing.append(node.body)
            elif node.kind == ANY_ORDER:
                missing.extend([body for body, _ in node.missing(0) if body not in self._texts])
            node = node.best if node.kind == FORK else node.next
        return missing

    def spell(self, node: Node, pieces: list[str | Special]) -> None:
        """Append the shortest text from the node to the end of its rule."""
        while node.kind != END:
            if node.kind == CALL and node.next.kind == END:
                if node.skips:
                    return
                node = node.body
                continue
            if node.kind == TEXT:
                pieces.append(node.text)
            elif node.kind == REGULAR:
                pieces.append(self.shortest_text(node.regex))
            elif node.kind == SPECIAL:
                pieces.append(Special(node.text))
            elif node.kind == CALL:
                if not node.skips:
                    pieces.extend(self._texts.get(node.body) or self.text_of(node.body))
            elif node.kind in (COUNT, ANY_ORDER):
                self.spell_missing(node, 0, pieces)
            node = node.best if node.kind == FORK else node.next

    def spell_missing(self, node: Node, count: int, pieces: list[str | Special]) -> None:
        """Append the shortest text from a count of a node to the end of its repetitions or parts."""
        for body, times in node.missing(count):
            pieces.extend((self._texts.get(body) or self.text_of(body)) * times)


def joined(pieces: list[str | Special]) -> Pieces:
    """Return the pieces with adjacent texts joined and empty texts dropped."""
    found: list[str | Special] = []
    run: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            run.append(piece)
            continue
        if any(run):
            found.append("".join(run))
        run = []
        found.append(piece)
    if any(run):
        found.append("".join(run))
    return tuple(found)
