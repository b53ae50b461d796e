"""`Recognizer`: follows a text through a grammar, and finds a shortest completion from every state.

The recognizer is a nondeterministic pushdown automaton. A state is a set of configurations, each a node of a rule and a
`Frame` with the return points of the calls under way; frames merge all calls of one rule from one text position, so
ambiguity costs a polynomial and not an exponential number of them. States and frames with the same content are the
same object. So a state never changes, may be kept and gone back to, and remembers where each character led: texts that
repeat themselves, as JSON does, are followed with one dictionary look-up per character, and inside a string a compiled
pattern jumps to the next character that matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from radixrt.constrained.productions import Productions
from radixrt.constrained.productions.expressions import Special, checked
from radixrt.constrained.recognizer.frames import Closure, Frame, Item, RecognizerTooComplex, Return
from radixrt.constrained.recognizer.pushdown import SPECIAL, TEXT, Pieces, Program, Spelling, joined
from radixrt.constrained.regex import EMPTY, EPSILON, CharSet, Regex, RegexTooComplex, derive, has_remainder, is_empty
from radixrt.constrained.regex.algebra import concat, repeat
from radixrt.constrained.regex.charset import DIGITS, partition
from radixrt.constrained.regex.derivatives import first
from radixrt.constrained.regex.nodes import Concat, Repeat
from radixrt.errors import InvariantError

__all__ = ["Closing", "Recognizer", "RecognizerTooComplex", "State"]

MAX_CLOSING: Final = 1_000_000
_MAX_REMEMBERED: Final = 20_000
_MAX_SKIP_ITEMS: Final = 32
_FEW_EDGES: Final = 3
"""Characters that are followed from a state one by one before the recognizer computes the state's character classes."""
_MIN_COUNT: Final = 8
"""Smaller counts stay: computing the few masks that they could share takes less than finding the longest token."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A shortest completion.

    Attributes:
        pieces: texts and control tokens in order; no two texts are neighbors.
        characters: its length, a control token counting as one.
    """

    pieces: Pieces
    characters: int


class NumberAt(NamedTuple):
    """The numbers with remainders that a text is in, or before.

    Attributes:
        languages: of the rests of such numbers.
        is_unfinished: the text is within such a number, which may not end there.
        others_read_digits: a digit may also be a part of something else.
    """

    languages: list[Regex]
    is_unfinished: bool
    others_read_digits: bool


class State:
    """A parser state. Compare by identity; only `Recognizer` reads its attributes.

    Attributes:
        items: (reading node, progress within the node, frame) of everything that can be read next.
        complete: the text may end here.
        edges: the states after single characters, and after control tokens under 1-tuples; None where there is none.
        run: forced text of at least two characters that comes next; empty if there is none.
        after_run: the state after `run`; None until computed.
        skip: pattern for characters that lead back to this state; None until such a character was followed.
        classes: sets of characters that lead to the same state; None until computed.
    """

    __slots__ = ("after_run", "classes", "closing", "complete", "edges", "items", "length", "run", "skip")

    def __init__(self, items: frozenset[Item], complete: bool) -> None:
        self.items = tuple(items)
        self.complete = complete
        self.edges: dict[str | tuple[str], State | None] = {}
        self.run = ""
        self.after_run: State | None = None
        self.skip: re.Pattern[str] | None = None
        self.classes: tuple[CharSet, ...] | None = None
        self.closing: Closing | None = None
        self.length: int | None = 0 if complete else None
        if len(self.items) == 1 and not complete:
            node, progress, _ = self.items[0]
            if node.kind == TEXT and isinstance(progress, int) and len(node.text) - progress > 1:
                self.run = node.text[progress:]


_UNKNOWN: Final = State(frozenset(), False)


