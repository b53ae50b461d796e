"""`Position`: the open objects and arrays of a JSON text so far, with the texts of the objects' keys.

The text is one that a grammar of JSON allows, so the scanner does not check the syntax. It reads bytes, because tokens
may end inside a character. Positions and scopes are immutable, so that a copy of a position is a pointer, and going
back to an earlier position costs nothing.

A *unit* is a key of an object. A unit that is written twice in its scope is a violation. Units are compared as texts,
so equal units must have equal texts.
"""

from __future__ import annotations

from typing import Final

VALUE: Final = 0
"""A value is expected, or the end of an empty array."""
KEY: Final = 1
"""A key is expected, or the end of an empty object."""
IN_KEY: Final = 2
IN_STRING: Final = 3
KEY_ESCAPE: Final = 4
STRING_ESCAPE: Final = 5
SCALAR: Final = 6
"""Inside a number, true, false or null."""
COLON: Final = 7
AFTER: Final = 8
"""After a value."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"
_SPACE: Final = frozenset(b" \t\n\r")
DELIMITERS: Final = b",]} \t\n\r"
"""Bytes that end a number, true, false or null."""


class Scope:
    """An open object or array.

    Attributes:
        parent: the scope around it; None for the outermost.
        is_array: whether it is an array.
        used: the texts of its units so far.
        start: offset in the text of the unit that is being written; -1 where none is.
        live: the used texts that begin with the unit's text so far. While a unit is expected, all used texts.
        matched: number of bytes of the unit's text so far, while `live` is not empty.
        alive: `live` of this scope, or of one around it, is not empty.
    """

    __slots__ = ("alive", "is_array", "live", "matched", "parent", "start", "used")

    def __init__(
        self,
        parent: Scope | None,
        is_array: bool,
        used: tuple[bytes, ...] = (),
        start: int = -1,
        live: tuple[bytes, ...] = (),
        matched: int = 0,
    ) -> None:
        self.parent = parent
        self.is_array = is_array
        self.used = used
        self.start = start
        self.live = live
        self.matched = matched
        self.alive: bool = bool(live) or (parent is not None and parent.alive)

    def expecting(self) -> Scope:
        """Return the scope behind a comma."""
        return self if self.is_array else Scope(self.parent, False, self.used, -1, self.used)

    def begun(self, start: int) -> Scope:
        """Return the scope where a unit begins at an offset of the text."""
        return Scope(self.parent, False, self.used, start, self.live)

    def ended(self, text: bytes) -> Scope | None:
        """Return the scope after a unit with this text; None if the text is used."""
        if self.live and text in self.live:
            return None
        return Scope(self.parent, False, (*self.used, text))

    def fed(self, at: int, data: bytes) -> Scope:
        """Return the scope, and the scopes around it, after bytes of their units.

        Args:
            at: offset of the bytes in the text.
        """
        parent = self.parent
        if parent is not None and parent.alive:
            parent = parent.fed(at, data)
        live, matched = self.live, self.matched
        if live and self.start >= 0:
            chunk = data[max(self.start - at, 0) :]
            live = tuple([text for text in live if text.startswith(chunk, matched)])
            matched += len(chunk)
        elif parent is self.parent:
            return self
        return Scope(parent, self.is_array, self.used, self.start, live, matched)


class Position:
    """A position in a JSON text.

    Attributes:
        mode: kind of the part that is being read.
        scope: the innermost open object or array; None at the top.
        alive: some used text begins with the text of a unit so far, so that the unit could become equal.
    """

    __slots__ = ("alive", "mode", "scope")

    def __init__(self, mode: int, scope: Scope | None) -> None:
        self.mode = mode
        self.scope = scope
        self.alive: bool = scope is not None and scope.alive


START: Final = Position(VALUE, None)
"""Before a value."""


def advance(position: Position, before: bytearray, extra: bytes, data: bytes) -> Position | None:
    """Return the position after more bytes; None if a unit is repeated.

    Args:
        before, extra: the text before the bytes, in two parts.
    """
    mode, scope = position.mode, position.scope
    at = len(before) + len(extra)

    def unit(start: int, end: int) -> bytes:
        if start >= at:
            return data[start - at : end]
        written = extra[start - len(before) :] if start >= len(before) else bytes(before[start:]) + extra
        return written + data[:end]

    for index, byte in enumerate(data):
        if mode == IN_STRING:
            if byte == _QUOTE:
                mode = AFTER
            elif byte == _BACKSLASH:
                mode = STRING_ESCAPE
        elif mode == IN_KEY:
            if byte == _QUOTE:
                assert scope is not None
                mode, scope = COLON, scope.ended(unit(scope.start, index + 1))
                if scope is None:
                    return None
            elif byte == _BACKSLASH:
                mode = KEY_ESCAPE
        elif mode in (KEY_ESCAPE, STRING_ESCAPE):
            mode -= 2
        else:
            if mode == SCALAR and byte in DELIMITERS:
                mode = AFTER
            if byte in _SPACE or mode == SCALAR:
                continue
            if byte == _COMMA:
                assert scope is not None
                mode, scope = VALUE if scope.is_array else KEY, scope.expecting()
            elif byte in (_CLOSE_OBJECT, _CLOSE_ARRAY):
                assert scope is not None
                mode, scope = AFTER, scope.parent
            elif byte == _COLON:
                mode = VALUE
            else:
                # A key or a value begins.
                if mode == KEY:
                    assert scope is not None
                    scope = scope.begun(at + index)
                if byte == _QUOTE:
                    mode = IN_KEY if mode == KEY else IN_STRING
                elif byte == _OPEN_OBJECT:
                    mode, scope = KEY, Scope(scope, False)
                elif byte == _OPEN_ARRAY:
                    mode, scope = VALUE, Scope(scope, True)
                else:
                    mode = SCALAR
    if scope is not None and scope.alive:
        scope = scope.fed(at, data)
    return position if mode == position.mode and scope is position.scope else Position(mode, scope)


def repeated_unit(text: bytes) -> int | None:
    """Return the offset behind the first key that repeats an earlier one in a JSON text; None if there is none."""
    position: Position | None = START
    before = bytearray()
    for byte in text:
        assert position is not None
        position = advance(position, before, b"", bytes((byte,)))
        before.append(byte)
        if position is None:
            return len(before)
    return None
