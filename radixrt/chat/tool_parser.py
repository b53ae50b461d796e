"""`ToolCallParser`: splits a model's streamed text into plain text and tool calls.

The text is generated under the constraint of `radixrt.constrained.tags.tools`, so calls have exactly the expected
format. Other text (an answer that was aborted in the middle of a call) is never reported as a complete call.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from radixrt.chat.reasoning import overlap
from radixrt.constrained.tags.tools import ToolFormat


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A fragment of a call's arguments; all fragments together are JSON."""

    index: int
    text: str


Part = Text | CallBegin | CallArguments


class _State(Enum):
    TEXT = auto()  # free text, in which a call may begin
    HEAD = auto()  # possibly the text of a call up to its arguments
    ARGUMENTS = auto()
    AFTER = auto()  # text after a call: another call, or the end
    PLAIN = auto()  # text in which no call can begin


class ToolCallParser:
    """Incremental parser of one answer. No marker, and no part of one, is returned as text.

    Newlines between the text and the first call belong to neither.

    Args:
        form: format in which the model writes calls.
        names: the tools that the model may call.

    Attributes:
        complete: the text holds at least one call, and every call is complete.
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
        self._scanner = ObjectScanner()
        self.complete = False

    def feed(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are certain now."""
        self._buffer += text
        parts: list[Part] = []
        while (part := self._step()) is not None:
            parts.append(part)
        return parts

    def finish(self) -> list[Part]:
        """Return the parts held back until the end of the text."""
        held, self._buffer = self._buffer, ""
        if self._state is _State.TEXT or (self._state is _State.HEAD and not self._is_call(held)):
            return [Text(held)] if held else []
        return []

    def _is_call(self, held: str) -> bool:
        form = self._form
        marked = form.optional_token is not None and held.startswith(form.optional_token)
        return self._triggered or marked or held.startswith(form.trigger)

    def _step(self) -> Part | None:
        """Remove one part from the buffer; None if no further part is certain."""
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
            kept = self._buffer[: len(self._buffer) - overlap(self._buffer, trigger)]
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
                self._scanner = ObjectScanner()
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
        """Read the text after the arguments: the end, or the separator before another call, which may begin alike."""
        if any(self._buffer.startswith(head) for head in self._next):
            return self._read_head(self._next)
        self.complete = self._buffer.startswith(self._end)
        if self._end.startswith(self._buffer) or any(head.startswith(self._buffer) for head in self._next):
            return None
        self._buffer = self._buffer.removeprefix(self._end)
        self._state = _State.PLAIN
        return self._step()


def read_tool_calls(text: str, form: ToolFormat, names: Iterable[str]) -> tuple[str, list[dict[str, Any]]]:
    """Split a whole answer into its text and its complete calls, the calls as in the OpenAI API."""
    parser = ToolCallParser(form, names)
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in [*parser.feed(text), *parser.finish()]:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, CallBegin):
            function = {"name": part.name, "arguments": ""}
            calls.append({"id": new_call_id(), "type": "function", "function": function})
        else:
            calls[part.index]["function"]["arguments"] += part.text
    return "".join(texts), calls if parser.complete else calls[:-1]


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class ObjectScanner:
    """Finds the end of a JSON object that arrives in pieces; `done` is set once the end is found.

    The scanner looks only at quotes, escapes and brackets.
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
        """Return the number of leading characters of the text that belong to the object."""
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