class Recognizer:
    """Follows texts through a grammar.

    Args:
        productions: validated and pruned.
        special_ids: token ids of control tokens, including all control tokens of the productions.
    """

    def __init__(self, productions: Productions, special_ids: Mapping[str, int] | None = None) -> None:
        for special in productions.specials:
            if special_ids is not None and special not in special_ids:
                raise InvariantError(f"{special!r} is no control token of the vocabulary")
        self._program = Program(productions)
        self._frames: dict[frozenset[Return], Frame] = {}
        self._states: dict[tuple[frozenset[Item], bool], State] = {}
        self._spelling = Spelling()
        self._num_edges = 0
        closure = Closure(self._frames)
        closure.enter(self._program.start, Frame(()))
        start = self._settle(closure)
        if start is None:
            raise InvariantError("productions that derive nothing must be pruned")
        self._start = start

    @property
    def longest_rule(self) -> int:
        """Characters of the longest among the shortest texts of the rules."""
        return self._program.longest_rule

    def start(self) -> State:
        """Return the state before any text."""
        return self._start

    def advance(self, state: State, text: str) -> State | None:
        """Return the state after more text; None if no sentence begins with the text.

        Raises:
            RecognizerTooComplex: too many parses of the text are possible at once.
        """
        at, end = 0, len(text)
        while at < end:
            # Forced text is compared at once.
            if state.run and text.startswith(state.run, at):
                at += len(state.run)
                state = state.after_run or self._run(state)
                continue
            after = state.edges.get(text[at], _UNKNOWN)
            if after is _UNKNOWN:
                after = self._step(state, text[at])
            if after is None:
                return None
            # Where a character leads back to the state, a compiled pattern skips all such characters.
            at += 1
            if after is state and at < end:
                found = (state.skip or self._make_skip(state)).match(text, at)
                if found is not None:
                    at = found.end()
            state = after
        return state

    def advance_special(self, state: State, text: str) -> State | None:
        """Return the state after a control token; None if the token is not allowed."""
        after = state.edges.get((text,), _UNKNOWN)
        if after is _UNKNOWN:
            closure = Closure(self._frames)
            for node, _, frame in state.items:
                if node.kind == SPECIAL and node.text == text:
                    closure.enter(node.next, frame)
            after = self._remember(state, (text,), self._settle(closure))
        return after

    def is_complete(self, state: State) -> bool:
        """Return True if the text may end in this state."""
        return state.complete

    def must_end(self, state: State) -> bool:
        """Return True if the text may end in this state and cannot continue."""
        return state.complete and not any(map(self._can_read, state.items))

    def closing_length(self, state: State) -> int:
        """Return the length of a shortest completion, where a control token counts as a character; 0 if the text may
        end."""
        if state.length is None:
            state.length = min(length for length, _ in map(self._rank, state.items))
        return state.length

    def closing(self, state: State) -> Closing:
        """Return a shortest completion.

        Raises:
            RecognizerTooComplex: the completion is longer than `MAX_CLOSING`.
        """
        if state.closing is None:
            length = self.closing_length(state)
            if length > MAX_CLOSING:
                raise RecognizerTooComplex(f"the shortest completion is {length} characters long")
            # Complete the item with the shortest completion, then its rule, then the rules of its callers.
            pieces: list[str | Special] = []
            if not state.complete:
                least = min(map(self._rank, state.items))
                ties = [item for item in state.items if self._rank(item) == least]
                # The order of the items differs from process to process.
                item = min(ties, key=lambda one: (str(self._head(one)), one[2].path())) if len(ties) > 1 else ties[0]
                node, _, frame = item
                pieces.append(self._head(item))
                self._spelling.spell(node.next, pieces)
                while frame.best is not None:
                    node, count, frame = frame.best
                    if count:
                        self._spelling.spell_missing(node, count, pieces)
                        node = node.next
                    self._spelling.spell(node, pieces)
            state.closing = Closing(joined(pieces), length)
        return state.closing

    def _head(self, item: Item) -> str | Special:
        """Return the shortest text that completes what an item is reading."""
        node, progress, _ = item
        if isinstance(progress, Regex):
            return self._spelling.shortest_text(progress)
        return Special(node.text) if node.kind == SPECIAL else node.text[progress:]

    def looping_chars(self, state: State) -> CharSet:
        """Return the characters that lead from the state back to itself; none where there may be many classes."""
        found = CharSet(())
        for one in self._classes(state):
            if self._step(state, chr(one.edges[0])) is state:
                found = found | one
        return found

    def kinds_of_chars(self, state: State) -> list[str]:
        """Return a character of each class of characters with the same next state; none where there may be many
        classes."""
        return [chr(one.edges[0]) for one in self._classes(state)]

    def moves(self, state: State) -> list[tuple[CharSet, State]]:
        """Return the possible next characters in classes, each with the state after any of its characters."""
        sets: list[CharSet] = []
        for node, progress, _ in state.items:
            if isinstance(progress, Regex):
                sets.extend(progress.classes())
            elif node.kind == TEXT:
                sets.append(CharSet.of(node.text[progress]))
        following = [(one, self.advance(state, chr(one.edges[0]))) for one in (partition(sets) if sets else ())]
        return [(one, after) for one, after in following if after is not None]

    def number_at(self, state: State) -> NumberAt:
        """Return the numbers with remainders that may come next in a state."""
        languages: list[Regex] = []
        is_unfinished = others_read_digits = False
        for node, progress, _ in state.items:
            if isinstance(progress, int):
                others_read_digits |= node.kind == TEXT and node.text[progress].isdigit()
            elif has_remainder(progress):
                languages.append(progress)
                is_unfinished |= progress is not node.regex and not progress.nullable
            else:
                others_read_digits |= bool(first(progress) & DIGITS)
        return NumberAt(languages, is_unfinished, others_read_digits)

    def marked_rules(self, state: State, char: str) -> set[str]:
        """Return the marked rules of which a text begins in this state with a character. The texts of marked rules
        begin with constants."""
        marked = self._program.marked
        items = [node for node, progress, _ in state.items if progress == 0 and node.text[:1] == char]
        return {marked[node] for node in items if node in marked}

    def rules_of_constant(self, state: State, char: str) -> set[str]:
        """Return the rules in which a constant may go on with a character outside of quotes."""
        found = set()
        for node, progress, _ in state.items:
            if node.kind == TEXT and isinstance(progress, int) and node.text[progress] == char:
                before = node.text[:progress].replace("\\\\", "").replace('\\"', "")
                if before.count('"') % 2 == 0:
                    found.add(self._program.rule_of(node))
        return found

    def uniform_chars(self, state: State, text: str) -> CharSet:
        """Return a set of characters, those of `text` included, such that every text over the set with the length of
        `text` leads to the same state as `text`. Empty where no such set is known. Within a counted repetition, for
        instance, the set has the characters of the repeated item."""
        # At each step, the characters must be within a class of the state reached so far.
        chars = self._class_of(state, text[0])
        after: State | None = state
        for char in text:
            same = None if after is None else self._class_of(after, char)
            if after is None or chars is None or same is None or char not in chars or chars & same != chars:
                return CharSet(())
            after = self.advance(after, char)
        return CharSet(()) if chars is None or after is None else chars

    def _class_of(self, state: State, char: str) -> CharSet | None:
        return next((one for one in self._classes(state) if char in one), None)

    def _classes(self, state: State) -> tuple[CharSet, ...]:
        """Sets of characters, each of which leads to one state; none where there would be many."""
        if state.classes is None:
            sets: list[CharSet] = []
            is_small = len(state.items) <= _MAX_SKIP_ITEMS
            for node, progress, _ in state.items if is_small else ():
                if isinstance(progress, Regex):
                    sets.extend(progress.classes())
                elif node.kind == TEXT:
                    sets.append(CharSet.of(node.text[progress]))
            state.classes = tuple(partition(sets)) if is_small else ()  # of no sets, all characters are one class
        return state.classes

    def with_small_counts(self, state: State, longest: Callable[[CharSet], int]) -> State:
        """Return a state that allows the same next tokens, in which repetitions count no further than a token can.

        Which tokens may come next does not depend on how many more than a token's length of items are still to come.

        Args:
            longest: a bound on the characters of a set that a token can begin with.
        """
        items = []
        for node, progress, frame in state.items:
            small = _small_counts(progress, longest) if isinstance(progress, Regex) else progress
            items.append((node, small, frame))
        if all(small is progress for (_, small, _), (_, progress, _) in zip(items, state.items, strict=True)):
            return state
        content = frozenset(items), state.complete
        small_state = self._states.get(content)
        if small_state is None:
            small_state = self._states[content] = State(*content)
        return small_state

    def first_char(self, state: State, low: int, high: int) -> str | None:
        """A character from code point low to high that may come next, one with the shortest completion."""
        best: tuple[int, str] | None = None
        span = CharSet.span(low, high)
        candidates: set[str] = set()
        for node, progress, _ in state.items:
            if isinstance(progress, Regex):
                candidates.update(chr(part.edges[0]) for part in (one & span for one in progress.classes()) if part)
            elif node.kind == TEXT and node.text[progress] in span:
                candidates.add(node.text[progress])
        for char in sorted(candidates):
            after = self.advance(state, char)
            if after is not None:
                length = self.closing_length(after)
                if best is None or length < best[0]:
                    best = length, char
        return None if best is None else best[1]

    def _step(self, state: State, char: str) -> State | None:
        """Compute and store the state after a character. Characters of the same class have the same state."""
        # Computing the classes pays off after a few characters. Then the first character represents the class.
        if len(state.edges) >= _FEW_EDGES:
            same = self._class_of(state, char)
            first = char if same is None else chr(same.edges[0])
            known = state.edges.get(first, _UNKNOWN)
            if known is not _UNKNOWN:
                return self._remember(state, char, known)
            char = first
        # Advance every item, and follow the items that are read to their end.
        closure = Closure(self._frames)
        for node, progress, frame in state.items:
            if isinstance(progress, Regex):
                after = self._derive(progress, char)
                if after is EMPTY or (after.has_boolean and checked(is_empty, after)):
                    continue
                if after.nullable:
                    closure.enter(node.next, frame)
                if after is not EPSILON:
                    closure.items.append((node, after, frame))
            elif node.kind == TEXT and node.text[progress] == char:
                if progress + 1 == len(node.text):
                    closure.enter(node.next, frame)
                else:
                    closure.items.append((node, progress + 1, frame))
        return self._remember(state, char, self._settle(closure))

    def _run(self, state: State) -> State:
        """Return the state after `state.run`."""
        node, _, frame = state.items[0]
        closure = Closure(self._frames)
        closure.enter(node.next, frame)
        after = self._settle(closure)
        if after is None:
            raise InvariantError("productions that derive nothing must be pruned")
        state.after_run = after
        return after

    def _settle(self, closure: Closure) -> State | None:
        """Return the state of a closure, interned; None if the closure has no item and the text may not end."""
        items, complete = closure.finish()
        if not items and not complete:
            return None
        state = self._states.get((items, complete))
        if state is None:
            state = self._states[items, complete] = State(items, complete)
        return state

    def _remember(self, state: State, key: str | tuple[str], after: State | None) -> State | None:
        # Drop all transitions and states when there are too many. States that are still in use stay valid.
        self._num_edges += 1
        if self._num_edges > _MAX_REMEMBERED:
            for known in self._states.values():
                known.edges.clear()
                known.after_run = None
            self._states = {(frozenset(self._start.items), self._start.complete): self._start}
            self._frames.clear()
            self._spelling.forget()
            self._num_edges = 0
        state.edges[key] = after
        return after

    def _make_skip(self, state: State) -> re.Pattern[str]:
        """Compile the pattern for characters that lead from the state back to itself."""
        state.skip = _pattern(self.looping_chars(state))
        return state.skip

    def _can_read(self, item: Item) -> bool:
        _, progress, _ = item
        if isinstance(progress, Regex) and progress.has_boolean:
            following = (self._derive(progress, chr(one.edges[0])) for one in progress.classes())
            return any(not checked(is_empty, after) for after in following)
        return True

    def _rank(self, item: Item) -> tuple[int, int]:
        """Return the length of the shortest completion through an item, and the item's position in the grammar."""
        node, progress, frame = item
        if isinstance(progress, Regex):
            head = len(self._spelling.shortest_text(progress)) if progress.has_boolean else progress.min_length
        else:
            head = 1 if node.kind == SPECIAL else len(node.text) - progress
        return head + node.next.distance + frame.distance, node.serial

    @staticmethod
    def _derive(regex: Regex, char: str) -> Regex:
        try:
            return derive(regex, char)
        except RegexTooComplex as error:
            raise RecognizerTooComplex(f"a pattern of the grammar is too complex: {error}") from None


