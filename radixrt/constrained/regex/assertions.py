"""Patterns as trees, and the resolution of `^`, `$` and lookaheads in them.

A pattern is parsed into a tree in which everything without an assertion is a `Regex` already. `resolution` turns the
tree into the language of the texts in which the pattern is found. Two facts make that exact where there are no
lookbehinds. Whether an anchor holds depends
on its position in the text alone, so each part of a pattern is asked for the texts that it takes when it begins at the
start of the text or not, and ends at the end or not. A lookahead is an intersection with the rest of the text, so a
part with a lookahead is translated together with the language of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

from radixrt.constrained.regex.algebra import alternate, concat, nonempty, repeat
from radixrt.constrained.regex.boolean import complement, intersect
from radixrt.constrained.regex.interning import ANY, ANY_CHAR
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Chars, Regex

UNROLLED: Final = 16
_MAX_STEPS: Final = 300
_MAX_LOOK_DEPTH: Final = 40
SOMETHING: Final = repeat(ANY_CHAR, 1)


class RegexError(ValueError):
    """The pattern is malformed, or does not describe a regular language.

    Attributes:
        message: the problem, and how to fix the pattern.
        position: index of the character in the pattern where it is wrong.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position} of the pattern)")
        self.message = message
        self.position = position


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """`^`: the beginning of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """`$`: the end of the text; with `newline` also the place before a line break that ends it, as in Python's re."""

    newline: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A lookahead: the rest of the text begins (or, if negative, does not begin) with the item."""

    item: Tree
    negative: bool
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """A lookbehind: the text before this place ends (or, if negative, does not end) with the item."""

    item: Tree
    negative: bool
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    item: Tree
    low: int
    high: int | None
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A group that may be referred to; see `references`."""

    item: Tree
    number: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The text that a group has matched; `spelled` returns the pattern of a text, for the flags at this place."""

    number: int
    position: int
    spelled: Callable[[str], Regex]


Tree: TypeAlias = "Regex | Start | End | Look | Behind | Sequence | Choice | Loop | Group | Reference"


def sequence(parts: list[Tree]) -> Tree:
    """Return the concatenation of the parts, where adjacent parts without assertions are joined into a Regex."""
    joined: list[Tree] = []
    plain: list[Regex] = []
    for part in parts:
        if isinstance(part, Regex):
            plain.append(part)
            continue
        if plain:
            joined.append(concat(*plain))
            plain = []
        joined.append(part)
    if plain or not joined:
        joined.append(concat(*plain))
    return joined[0] if len(joined) == 1 else Sequence(tuple(joined))


def choice(options: list[Tree]) -> Tree:
    """Return the alternation of the options, where all options without assertions are joined into a Regex."""
    plain = [option for option in options if isinstance(option, Regex)]
    others: list[Tree] = [option for option in options if not isinstance(option, Regex)]
    if not others:
        return alternate(*plain)
    if plain:
        others.append(alternate(*plain))
    return others[0] if len(others) == 1 else Choice(tuple(others))


def children(tree: Tree) -> tuple[Tree, ...]:
    """The parts of a tree."""
    if isinstance(tree, Sequence):
        return tree.parts
    if isinstance(tree, Choice):
        return tree.options
    return (tree.item,) if isinstance(tree, Loop | Look | Behind | Group) else ()


def inside_out(tree: Tree) -> list[Tree]:
    """The tree and all trees inside it that are not a Regex, parts before wholes."""
    found: list[Tree] = []
    pending = [tree]
    while pending:
        part = pending.pop()
        if not isinstance(part, Regex):
            found.append(part)
            pending.extend(children(part))
    return found[::-1]


# --- anchors and lookaheads ---


class _Parts:
    """Languages of the parts of a tree without lookaheads, computed bottom up."""

    def __init__(self, order: list[Tree]) -> None:
        self._nothing: dict[tuple[Tree, bool, bool], bool] = {}
        self._languages: dict[tuple[Tree, bool, bool], Regex] = {}
        for tree in order:
            for at_start, at_end in product((False, True), repeat=2):
                self._nothing[tree, at_start, at_end] = self._find_nothing(tree, at_start, at_end)
                self._languages[tree, at_start, at_end] = self._find_language(tree, at_start, at_end)

    def take_nothing(self, tree: Tree, at_start: bool, at_end: bool) -> bool:
        """Return True if the tree takes the empty text where the text starts (or does not) and ends (or does not)."""
        return tree.nullable if isinstance(tree, Regex) else self._nothing[tree, at_start, at_end]

    def language(self, tree: Tree, from_start: bool, to_end: bool) -> Regex:
        """The texts that the tree takes where it begins at the start of the text or not, and ends at its end or not."""
        return tree if isinstance(tree, Regex) else self._languages[tree, from_start, to_end]

    def _find_nothing(self, tree: Tree, at_start: bool, at_end: bool) -> bool:
        if isinstance(tree, Start):
            return at_start
        if isinstance(tree, End):
            return at_end
        if isinstance(tree, Loop):
            return tree.low == 0 or self.take_nothing(tree.item, at_start, at_end)
        taken = [self.take_nothing(part, at_start, at_end) for part in children(tree)]
        return any(taken) if isinstance(tree, Choice) else all(taken)

    def _find_language(self, tree: Tree, from_start: bool, to_end: bool) -> Regex:
        if isinstance(tree, Start | End):
            return EPSILON if self._nothing[tree, from_start, to_end] else EMPTY
        if isinstance(tree, Choice):
            return alternate(*[self.language(option, from_start, to_end) for option in tree.options])
        if isinstance(tree, Loop):
            return self._loop(tree, from_start, to_end)
        assert isinstance(tree, Sequence)
        return self._sequence(tree.parts, from_start, to_end)

    def _sequence(self, parts: tuple[Tree, ...], from_start: bool, to_end: bool) -> Regex:
        """Goes from the last part to the first with the language of the rest: from the start of the text, and later."""
        at_start = later = EPSILON
        nothing_at_start = nothing_later = True
        for part in reversed(parts):
            started = [concat(self.language(part, from_start, False), later)]
            if self.take_nothing(part, from_start, False):
                started.append(at_start)
            if nothing_later:
                started.append(self.language(part, from_start, to_end))
            nothing_at_start = nothing_at_start and self.take_nothing(part, from_start, to_end)
            if nothing_at_start:
                started.append(EPSILON)
            behind = [concat(self.language(part, False, False), later)]
            if nothing_later:
                behind.append(self.language(part, False, to_end))
            nothing_later = nothing_later and self.take_nothing(part, False, to_end)
            at_start, later = alternate(*started), alternate(*behind)
        return at_start

    def _loop(self, tree: Loop, from_start: bool, to_end: bool) -> Regex:
        """Nothing, one round, or a first, inner ones and a last; rounds that take nothing only fill up the count."""
        item, low, high = tree.item, tree.low, tree.high
        if low and (self.take_nothing(item, from_start, False) or self.take_nothing(item, False, to_end)):
            low = 1
        options = [EPSILON if self._nothing[tree, from_start, to_end] else EMPTY]
        if low <= 1 and high != 0:
            options.append(self.language(item, from_start, to_end))
        if high is None or high >= 2:
            inner = repeat(self.language(item, False, False), max(low - 2, 0), None if high is None else high - 2)
            first, last = self.language(item, from_start, False), self.language(item, False, to_end)
            options.append(concat(first, inner, last))
        return alternate(*options)


class Followed:
    """The language of the rest of the text from the start of each part of the tree, for trees with lookaheads."""

    def __init__(self, tree: Tree) -> None:
        self._look_depth: dict[Tree, int] = {}
        plain: list[Tree] = []
        for part in inside_out(tree):
            depth = max((self._look_depth.get(inner, 0) for inner in children(part)), default=0)
            if depth or isinstance(part, Look):
                self._look_depth[part] = depth + 1
            else:
                plain.append(part)
            if isinstance(part, Look) and depth > _MAX_LOOK_DEPTH:
                raise RegexError("a lookahead is nested too deep", part.position)
        self._parts = _Parts(plain)
        self._steps = 0

    def by(self, tree: Tree, at_start: Regex, later: Regex) -> tuple[Regex, Regex]:
        """The language of the rest of the text, for a tree that begins at the start of the text and one that does not.

        The tree is followed by `at_start` if the position behind it is still the start of the text, else by `later`.
        """
        if tree not in self._look_depth:
            return self._plainly(tree, at_start, later)
        if isinstance(tree, Sequence):
            for part in reversed(tree.parts):
                at_start, later = self.by(part, at_start, later)
            return at_start, later
        if isinstance(tree, Choice):
            pairs = [self.by(option, at_start, later) for option in tree.options]
            return alternate(*[pair[0] for pair in pairs]), alternate(*[pair[1] for pair in pairs])
        if isinstance(tree, Look):
            return self._look(tree, at_start, later)
        assert isinstance(tree, Loop)
        return self._loop(tree, at_start, later)

    def _plainly(self, tree: Tree, at_start: Regex, later: Regex) -> tuple[Regex, Regex]:
        """Same as `by`, for a tree without lookaheads.

        At the start, the language of the rest may be smaller than later, so taking nothing at the start is a separate
        case.
        """
        parts = self._parts
        behind = _before(parts.language(tree, False, False), parts.language(tree, False, True), later)
        inner, ending = parts.language(tree, True, False), parts.language(tree, True, True)
        if at_start is later:
            return _before(inner, ending, later), behind
        options = [_before(nonempty(inner), nonempty(ending), later)]
        if parts.take_nothing(tree, True, False):
            options.append(at_start)
        elif at_start.nullable and parts.take_nothing(tree, True, True):
            options.append(EPSILON)
        return alternate(*options), behind

    def _look(self, tree: Look, at_start: Regex, later: Regex) -> tuple[Regex, Regex]:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RegexError("there are too many lookaheads", tree.position)
        ahead, ahead_later = self.by(tree.item, ANY, ANY)
        if tree.negative:
            ahead, ahead_later = complement(ahead), complement(ahead_later)
        return intersect(at_start, ahead), intersect(later, ahead_later)

    def _loop(self, tree: Loop, at_start: Regex, later: Regex) -> tuple[Regex, Regex]:
        if tree.high is None or tree.high > UNROLLED:
            tempered = self._tempered(tree, at_start, later)
            if tempered is None:
                raise RegexError("a lookahead inside a repetition is not supported", tree.position)
            return tempered, tempered
        rounds = [(at_start, later)]
        for _ in range(tree.high):
            rounds.append(self.by(tree.item, *rounds[-1]))
        chosen = rounds[tree.low :]
        return alternate(*[pair[0] for pair in chosen]), alternate(*[pair[1] for pair in chosen])

    def _tempered(self, tree: Loop, at_start: Regex, later: Regex) -> Regex | None:
        """`((?!X).)*` up to the end of the text: characters of that class, and X begins at none of them."""
        match tree.item:
            case Sequence(parts=(Look(negative=True) as look, Chars() as item)) if at_start is later is EPSILON:
                ahead, ahead_later = self.by(look.item, ANY, ANY)
                if ahead is ahead_later:
                    somewhere = concat(ANY, intersect(ahead, SOMETHING))
                    return intersect(repeat(item, tree.low, tree.high), complement(somewhere))
        return None


def _before(inner: Regex, ending: Regex, rest: Regex) -> Regex:
    """Inner with the rest behind it, or ending with nothing behind it if the rest may be nothing."""
    made = concat(inner, rest)
    return alternate(made, ending) if rest.nullable and ending is not inner else made
