"""Readers of a call's arguments: from the text that a model writes to fragments of JSON, as the text arrives."""

from __future__ import annotations

import json
import re
from typing import Protocol

import msgspec

from radixrt.chat.reasoning import overlap
from radixrt.constrained.tags.argument_kinds import member_kinds
from radixrt.constrained.tags.argument_styles import (
    OPENINGS,
    ArgumentStyle,
    Kind,
    is_undecided,
    split_kinds,
)
from radixrt.constrained.tags.tool_formats import ToolFormat
from radixrt.constrained.tags.tools import Tool


class ArgumentsReader(Protocol):
    """Incremental reader of the arguments of one call.

    Attributes:
        done: the arguments are complete.
    """

    @property
    def done(self) -> bool: ...

    def read(self, text: str) -> tuple[str, str]:
        """Take all text that has not been read; return the fragment of JSON that is certain now, and the text that has
        not been read. The fragments together are one JSON object."""


def arguments_reader(form: ToolFormat, tool: Tool | None) -> ArgumentsReader:
    """Return a reader of the arguments of a call.

    Args:
        tool: the tool that is called; None where its schema does not matter.
    """
    return JsonArguments() if form.arguments.is_json else TaggedArguments(form.arguments, tool)


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


class JsonArguments:
    """Arguments that are one JSON object."""

    def __init__(self) -> None:
        self._scanner = ObjectScanner()

    @property
    def done(self) -> bool:
        return self._scanner.done

    def read(self, text: str) -> tuple[str, str]:
        length = self._scanner.scan(text)
        return text[:length], text[length:]


class TaggedArguments:
    """Arguments whose members stand between tags; see `ArgumentStyle`.

    Args:
        tool: its schema decides how values without a mark of their kind are read.
    """

    def __init__(self, style: ArgumentStyle, tool: Tool | None) -> None:
        self._done = False
        self._style = style
        self._schema = None if tool is None or style.marks_kinds else msgspec.json.decode(tool.parameters)
        self._named = style.behind_name
        self._members = 0
        self._kinds: frozenset[Kind] | None = None  # kinds that the open value may have; None between members
        self._kind: Kind | None = None  # kind of the open value, once it is known
        self._scanner: ObjectScanner | None = None  # of an array or object

    @property
    def done(self) -> bool:
        return self._done

    def read(self, text: str) -> tuple[str, str]:
        out = ""
        while not self._done:
            if self._kinds is None:
                read = self._read_name(text)
            elif self._kind is None:
                read = self._read_kind(text)
            else:
                read = self._read_value(text)
            if read is None:
                break
            out += read[0]
            text = read[1]
        return out, text

    def _read_name(self, text: str) -> tuple[str, str] | None:
        """Read up to a value, or find the end of the arguments; None if that is not decided yet."""
        style = self._style
        if not text.startswith(style.opening):
            if style.opening.startswith(text):
                return None
            self._done = True
            return ("}" if self._members else "{}"), text
        end = text.find(self._named, len(style.opening))
        if end < 0:
            return None
        kinds = self._kinds_before(text, end)
        if kinds is None:
            return None
        name = text[len(style.opening) : end]
        mark = style.before_value(next(iter(kinds))) if style.marks_kinds else self._named
        self._kinds = kinds if style.marks_kinds else member_kinds(self._schema, name)
        self._kind = next(iter(self._kinds)) if len(self._kinds) == 1 else None
        before = ("," if self._members else "{") + json.dumps(name, ensure_ascii=False) + ":"
        self._members += 1
        return before + self._begin(), text[end + len(mark) :]

    def _kinds_before(self, text: str, end: int) -> frozenset[Kind] | None:
        """Return the kinds that the mark at an offset names; None if the mark is not complete."""
        style = self._style
        if not style.marks_kinds:
            return frozenset()
        for kind, mark in style.named.items():
            if text.startswith(mark, end):
                return frozenset[Kind](("number" if kind is None else kind,))  # a JSON text, as all but strings
        return None

    def _begin(self) -> str:
        """Return the JSON before the value, once its kind is known."""
        self._scanner = None
        return '"' if self._kind == "string" else ""

    def _read_kind(self, text: str) -> tuple[str, str] | None:
        """Find out of which kind the value is."""
        assert self._kinds is not None
        others = self._kinds - {"string"}
        whole, closing, _ = text.partition(self._style.closing)
        if "string" not in self._kinds:
            if not text:
                return None
            self._kind = next((kind for kind in OPENINGS if text.startswith(OPENINGS[kind])), "number")
        elif closing:
            self._kind = split_kinds(whole, others)
        elif any(text.startswith(OPENINGS[kind]) for kind in OPENINGS if kind in others):
            self._kind = split_kinds(text, others)
        else:
            sure = text[: len(text) - overlap(text, self._style.closing)]
            if is_undecided(sure, others):
                return None
            self._kind = "string"
        return self._begin(), text

    def _read_value(self, text: str) -> tuple[str, str] | None:
        closing = self._style.closing
        if self._kind != "string" and self._scanner is None and text.startswith(("[", "{")):
            self._scanner = ObjectScanner()
        if self._scanner is not None and not self._scanner.done:
            length = self._scanner.scan(text)
            return (text[:length], text[length:]) if length else None
        found = text.find(closing)
        if found >= 0:
            rest = text[found + len(closing) :]
            shown = self._shown(text[:found]) + ('"' if self._kind == "string" else "")
            self._kinds = self._kind = None
            return shown, rest
        sure = len(text) - overlap(text, closing)
        return (self._shown(text[:sure]), text[sure:]) if sure else None

    def _shown(self, text: str) -> str:
        """Return a part of the value as JSON."""
        return json.dumps(text, ensure_ascii=False)[1:-1] if self._kind == "string" else text