def _pattern(chars: CharSet) -> re.Pattern[str]:
    if not chars:
        return re.compile("(?!)")
    ranges = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in chars.pairs())
    return re.compile(f"[{ranges}]*")


def _small_counts(regex: Regex, longest: Callable[[CharSet], int]) -> Regex:
    """Return a language with the same beginnings, as far as a token goes, that counts no further than necessary.

    Every item of a repetition has at least one character, so a token holds at most n items, where n is the largest
    number of characters of the items' alphabet in a token. Counts above n + 1 therefore allow the same next tokens as
    n + 1. Only repetitions in the first two parts of a sequence are made smaller: the sequence may begin with a
    repetition, or with the rest of an item followed by the repetition. A repetition of a single string is kept, because
    a library may look further ahead where the text is forced.

    Args:
        longest: a bound on the characters of a set that a token can begin with.
    """
    if not isinstance(regex, Concat):
        return _small_repeat(regex, regex.alphabet(), longest)
    head, tail = regex.head, regex.tail
    small_head = _small_repeat(head, head.alphabet(), longest)
    second = tail.head if isinstance(tail, Concat) else tail
    small_second = _small_repeat(second, head.alphabet() | second.alphabet(), longest)
    if small_head is head and small_second is second:
        return regex
    rest = concat(small_second, tail.tail) if isinstance(tail, Concat) else small_second
    return concat(small_head, rest)


def _small_repeat(regex: Regex, alphabet: CharSet, longest: Callable[[CharSet], int]) -> Regex:
    """Return a repetition with counts that a token over `alphabet` cannot exceed; return other languages unchanged."""
    if not isinstance(regex, Repeat) or regex.has_boolean or regex.item.min_length == 0 or regex.item.text is not None:
        return regex
    if max(regex.low, regex.high or 0) < _MIN_COUNT:
        return regex
    most = longest(alphabet) + 1
    return repeat(regex.item, min(regex.low, most), None if regex.high is None else min(regex.high, most))
