"""`Completer`: whether a guarded text can be completed, and its shortest completion.

Both are searches over the recognizer's states together with positions. Where no unit in progress can become equal to a
used one, every completion of the grammar is good, so a search only follows the beginnings of used texts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from radixrt.constrained.guards.completion import JOINTS, Completion
from radixrt.constrained.guards.json_position import (
    DELIMITERS,
    DISTINCT,
    FREE,
    REPEATING,
    SCALAR,
    Position,
    Scope,
    next_member,
)
from radixrt.constrained.guards.scanner import Scanner
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.productions import Special
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.runtime.closing import ParserState, code_points
from radixrt.constrained.vocabulary import Vocabulary

MAX_NODES: Final = 20_000
"""Maximum number of cached results of a kind."""
MAX_STEPS: Final = 20_000
"""Maximum number of steps of the searches of one mask, or of one completion."""
TEXTS_OF_STEP: Final = 256
"""Number of used texts that are compared in about the time of one step."""
MANY_WAYS: Final = 4096
"""Number beyond which ways to go on are not counted."""
LOOK_AHEAD: Final = 4
"""Longest texts that are counted as ways to go on, in characters."""
_MARKS: Final = CharSet.of('"\\,:[]{} \t\n\r')
"""Characters that may end a key, a string, a number or a value around it, or begin an escape."""
_DELIMITERS: Final = frozenset(DELIMITERS.decode())
_LIKED: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
"""Characters that completions prefer among those that lead to the same state."""


class Node(NamedTuple):
    """A point of a search: the recognizer's state, the bytes of an incomplete character, the position, and the bytes
    after the text from which the search began, with the control tokens among them and their offsets."""

    state: State
    pending: bytes
    position: Position
    extra: bytes
    specials: tuple[tuple[int, str], ...] = ()


_Key: TypeAlias = tuple[Hashable, ...]


class Effort:
    """The steps of the searches of one mask or one completion, which a request may not exceed.

    Attributes:
        hopeless: keys of nodes from which no search reaches a completion; see `_key`.
    """

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self.hopeless: set[_Key] = set()

    def spend(self, position: Position) -> None:
        """Count a step at a position.

        Raises:
            GrammarError: the steps are used up.
        """
        scope = position.scope
        self._left -= 1 if scope is None else 1 + scope.num_live // TEXTS_OF_STEP
        if self._left < 0:
            raise _too_long()


class Completer:
    """Searches for completions of the texts of one grammar.

    Args:
        scanner: of the same grammar as the recognizer.
    """

    def __init__(self, recognizer: Recognizer, vocabulary: Vocabulary, scanner: Scanner) -> None:
        self._recognizer = recognizer
        self._vocabulary = vocabulary
        self._scanner = scanner
        self._moves: dict[State, list[tuple[CharSet, State]]] = {}
        self._ways: dict[State, int] = {}

    def num_ways(self, state: State) -> int:
        """Return the number of texts of some length that may follow a state within the same key, string or number; the
        largest one over the lengths, or any above MANY_WAYS."""
        known = self._ways.get(state)
        if known is None:
            if len(self._ways) >= MAX_NODES:
                self._ways.clear()
            known = self._ways[state] = self._count_ways(state)
        return known

    def _count_ways(self, state: State) -> int:
        ends, most = {state: 1}, 0
        for _ in range(LOOK_AHEAD):
            further: dict[State, int] = {}
            for place, ways in ends.items():
                for chars, after in self._moves_of(place):
                    further[after] = further.get(after, 0) + ways * len(chars - _MARKS)
            ends = {place: ways for place, ways in further.items() if ways}
            most = max(most, sum(ends.values()))
            if most > MANY_WAYS or not ends:
                break
        return most

    def exists(self, place: ParserState, position: Position, before: bytearray, extra: bytes, effort: Effort) -> bool:
        """Return whether a text has a completion in which no unit repeats another that it must differ from.

        Args:
            before, extra: the text, in two parts.
            effort: of all searches with the same `before`.

        Raises:
            GrammarError: the search takes too many steps.
        """
        if not position.alive or self._may_leave(place, position):
            return True
        todo = [Node(*place, position, extra)]
        seen: set[_Key] = set()
        while todo:
            node = todo.pop()
            effort.spend(node.position)
            if not self._scanner.ordered:
                # Members in another order lead to the same choices. In a fixed order no two nodes are alike.
                key = _key(node, before)
                if key in seen or key in effort.hopeless:
                    continue
                seen.add(key)
            for further in self._following(node, before):
                if not further.position.alive:
                    return True
                todo.append(further)
        effort.hopeless |= seen
        return False

    def _may_leave(self, place: ParserState, position: Position) -> bool:
        """Return whether at some point along a used text there are more ways to go on than used texts, so that the unit
        can become equal to none of them. False where that is not known."""
        if position.repeating:
            return False
        scope = position.scope
        while scope is not None and not scope.live:
            scope = scope.parent
        if scope is None or place[1]:
            return False
        rest = scope.live[0][scope.matched :]
        if not self._scanner.ordered:
            rest = rest[: next_member(rest)]  # another member in its place leads away from no used text
        many = many_for(position)
        return many is not None and self.last_choice(place[0], rest, many, 0) is not None

    def last_choice(self, state: State, rest: bytes, many: int, enough: int) -> int | None:
        """Return the last point of a text at which there are more than `many` ways to go on, as an offset in bytes, or
        the first such point from `enough` on; None if there is none."""
        last = None
        at = 0
        for char in (*rest.decode(errors="ignore"), ""):
            if self.num_ways(state) > many:
                last = at
                if at >= enough:
                    break
            after = self._recognizer.advance(state, char) if char else None
            if after is None:
                break
            state = after
            at += len(char.encode())
        return last

    def complete(
        self, place: ParserState, position: Position, before: bytearray, guide: Completion | None = None
    ) -> Completion:
        """Return a short completion that meets the obligations. It depends on the arguments alone.

        Args:
            guide: the completion of a beginning of the text: wherever it goes on, it is followed but for units that
                the text has used since. Without a guide, each unit that the grammar's shortest completion repeats
                takes a search.

        Raises:
            GrammarError: the search takes too many steps.
        """
        state, pending = place
        node = Node(state, pending, position, b"")
        effort = Effort()
        begins: list[Node] = []
        while True:
            node, depth = self._follow(node, begins, before, effort, guide)
            if depth is None:
                break
            node = self._around(node, depth, before, effort)
            del begins[depth:]
        ends = [*[end for end, _ in node.specials], len(node.extra)]
        others: list[str | Special] = []
        for (start, text), end in zip(node.specials, ends[1:], strict=True):
            others += [Special(text), node.extra[start:end].decode()]
        return Completion(None if pending else state, node.extra[: ends[0]], tuple(others))

    def _follow(
        self, node: Node, begins: list[Node], before: bytearray, effort: Effort, guide: Completion | None
    ) -> tuple[Node, int | None]:
        """Follow the guide, or the grammar's shortest completion, up to a unit that repeats another. In an array of
        which two items must be equal, its shortest item is repeated.

        Args:
            begins: for each number of scopes around a unit, the node where the unit begins, or inside of the unit;
                extended and kept up to date.

        Returns:
            The end and None; or the node where the repeated unit begins, and the number of scopes around the unit.
        """
        if node.pending:
            node = min(self._following(node, before), key=lambda one: self._recognizer.closing_length(one.state))
        del begins[_depth(node.position.scope) + 1 :]
        begins += [node] * (_depth(node.position.scope) + 1 - len(begins))
        source, chars = _NOTHING, _parts(())
        while True:
            rest = _rest_of_last(node.position) if source != _ITEM and node.position.must_repeat else ""
            if rest:
                source, chars = _ITEM, _parts((rest,))
            elif source < _GUIDE and guide is not None and _may_join(node, before):
                tail = guide.tail(node.state, self._recognizer)
                if tail is not None:
                    place = node.state, b""
                    if self._scanner.advance(node.position, place, before, node.extra, tail) is not None:
                        return _joined(node, tail, guide.others), None
                    source, chars = _GUIDE, _parts((tail.decode(),))
            if source == _NOTHING:
                source, chars = _GRAMMAR, _parts(self._recognizer.closing(node.state).pieces)
            char = next(chars, None)
            if char is None:
                if source == _GRAMMAR:
                    return node, None
                source = _NOTHING
                continue
            if isinstance(char, Special):
                node = self._after_special(node, char.text)
                begins[:] = [node]
                continue
            after = self._recognizer.advance(node.state, char)
            assert after is not None
            effort.spend(node.position)
            further = self._step(node, char, after, before)
            scope, depth = node.position.scope, _depth(node.position.scope)
            if further is None:
                repeats = _repeats_number(node, before)
                if char == "]" and scope is not None and scope.kind >= REPEATING and not repeats:
                    source, chars = _ITEM, _parts(("," + min(scope.used, key=len).decode(),))
                    continue
                if char in "]}" and not (repeats and scope is not None and scope.kind == DISTINCT):
                    depth -= 1  # the unit is the object or array that the character closes
                return begins[depth], depth
            # A unit of the scope before the character, which the character may open another scope in.
            scope = further.position.scope
            opens = _depth(scope) > depth
            owner = scope.parent if opens and scope is not None else scope
            del begins[depth + 1 :]
            if owner is not None and owner.start == len(before) + len(node.extra):
                begins[depth] = node
            if opens:
                begins.append(node)
            node = further

    def _around(self, start: Node, depth: int, before: bytearray, effort: Effort) -> Node:
        """Return the node after a short unit that repeats no other.

        The search goes on where the fewest used texts begin as the unit does, so that it passes by most of them: a
        search of units by length would visit each used text before the first longer one.

        Args:
            start: where the unit begins, or inside of the unit.
            depth: number of scopes around the unit.
        """
        used = _used(start.position.scope, depth)
        queue: list[tuple[int, int, int, int, Node]] = [(0, 0, 0, 0, start)]
        serial = 0
        while queue:
            *_, node = heappop(queue)
            effort.spend(node.position)
            if _has_ended(node, depth, used):
                return node
            for number, one in enumerate(self._following(node, before, away=True)):
                scope = one.position.scope
                similar = 0 if scope is None or _has_ended(one, depth, used) else scope.num_live
                cost = len(one.extra) + self._recognizer.closing_length(one.state)
                heappush(queue, (similar, cost, -len(one.extra), serial + number, one))
            serial += 1 << 20
        raise _too_long()

    def _following(self, node: Node, before: bytearray, *, away: bool = False) -> Iterator[Node]:
        """Yield the nodes after one more character, without violations. Characters that lead to equal nodes, but for
        their own text, are represented by one of them.

        Args:
            away: where a character leads away from all used texts, leave out those that lead to the same state along
                a used text.
        """
        position, pending = node.position, node.pending
        special: set[str] = set()
        scope = position.scope
        while scope is not None and scope.followed:
            for text in scope.live:
                if scope.matched < len(text):
                    special.add(_first_char(pending + text[scope.matched :]))
            scope = scope.parent
        if position.mode == SCALAR:
            special |= _DELIMITERS
        within = CharSet.span(*code_points(pending)) if pending else None
        for chars, after in self._moves_of(node.state):
            if within is not None:
                chars = chars & within
            found = [char for char in sorted(special) if char in chars]
            other = _other(chars, set(found))
            for char in found if other is None else [other, *found]:
                further = self._step(node, char, after, before)
                if further is not None:
                    yield further
                    if away and char == other and not (further.position.alive or further.position.repeating):
                        break

    def _moves_of(self, state: State) -> list[tuple[CharSet, State]]:
        known = self._moves.get(state)
        if known is None:
            if len(self._moves) >= MAX_NODES:
                self._moves.clear()
            known = self._moves[state] = self._recognizer.moves(state)
        return known

    def _step(self, node: Node, char: str, after: State, before: bytearray) -> Node | None:
        data = char.encode()[len(node.pending) :]
        place = node.state, node.pending
        position = self._scanner.advance(node.position, place, before, node.extra, data)
        return None if position is None else Node(after, b"", position, node.extra + data, node.specials)

    def _after_special(self, node: Node, text: str) -> Node:
        """Return the node after a control token, which stands in text around JSON."""
        after = self._recognizer.advance_special(node.state, text)
        assert after is not None
        return node._replace(state=after, specials=(*node.specials, (len(node.extra), text)))


def _parts(pieces: Iterable[str | Special]) -> Iterator[str | Special]:
    """Yield the characters and control tokens of a text."""
    for piece in pieces:
        yield from (piece,) if isinstance(piece, Special) else piece


_NOTHING, _GRAMMAR, _GUIDE, _ITEM = range(4)
"""Sources of the characters of a completion: none yet; the grammar's shortest completion; the guide; an item that is
repeated."""


def _may_join(node: Node, before: bytearray) -> bool:
    """Return whether a completion of another text may be taken over at a node."""
    if node.pending or node.specials:
        return False
    return (node.extra or before)[-1:] in JOINTS if node.extra or before else False


def _joined(node: Node, tail: bytes, others: tuple[str | Special, ...]) -> Node:
    """Return a node with the end of a completion behind its bytes."""
    extra, specials = node.extra + tail, list(node.specials)
    for part in others:
        if isinstance(part, Special):
            specials.append((len(extra), part.text))
        else:
            extra += part.encode()
    return node._replace(extra=extra, specials=tuple(specials))


def _rest_of_last(position: Position) -> str:
    """Return what is left of the shortest item that a last item may repeat. Of several last items, the outermost one is
    repeated, with the others in it."""
    scope = position.scope
    while scope is not None and not (scope.is_last and not (scope.parent and scope.parent.must_repeat)):
        scope = scope.parent
    assert scope is not None
    return min([text[scope.matched :] for text in scope.live], key=len).decode()


def _repeats_number(node: Node, before: bytearray) -> bool:
    """Return whether the text ends with a number, true, false or null that repeats an item."""
    scope = node.position.scope
    if node.position.mode != SCALAR or scope is None or not scope.live:
        return False
    return scope.is_array and (bytes(before) + node.extra)[scope.start :] in scope.live


_LEVELS: Final = (8, 64, 512, MANY_WAYS)


def many_for(position: Position) -> int | None:
    """Return a number such that, where there are more ways to go on, one leads away from all used texts; None if that
    takes very many ways, or where two items must be equal. There are few such numbers, so that results are found again.
    """
    if position.repeating:
        return None
    scope = position.scope
    number = 0 if scope is None else scope.num_live
    return next((level for level in _LEVELS if number <= level), None)


def _first_char(data: bytes) -> str:
    """Return the first character of a text."""
    length = 1 if data[0] < 0x80 else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
    return data[:length].decode()


def _other(chars: CharSet, excluded: set[str]) -> str | None:
    """Return a character of the set that is not excluded, if there is any."""
    for char in _LIKED:
        if char in chars and char not in excluded:
            return char
    return next((char for char in chars if char not in excluded), None)


def _depth(scope: Scope | None) -> int:
    depth = 0
    while scope is not None:
        depth, scope = depth + 1, scope.parent
    return depth


def _has_ended(node: Node, depth: int, used: int) -> bool:
    """Return whether a unit with `depth` scopes around it has ended, before which `used` units of its scope had."""
    scope = node.position.scope
    return _depth(scope) < depth or _used(scope, depth) > used


def _used(scope: Scope | None, depth: int) -> int:
    """Return the number of used texts of the scope with `depth - 1` scopes around it."""
    for _ in range(_depth(scope) - depth):
        assert scope is not None
        scope = scope.parent
    return 0 if scope is None else len(scope.used)


def _key(node: Node, before: bytearray) -> _Key:
    """Return a key which is equal for nodes that have the same completions until a unit becomes equal to no used text.

    Of the outermost scope with live texts only the rest of these texts counts, because the search ends where the unit
    differs from all of them. Of the scopes within, all texts count, because further units must differ from them.
    """
    parts: list[Hashable] = [node.state, node.pending, node.position.mode]
    scope = node.position.scope
    while scope is not None and scope.followed:
        rests = frozenset([text[scope.matched :] for text in scope.live])
        if scope.kind <= DISTINCT and (scope.parent is None or not scope.parent.followed):
            parts.append(rests)
        elif scope.kind != FREE:
            written = b""
            if scope.start >= len(before):
                written = node.extra[scope.start - len(before) :]
            elif scope.start >= 0:
                written = bytes(before[scope.start :]) + node.extra
            parts.append((scope.kind, frozenset(scope.used), rests, written))
        scope = scope.parent
    return tuple(parts)


def _too_long() -> GrammarError:
    return GrammarError("finding a completion whose keys and items differ takes too many steps")
