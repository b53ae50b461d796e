"""`Scanner`: follows the texts of one grammar as JSON, with the kinds of arrays that the grammar says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from radixrt.constrained.guards.json_position import (
    DISTINCT,
    FREE,
    NO_JSON,
    REPEATING,
    START,
    START_OUTSIDE,
    Position,
    advance,
)
from radixrt.constrained.obligations import DISTINCT_MARK, REPEATING_MARK, Obligation, most_items
from radixrt.constrained.productions import Special
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.runtime.closing import ParserState

MAX_KINDS: Final = 20_000
"""Maximum number of states for which the kind of an array that begins there is cached."""


class Scanner:
    """Follows the texts of one grammar.

    Args:
        recognizer: of the same grammar.

    Attributes:
        arrays: some arrays are not FREE.
        ordered: the members of objects in items that must differ have a fixed order.
        start: the position before a text.
    """

    def __init__(self, recognizer: Recognizer, obligations: Sequence[Obligation]) -> None:
        self._recognizer = recognizer
        self._keys = DISTINCT if any(one.kind == "keys" for one in obligations) else FREE
        self.ordered = all(one.ordered for one in obligations)
        self._prefix = next((one.prefix for one in obligations if one.prefix), "")
        self._kinds: dict[tuple[State, str, bool], int] = {}
        self.arrays = any(one.kind != "keys" for one in obligations)
        self.start = start_of(obligations)

    def advance(
        self, position: Position, place: ParserState, before: bytearray, extra: bytes, data: bytes
    ) -> Position | None:
        """Return the position after more bytes; None after a violation.

        Args:
            place: the parser state before the bytes.
            before, extra: the text before the bytes, in two parts.
        """
        if not self.arrays and not self._prefix:
            return advance(position, before, extra, data, _free, keys=self._keys)

        def kind_of(index: int, outside: bool) -> int:
            state: State | None
            state, pending = place
            text = (pending + data[:index]).decode()
            if text:
                state = self._recognizer.advance(state, text)
            if state is None:
                return NO_JSON if outside else FREE
            return self._kind(state, chr(data[index]), outside)

        return advance(
            position,
            before,
            extra,
            data,
            kind_of,
            keys=self._keys,
            ordered=self.ordered,
            embedded=bool(self._prefix),
        )

    def _kind(self, state: State, char: str, outside: bool) -> int:
        """Return the kind of an array that begins in a state, or NO_JSON."""
        known = self._kinds.get((state, char, outside))
        if known is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            known = self._kinds[state, char, outside] = self._find_kind(state, char, outside)
        return known

    def _find_kind(self, state: State, char: str, outside: bool) -> int:
        if outside:
            rules = self._recognizer.rules_of_constant(state, char)
            if not any(rule.startswith(self._prefix) for rule in rules):
                return NO_JSON
        marked = self._recognizer.marked_rules(state, char)
        if any(rule.endswith(DISTINCT_MARK) for rule in marked):
            return DISTINCT
        return next((REPEATING + most_items(rule) for rule in marked if rule.endswith(REPEATING_MARK)), FREE)

    def violation(self, pieces: Iterable[str | Special]) -> int | None:
        """Return the number of characters up to the first violation in a text of the grammar; None if there is none.

        Args:
            pieces: texts and control tokens. A control token counts as the characters of its text.
        """
        state: State | None = self._recognizer.start()
        position: Position | None = self.start
        before = bytearray()
        offset = 0
        for piece in pieces:
            if isinstance(piece, Special):
                offset += len(piece.text)
                state = None if state is None else self._recognizer.advance_special(state, piece.text)
                continue
            for char in piece:
                if state is None:
                    return None
                assert position is not None
                data = char.encode()
                position = self.advance(position, (state, b""), before, b"", data)
                offset += 1
                if position is None:
                    return offset
                before += data
                state = self._recognizer.advance(state, char)
        return None


def start_of(obligations: Sequence[Obligation]) -> Position:
    """Return the position before a text."""
    return START_OUTSIDE if any(one.prefix for one in obligations) else START


def _free(index: int, outside: bool) -> int:
    return FREE
