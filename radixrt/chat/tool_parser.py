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

from radixrt.chat.arguments import arguments_reader
from radixrt.chat.reasoning import overlap
from radixrt.constrained.tags.tool_formats import INDEX, NAME, ToolFormat
from radixrt.constrained.tags.tools import Tool


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

    Newlines between text and a call belong to neither.

    Args:
        form: format in which the model writes calls.
        tools: the tools that the model may call.

    Attributes:
        complete: the text holds at least one call, and every call is complete.
    """

    def __init__(self, form: ToolFormat, tools: Iterable[Tool]) -> None:
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        begin, trigger = form.begin, form.trigger if form.in_text else ""
        self._first = _Head((begin + form.opening).removeprefix(trigger))
        self._optional = None if form.optional_token is None else _Head(form.optional_token + begin + form.opening)
        self._next = _Head(form.separator + form.opening) if form.several and not (form.in_text and not begin) else None
        self._state = _State.TEXT if form.in_text else _State.HEAD
        self._triggered = False
        self._buffer = ""
        self._calls = 0
        self._said = False  # text has been returned
        self._resumes = False  # a call has ended, and no text has been returned since
        self._arguments = arguments_reader(form, None)
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
            if self._resumes:
                held = held.strip("\n")
            return [self._text(held)] if held else []
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
            return self._read_first()
        if self._state is _State.ARGUMENTS:
            return self._read_arguments()
        if self._state is _State.AFTER:
            return self._read_after()
        return self._take(len(self._buffer))

    def _take(self, length: int) -> Text | None:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return self._text(text) if text else None

    def _text(self, text: str) -> Text:
        """Text for the user; behind a call, it begins a line."""
        gap = "\n" if self._resumes and self._said else ""
        self._said, self._resumes = True, False
        return Text(gap + text)

    def _read_text(self) -> Part | None:
        trigger = self._form.trigger
        if self._resumes:
            self._buffer = self._buffer.lstrip("\n")
        found = self._buffer.find(trigger)
        if found < 0:
            kept = self._buffer[: len(self._buffer) - overlap(self._buffer, trigger)]
            return self._take(len(kept.rstrip("\n")))
        text = self._buffer[:found].rstrip("\n")
        self._buffer = self._buffer[found + len(trigger) :]
        self._state = _State.HEAD
        self._triggered = True
        return self._text(text) if text else self._step()

    def _read_first(self) -> Part | None:
        """Read the head of the first call, or find out that the text is none."""
        for head in (self._first, self._optional):
            if head is not None and (found := head.read(self._buffer)) is not _NO_HEAD:
                return self._begin_call(found)
        return self._plain()

    def _begin_call(self, found: tuple[str, int] | None) -> Part | None:
        if found is None:
            return None
        name, length = found
        if name not in self._tools:
            return self._plain()
        self._buffer = self._buffer[length:]
        self._state = _State.ARGUMENTS
        self._arguments = arguments_reader(self._form, self._tools[name])
        self._calls += 1
        self.complete = False
        return CallBegin(self._calls - 1, name)

    def _plain(self) -> Part | None:
        self._state = _State.PLAIN
        return self._step()

    def _read_arguments(self) -> Part | None:
        text, self._buffer = self._arguments.read(self._buffer)
        if self._arguments.done:
            self._state = _State.AFTER
        return CallArguments(self._calls - 1, text) if text else self._step() if self._arguments.done else None

    def _read_after(self) -> Part | None:
        """Read the text after the arguments: the end, or the separator before another call, which may begin alike."""
        form = self._form
        if not self._buffer.startswith(form.tail):
            return self._plain() if not form.tail.startswith(self._buffer) else None
        rest = self._buffer[len(form.tail) :]
        self.complete = rest.startswith(form.end)
        found = _NO_HEAD if self._next is None else self._next.read(rest)
        if found is not None and found is not _NO_HEAD:
            self._buffer = rest
            return self._begin_call(found)
        if found is None and not (self.complete and form.end):
            return None
        if not self.complete:
            return self._plain() if not form.end.startswith(rest) else None
        if form.in_text:
            self._buffer = rest[len(form.end) :]
            self._state, self._triggered, self._resumes = _State.TEXT, False, True
        elif len(rest) > len(form.end):
            self._buffer = rest[len(form.end) :]
            self._state = _State.PLAIN
        else:
            return None
        return self._step()


_NO_HEAD: tuple[str, int] = ("", -1)
"""The text does not begin a call."""


class _Head:
    """The text of a call up to its arguments, for any tool.

    Args:
        opening: constant texts, with `NAME` once and perhaps `INDEX`.
    """

    _WORD = re.compile(r"[A-Za-z0-9_.-]*")
    _DIGITS = re.compile(r"[0-9]*")
    _BLANKS = re.compile(f"({re.escape(NAME)}|{re.escape(INDEX)})")

    def __init__(self, opening: str) -> None:
        self._parts = [part for part in self._BLANKS.split(opening) if part]

    def read(self, text: str) -> tuple[str, int] | None:
        """Return the name of the tool and the length of the head; None if the text may become a head, and `_NO_HEAD` if
        it cannot."""
        at, name = 0, ""
        for part in self._parts:
            if part in (NAME, INDEX):
                found = (self._WORD if part == NAME else self._DIGITS).match(text, at)
                assert found is not None
                at = found.end()
                if part == NAME:
                    name = found.group()
                if at == len(text):
                    return None  # the name or the number may go on
                if not found.group():
                    return _NO_HEAD
            elif text.startswith(part, at):
                at += len(part)
            else:
                return None if part.startswith(text[at:]) else _NO_HEAD
        return name, at


def read_tool_calls(text: str, form: ToolFormat, tools: Iterable[Tool]) -> tuple[str, list[dict[str, Any]]]:
    """Split a whole answer into its text and its complete calls, the calls as in the OpenAI API."""
    parser = ToolCallParser(form, tools)
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
