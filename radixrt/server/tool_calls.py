"""`ToolCallParser`: a model's text, in pieces as they come, into what it says and the calls that it makes.

The text was written under the constraint of `radixrt.constrained.tags.tools`, so that calls have exactly the form that
is looked for. Text that does not (an answer that was aborted in the middle of a call) never passes for a complete call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from radixrt.constrained.tags.tools import ToolFormat


@dataclass(frozen=True, slots=True)
class Text:
    """What the model says to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A fragment of a call's arguments, which are JSON once all of them have come."""

    index: int
    text: str


Part = Text | CallBegin | CallArguments


class _State(Enum):
    TEXT = auto()  # free text in which a call may begin
    HEAD = auto()  # the text of a call up to its arguments, or still something else
    ARGUMENTS = auto()
    AFTER = auto()  # what follows a call: another one, or the end
    PLAIN = auto()  # text in which no call can begin any more


class ToolCallParser:
    """See the module's docstring. No marker, and no part of one, is ever given out as text.

    Newlines between the text and the first call belong to neither.

    Args:
        form: how the model writes calls.
        names: the tools that it may call.

    Attributes:
        complete: at least one call was made and all of them are whole.
    """

    def __init__(self, form: ToolFormat, names: Iterable[str]) -> None:
        self._form = form
        heads = {form.head(name): name for name in names}
        trigger = form.trigger if form.in_text else ""
        self._first = {(form.begin + head).removeprefix(trigger): name for head, name in heads.items()}
        if form.optional_token is not None:
            self._first |= {form.optional_token + head: name for head, name in self._first.items()}
        self._next = {form.tail + form.separator + head: name for head, name in heads.items()} if form.several else {}
        self._end = form.tail + form.end
        self._state = _State.TEXT if form.in_text else _State.HEAD
        self._triggered = False
        self._buffer = ""
        self._calls = 0
        self._scanner = _ObjectScanner()
        self.complete = False

    def feed(self, text: str) -> list[Part]:
        """What is certain now."""
        self._buffer += text
        parts: list[Part] = []
        while (part := self._step()) is not None:
            parts.append(part)
        return parts

    def finish(self) -> list[Part]:
        """What was held back, at the end of the text."""
        held, self._buffer = self._buffer, ""
        if self._state is _State.TEXT or (self._state is _State.HEAD and not self._is_call(held)):
            return [Text(held)] if held else []
        return []

    def _is_call(self, held: str) -> bool:
        form = self._form
        marked = form.optional_token is not None and held.startswith(form.optional_token)
        return self._triggered or marked or held.startswith(form.trigger)

    def _step(self) -> Part | None:
        """Take one part off the buffer; None if nothing more is certain."""
        if self._state is _State.TEXT:
            return self._read_text()
        if self._state is _State.HEAD:
            return self._read_head(self._first)
        if self._state is _State.ARGUMENTS:
            return self._read_arguments()
        if self._state is _State.AFTER:
            return self._read_after()
        return self._take(len(self._buffer))

    def _take(self, length: int) -> Text | None:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return Text(text) if text else None

    def _read_text(self) -> Part | None:
        trigger = self._form.trigger
        found = self._buffer.find(trigger)
        if found < 0:
            kept = self._buffer[: len(self._buffer) - _overlap(self._buffer, trigger)]
            return self._take(len(kept.rstrip("\n")))
        text = self._buffer[:found].rstrip("\n")
        self._buffer = self._buffer[found + len(trigger) :]
        self._state = _State.HEAD
        self._triggered = True
        return Text(text) if text else self._step()

    def _read_head(self, heads: dict[str, str]) -> Part | None:
        begun = False
        for head, name in heads.items():
            if self._buffer.startswith(head):
                self._buffer = self._buffer[len(head) :]
                self._state = _State.ARGUMENTS
                self._scanner = _ObjectScanner()
                self._calls += 1
                self.complete = False
                return CallBegin(self._calls - 1, name)
            begun = begun or head.startswith(self._buffer)
        if begun:
            return None
        self._state = _State.PLAIN
        return self._step()

    def _read_arguments(self) -> Part | None:
        if not self._buffer:
            return None
        length = self._scanner.scan(self._buffer)
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        if self._scanner.done:
            self._state = _State.AFTER
        return CallArguments(self._calls - 1, text)

    def _read_after(self) -> Part | None:
        """What follows the arguments: the end, which may be the beginning of what stands before another call."""
        if any(self._buffer.startswith(head) for head in self._next):
            return self._read_head(self._next)
        self.complete = self._buffer.startswith(self._end)
        if self._end.startswith(self._buffer) or any(head.startswith(self._buffer) for head in self._next):
            return None
        self._buffer = self._buffer.removeprefix(self._end)
        self._state = _State.PLAIN
        return self._step()


def _overlap(text: str, trigger: str) -> int:
    """Length of the longest end of `text` with which `trigger` begins, short of all of it."""
    for length in range(min(len(text), len(trigger) - 1), 0, -1):
        if text.endswith(trigger[:length]):
            return length
    return 0


class _ObjectScanner:
    """Finds the end of a JSON object that comes in pieces; `done` once it has.

    Only quotes, escapes and brackets are looked at.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "done")

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.done = False

    def scan(self, text: str) -> int:
        """How much of the text belongs to the object."""
        at = 0
        if self._escaped and text:
            self._escaped = False
            at = 1
        while True:
            found = (self._INSIDE if self._in_string else self._OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            char = found.group()
            if char == '"':
                self._in_string = not self._in_string
            elif char == "\\":
                if at == len(text):
                    self._escaped = True
                    return at
                at += 1
            else:
                self._depth += 1 if char in "{[" else -1
                if self._depth == 0:
                    self.done = True
                    return at
