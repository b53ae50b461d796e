"""`Position`: the open objects and arrays of a JSON text so far, with the texts of keys and items that matter.

The text is one that a grammar of JSON allows, so the scanner does not check the syntax. It reads bytes, because tokens
may end inside a character. Positions and scopes are immutable, so that a copy of a position is a pointer, and going
back to an earlier position costs nothing.

A *unit* is a key of an object, or an item of an array whose items must differ, or of which two must be equal. A unit
that is written twice in a scope of the first kind is a violation. A violation of the other kind is an array that ends
without two equal units, or whose last possible unit repeats none. Units are compared as texts: the grammar gives equal
keys, and equal items, the same text but for the order of the members of objects.
"""

from __future__ import annotations

from collections.abc import Callable
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
OUTSIDE: Final = 9
"""In text around JSON."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"
SPACE: Final = frozenset(b" \t\n\r")
DELIMITERS: Final = b",]} \t\n\r"
"""Bytes that end a number, true, false or null."""

FREE: Final = 0
"""Kind of a scope whose units may be equal."""
DISTINCT: Final = 1
"""Kind of a scope whose units must differ."""
REPEATING: Final = 2
"""Least kind of an array of which two items must be equal: REPEATING plus the largest number of items, or REPEATING
alone if there is none. After an item that repeats another the scope is FREE."""
NO_JSON: Final = -1
"""In place of a kind: the character opens no scope, because it is text around JSON."""


class Scope:
    """An open object or array.

    Attributes:
        parent: the scope around it; None for the outermost.
        is_array: whether it is an array.
        kind: FREE, DISTINCT, or REPEATING and above.
        used: the texts of its units so far, if it is not FREE.
        start: offset in the text of the unit that is being written; -1 where none is.
        live: the used texts that begin with the unit's text so far. While a unit is expected, all used texts.
        matched: number of bytes of the unit's text so far, while `live` is not empty.
        alive: `live` of a DISTINCT scope, this one or one around it, is not empty.
        num_live: number of texts in `live` of these scopes.
        followed: `live` of this scope, or of one around it, is not empty.
        repeating: this scope, or one around it, is REPEATING.
        is_last: the unit that is expected or being written is the last one, and must repeat one of `live`.
        must_repeat: `is_last` of this scope, or of one around it.
    """

    __slots__ = (
        "alive",
        "followed",
        "is_array",
        "is_last",
        "kind",
        "live",
        "matched",
        "must_repeat",
        "num_live",
        "parent",
        "repeating",
        "start",
        "used",
    )

    def __init__(
        self,
        parent: Scope | None,
        is_array: bool,
        kind: int,
        used: tuple[bytes, ...] = (),
        start: int = -1,
        live: tuple[bytes, ...] = (),
        matched: int = 0,
    ) -> None:
        self.parent = parent
        self.is_array = is_array
        self.kind = kind
        self.used = used
        self.start = start
        self.live = live
        self.matched = matched
        self.num_live: int = len(live) if kind == DISTINCT else 0
        self.followed = bool(live)
        self.repeating = kind >= REPEATING
        self.is_last = self.must_repeat = kind > REPEATING and len(used) == kind - REPEATING - 1 and self.followed
        if parent is not None:
            self.num_live += parent.num_live
            self.followed = self.followed or parent.followed
            self.repeating = self.repeating or parent.repeating
            self.must_repeat = self.must_repeat or parent.must_repeat
        self.alive = self.num_live > 0

    def expecting(self) -> Scope:
        """Return the scope behind a comma."""
        if self.kind == FREE:
            return self
        return Scope(self.parent, self.is_array, self.kind, self.used, -1, self.used)

    def begun(self, start: int) -> Scope:
        """Return the scope where a unit begins at an offset of the text."""
        return Scope(self.parent, self.is_array, self.kind, self.used, start, self.live)

    def ended(self, text: bytes) -> Scope | None:
        """Return the scope after a unit with this text; None if the unit may not be equal to a used one, and is, or
        must be, and is not."""
        repeats = bool(self.live) and text in self.live
        if (repeats and self.kind == DISTINCT) or (self.is_last and not repeats):
            return None
        return Scope(self.parent, self.is_array, FREE if repeats else self.kind, (*self.used, text))

    def fed(self, at: int, data: bytes) -> Scope | None:
        """Return the scope, and the scopes around it, after bytes of their units; None if a unit that must repeat
        another can no longer do so.

        Args:
            at: offset of the bytes in the text.
        """
        parent = self.parent
        if parent is not None and parent.followed:
            parent = parent.fed(at, data)
            if parent is None:
                return None
        live, matched = self.live, self.matched
        if live and self.start >= 0:
            chunk = data[max(self.start - at, 0) :]
            live = tuple([text for text in live if text.startswith(chunk, matched)])
            matched += len(chunk)
            if self.is_last and not live:
                return None
        elif parent is self.parent:
            return self
        return Scope(parent, self.is_array, self.kind, self.used, self.start, live, matched)

    def respelled(self) -> Scope:
        """Return the scope where a member of an object is expected, within items of arrays around the object: any of
        the members that are left in a used item may come next."""
        parent = self.parent
        if parent is not None and parent.followed:
            parent = parent.respelled()
        live = self.live
        if live and self.is_array and self.start >= 0:
            live = tuple(dict.fromkeys([one for text in live for one in _rotations(text, self.matched)]))
        elif parent is self.parent:
            return self
        return Scope(parent, self.is_array, self.kind, self.used, self.start, live, self.matched)


def _rotations(text: bytes, at: int) -> list[bytes]:
    """Return the text with each of the members that are left in an object as the next.

    Args:
        at: offset at which a member begins.
    """
    members: list[bytes] = []
    start, depth, quoted = at, 0, False
    end = at
    while end < len(text):
        byte = text[end]
        if quoted:
            if byte == _BACKSLASH:
                end += 1
            elif byte == _QUOTE:
                quoted = False
        elif byte == _QUOTE:
            quoted = True
        elif byte in b"{[":
            depth += 1
        elif byte in b"}]":
            if depth == 0:
                break
            depth -= 1
        elif byte == _COMMA and depth == 0:
            members.append(text[start:end])
            start = end + 1
        end += 1
    members.append(text[start:end])
    if len(members) == 1:
        return [text]
    others = [b",".join([one, *members[:place], *members[place + 1 :]]) for place, one in enumerate(members)]
    return [text[:at] + one + text[end:] for one in others]


def next_member(text: bytes) -> int:
    """Return an offset before which no member of an object begins: behind the first comma, or the first bracket that
    opens an object; the length of the text if there is none."""
    found = [at + 1 for at in (text.find(b","), text.find(b"{")) if at >= 0]
    return min(found, default=len(text))


class Position:
    """A position in a JSON text.

    Attributes:
        mode: kind of the part that is being read.
        scope: the innermost open object or array; None at the top.
        alive: some used text begins with the text of a unit so far, so that the unit could become equal, and may not.
        followed: likewise, also for a unit that may become equal.
        repeating: some open array is REPEATING.
        must_repeat: a unit must repeat a used one.
    """

    __slots__ = ("alive", "followed", "mode", "must_repeat", "repeating", "scope")

    def __init__(self, mode: int, scope: Scope | None) -> None:
        self.mode = mode
        self.scope = scope
        self.alive: bool = scope is not None and scope.alive
        self.followed: bool = scope is not None and scope.followed
        self.repeating: bool = scope is not None and scope.repeating
        self.must_repeat: bool = scope is not None and scope.must_repeat


START: Final = Position(VALUE, None)
"""Before a value."""
START_OUTSIDE: Final = Position(OUTSIDE, None)
"""Before text around JSON."""


def advance(
    position: Position,
    before: bytearray,
    extra: bytes,
    data: bytes,
    kind_of: Callable[[int, bool], int],
    *,
    keys: int = DISTINCT,
    ordered: bool = True,
    embedded: bool = False,
) -> Position | None:
    """Return the position after more bytes; None after a violation.

    Args:
        before, extra: the text before the bytes, in two parts.
        kind_of: returns the kind of the array that the byte at an index opens. Where the second argument says that the
            byte, a `[` or a `{`, is outside of JSON, NO_JSON if the byte is text around JSON.
        keys: kind of objects.
        ordered: the members of objects in items that must differ have a fixed order.
        embedded: there may be other text around JSON.
    """
    mode, scope = position.mode, position.scope
    if mode == OUTSIDE and _OPEN_OBJECT not in data and _OPEN_ARRAY not in data:
        return position
    at = len(before) + len(extra)
    fed = 0  # number of bytes that the scopes have read

    def unit(start: int, end: int) -> bytes:
        if start >= at:
            return data[start - at : end]
        written = extra[start - len(before) :] if start >= len(before) else bytes(before[start:]) + extra
        return written + data[:end]

    for index, byte in enumerate(data):
        ends = False  # a value ends with this byte
        member = False  # a member is expected after this byte
        if mode == IN_STRING:
            if byte == _QUOTE:
                mode, ends = AFTER, True
            elif byte == _BACKSLASH:
                mode = STRING_ESCAPE
        elif mode == IN_KEY:
            if byte == _QUOTE:
                assert scope is not None
                mode = COLON
                if scope.kind:
                    scope = scope.ended(unit(scope.start, index + 1))
                    if scope is None:
                        return None
            elif byte == _BACKSLASH:
                mode = KEY_ESCAPE
        elif mode in (KEY_ESCAPE, STRING_ESCAPE):
            mode -= 2
        else:
            if mode == OUTSIDE and byte != _OPEN_OBJECT and byte != _OPEN_ARRAY:
                continue
            if mode == SCALAR and byte in DELIMITERS:
                mode = AFTER
                if scope is not None and scope.is_array and scope.kind:
                    scope = scope.ended(unit(scope.start, index))
                    if scope is None:
                        return None
            if byte in SPACE or mode == SCALAR:
                if mode == AFTER and scope is not None and scope.kind >= REPEATING:
                    return None  # only the end of the array may follow whitespace behind an item
                continue
            if byte == _COMMA:
                assert scope is not None
                member = not scope.is_array
                mode, scope = KEY if member else VALUE, scope.expecting()
            elif byte in (_CLOSE_OBJECT, _CLOSE_ARRAY):
                assert scope is not None
                if scope.kind >= REPEATING:
                    return None
                scope = scope.parent
                mode, ends = OUTSIDE if embedded and scope is None else AFTER, True
            elif byte == _COLON:
                mode = VALUE
            else:
                # A key or a value begins.
                outside = mode == OUTSIDE
                opened = kind_of(index, outside) if outside or byte == _OPEN_ARRAY else FREE
                if opened == NO_JSON:
                    continue
                if scope is not None and scope.kind and (mode == KEY or scope.is_array):
                    scope = scope.begun(at + index)
                if byte == _QUOTE:
                    mode = IN_KEY if mode == KEY else IN_STRING
                elif byte == _OPEN_OBJECT:
                    mode, scope, member = KEY, Scope(scope, False, keys), True
                elif byte == _OPEN_ARRAY:
                    mode, scope = VALUE, Scope(scope, True, opened)
                else:
                    mode = SCALAR
        if ends and scope is not None and scope.is_array and scope.kind:
            scope = scope.ended(unit(scope.start, index + 1))
            if scope is None:
                return None
        elif member and not ordered and scope is not None and scope.parent is not None and scope.parent.followed:
            scope = scope.fed(at + fed, data[fed : index + 1])
            if scope is None:
                return None
            scope = scope.respelled()
            fed = index + 1
    if scope is not None and scope.followed:
        scope = scope.fed(at + fed, data[fed:])
        if scope is None:
            return None
    return position if mode == position.mode and scope is position.scope else Position(mode, scope)
