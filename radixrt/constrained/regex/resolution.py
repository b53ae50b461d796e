"""`resolve`: from the tree of a pattern to the language of the texts in which the pattern is found.

A tree with anchors and lookaheads alone is resolved by `assertions`. Whether a lookbehind holds depends on the text
before it, that is, on the state of an automaton that has read this text: for `\\b` there are three states, the start, a
word and no word. The language of the rest of the text is therefore computed for each state (`_InContexts`).
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from functools import reduce
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, literals, optional
from radixrt.constrained.regex.assertions import (
    SOMETHING,
    UNROLLED,
    Behind,
    Choice,
    End,
    Followed,
    Look,
    Loop,
    RegexError,
    Sequence,
    Start,
    Tree,
    choice,
    inside_out,
    sequence,
)
from radixrt.constrained.regex.automaton import small_expression
from radixrt.constrained.regex.boolean import complement, intersect
from radixrt.constrained.regex.charset import NONE, CharSet, partition
from radixrt.constrained.regex.derivatives import derive
from radixrt.constrained.regex.interning import ANY
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Alternate, Chars, Concat, Regex, Repeat, Words, first_sets

MAX_CONTEXTS: Final = 24
"""States of the automaton of all lookbehinds of a pattern."""
_MAX_STEPS: Final = 4_000
_MAX_SIZE: Final = 2_000
_NEWLINE: Final = literal("\n")


def resolve(tree: Tree, *, search: bool) -> Regex:
    """Return the language of the texts that the tree matches as a whole, or with `search` somewhere.

    Raises:
        RegexError: a lookaround stands where its meaning is no regular expression that we can build.
    """
    options = tree.options if isinstance(tree, Choice) else (tree,)
    around = ANY if search else EPSILON
    return alternate(*[_resolve_option(option, around, around) for option in options])


def _resolve_option(tree: Tree, before: Regex, after: Regex) -> Regex:
    """Most patterns have anchors only at the ends, where the anchors exclude text around the match."""
    parts = tree.parts if isinstance(tree, Sequence) else (tree,)
    first, last = 0, len(parts)
    while first < last and isinstance(parts[first], Start):
        first, before = first + 1, EPSILON
    while first < last and isinstance(end := parts[last - 1], End):
        # If text may follow the match, a line break may follow a `$` as Python reads it.
        last, after = last - 1, optional(_NEWLINE) if end.newline and after is not EPSILON else EPSILON
    inner = sequence(list(parts[first:last]))
    if isinstance(inner, Regex):
        return concat(before, inner, after)
    inner = _without_newline_ends(inner)
    found = inside_out(inner)
    if any(isinstance(part, Behind) for part in found):
        return _InContexts(inner, [part for part in found if isinstance(part, Behind)]).texts(before, after)
    at_start, later = Followed(inner).by(inner, after, after)
    if before is EPSILON:
        return at_start
    return alternate(at_start, concat(ANY if at_start is later else SOMETHING, later))


def _without_newline_ends(tree: Tree) -> Tree:
    """Return the tree with a lookahead for each `$` that also stands before a last line break."""
    found = inside_out(tree)
    if not any(isinstance(part, End) and part.newline for part in found):
        return tree
    made: dict[Tree, Tree] = {}
    for part in found:
        if isinstance(part, End) and part.newline:
            made[part] = choice([End(), Look(sequence([_NEWLINE, End()]), False, 0)])
        elif isinstance(part, Sequence):
            made[part] = sequence([made.get(one, one) for one in part.parts])
        elif isinstance(part, Choice):
            made[part] = choice([made.get(one, one) for one in part.options])
        elif isinstance(part, Loop):
            made[part] = Loop(made.get(part.item, part.item), part.low, part.high, part.position)
        elif isinstance(part, Look | Behind):
            made[part] = type(part)(made.get(part.item, part.item), part.negative, part.position)
        else:
            made[part] = part
    return made[tree]


class _InContexts:
    """The language of the rest of the text from the start of each part of the tree, for each context.

    A context is a state of the automaton that reads the text before: what is left of each lookbehind, and whether the
    text starts there. Context 0 is the start of the text.
    """

    def __init__(self, tree: Tree, behinds: Several[Behind]) -> None:
        self._tree = tree
        self._behinds = {behind: number for number, behind in enumerate(behinds)}
        self._arrows: list[dict[int, CharSet]] = []
        self._states: list[tuple[tuple[Regex, ...], bool]] = []
        self._words: dict[tuple[int, frozenset[int]], Regex] = {}
        self._steps = 0
        self._explore(behinds)

    def _explore(self, behinds: Several[Behind]) -> None:
        """Number the contexts and find the transitions between them."""
        start = (tuple(_ends_with(behind) for behind in behinds), True)
        numbers = {start: 0}
        self._states = [start]
        for languages, _ in self._states:  # grows inside the loop
            leading: dict[int, CharSet] = {}
            for charset in partition(frozenset().union(*[first_sets(language) for language in languages])):
                if not charset:
                    continue
                char = chr(charset.edges[0])
                target = (tuple(derive(language, char) for language in languages), False)
                number = numbers.setdefault(target, len(numbers))
                if number == len(self._states):
                    self._states.append(target)
                    if number >= MAX_CONTEXTS:
                        raise RegexError("the lookbehinds of the pattern are too long", behinds[0].position)
                leading[number] = leading.get(number, NONE) | charset
            self._arrows.append(leading)

    def texts(self, before: Regex, after: Regex) -> Regex:
        """Return the texts of the tree with text around it."""
        rests = self._by(self._tree, (after,) * len(self._states))
        return rests[0] if before is EPSILON else self._through(before, 0, rests)

    def _by(self, tree: Tree, rests: tuple[Regex, ...]) -> tuple[Regex, ...]:
        """Return the language of the rest of the text for each context in which the tree begins.

        Args:
            rests: the language behind the tree, for each context in which the tree ends.
        """
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RegexError("the lookarounds of the pattern are too many or nested too deep", 0)
        if isinstance(tree, Regex):
            return tuple([self._through(tree, state, rests) for state in range(len(rests))])
        if isinstance(tree, Sequence):
            return reduce(lambda behind, part: self._by(part, behind), reversed(tree.parts), rests)
        if isinstance(tree, Choice):
            options = [self._by(option, rests) for option in tree.options]
            return tuple([alternate(*column) for column in zip(*options)])
        if isinstance(tree, Start):
            return tuple([rest if start else EMPTY for rest, (_, start) in zip(rests, self._states)])
        if isinstance(tree, End):
            return tuple([EPSILON if rest.nullable else EMPTY for rest in rests])
        if isinstance(tree, Look):
            ahead = self._by(tree.item, (ANY,) * len(rests))
            return tuple([intersect(rest, complement(a) if tree.negative else a) for rest, a in zip(rests, ahead)])
        if isinstance(tree, Behind):
            number = self._behinds[tree]
            holds = [languages[number].nullable is not tree.negative for languages, _ in self._states]
            return tuple([rest if held else EMPTY for rest, held in zip(rests, holds)])
        assert isinstance(tree, Loop)  # references are written out
        if tree.high is None or tree.high > UNROLLED:
            raise RegexError("a word boundary or lookaround inside a repetition is not supported", tree.position)
        rounds = [rests]
        for _ in range(tree.high):
            rounds.append(self._by(tree.item, rounds[-1]))
        return tuple([alternate(*column) for column in zip(*rounds[tree.low :])])

    def _through(self, regex: Regex, state: int, rests: tuple[Regex, ...]) -> Regex:
        """Return the texts that begin with a text of the regex, followed by the rest for the context behind it."""
        if len(set(rests)) == 1:
            return concat(regex, rests[0])
        if isinstance(regex, Chars):
            leads = self._arrows[state].items()
            return alternate(*[concat(chars(regex.charset & charset), rests[target]) for target, charset in leads])
        if isinstance(regex, Words):
            by_rest: dict[Regex, list[str]] = {}
            for word in regex.words:
                by_rest.setdefault(rests[self._after(state, word)], []).append(word)
            return alternate(*[concat(literals(words), rest) for rest, words in by_rest.items()])
        if isinstance(regex, Alternate):
            return alternate(*[self._through(option, state, rests) for option in regex.options])
        if isinstance(regex, Concat):
            *front, last = regex.chain()
            behind = tuple([self._through(last, one, rests) for one in range(len(rests))])
            return self._through(concat(*front), state, behind)
        if isinstance(regex, Repeat) and regex.low == 0 and regex.high == 1:
            return alternate(rests[state], self._through(regex.item, state, rests))
        targets: dict[Regex, list[int]] = {}
        for target, rest in enumerate(rests):
            targets.setdefault(rest, []).append(target)
        options = [
            concat(intersect(regex, self._texts_to(state, frozenset(states))), rest)
            for rest, states in targets.items()
            if rest is not EMPTY
        ]
        return alternate(*options)

    def _after(self, state: int, word: str) -> int:
        for char in word:
            state = next(target for target, charset in self._arrows[state].items() if char in charset)
        return state

    def _texts_to(self, state: int, targets: frozenset[int]) -> Regex:
        """Return the texts that lead from a context to any of some others."""
        found = self._words.get((state, targets))
        if found is None:
            order = [state, *(one for one in range(len(self._arrows)) if one != state)]
            places = {one: place for place, one in enumerate(order)}
            arrows = [{places[to]: charset for to, charset in self._arrows[one].items()} for one in order]
            made = small_expression(arrows, [one in targets for one in order], MAX_CONTEXTS, _MAX_SIZE)
            if made is None:
                raise RegexError("the lookbehinds of the pattern are too complex", 0)
            found = self._words[state, targets] = made
        return found


def _ends_with(behind: Behind) -> Regex:
    """Return the texts at whose end a lookbehind holds, if it is positive."""
    if any(isinstance(part, Look | Behind | End) for part in inside_out(behind.item)):
        raise RegexError("a lookaround or an end inside of a lookbehind is not supported", behind.position)
    options = behind.item.options if isinstance(behind.item, Choice) else (behind.item,)
    return alternate(*[_resolve_option(option, ANY, EPSILON) for option in options])
