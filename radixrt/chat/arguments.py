"""Readers of a call's arguments: from the text that a model writes to fragments of JSON, as the text arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from radixrt.chat.reasoning import overlap
from radixrt.constrained.tags.argument_kinds import ValuePlace
from radixrt.constrained.tags.argument_styles import (
    NAME,
    OPENINGS,
    ArgumentStyle,
    Kind,
    is_undecided,
    nested_kind,
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


@dataclass(slots=True)
class _Frame:
    """An object or array whose tags are being read.

    Attributes:
        place: its place in the schema; None for styles that mark kinds.
        count: number of its members or items so far.
    """

    place: ValuePlace | None
    is_array: bool = False
    count: int = 0


class TaggedArguments:
    """Arguments whose members stand between tags; see `ArgumentStyle`.

    Args:
        tool: its schema decides how values without a mark of their kind are read.
    """

    def __init__(self, style: ArgumentStyle, tool: Tool | None) -> None:
        self._done = False
        self._style = style
        schema = None if tool is None or style.marks_kinds else msgspec.json.decode(tool.parameters)
        self._frames = [_Frame(None if style.marks_kinds else ValuePlace.of(schema))]
        self._named = style.behind_name
        # The text after a value; between the two parts stands the name of the member, if it is repeated.
        self._closing, _, self._closed = style.closing.partition(NAME)
        self._place: ValuePlace | None = None  # of the open value
        self._kinds: frozenset[Kind] | None = None  # kinds that the open value may have; None between values
        self._kind: Kind | None = None  # kind of the open value, once it is known
        self._scanner: ObjectScanner | None = None  # of an array or object in JSON

    @property
    def done(self) -> bool:
        return self._done

    def read(self, text: str) -> tuple[str, str]:
        out = ""
        while not self._done:
            if self._kinds is None:
                read = self._read_tag(text)
            elif self._kind is None:
                read = self._read_kind(text)
            else:
                read = self._read_value(text)
            if read is None:
                break
            out += read[0]
            text = read[1]
        return out, text

    # --- between values ---

    def _read_tag(self, text: str) -> tuple[str, str] | None:
        """Read up to a value, or the end of an object or array; None if that is not decided yet."""
        frame = self._frames[-1]
        is_root = len(self._frames) == 1
        if not is_root or self._style.repeats_name:
            # A closing tag may begin as an opening one does.
            if text.startswith(self._closing):
                return self._end_root(text) if is_root else self._end_container(text)
            if self._closing.startswith(text):
                return None
        return self._read_item(frame, text) if frame.is_array else self._read_name(frame, text)

    def _end_root(self, text: str) -> tuple[str, str]:
        self._done = True
        return ("}" if self._frames[0].count else "{}"), text

    def _end_container(self, text: str) -> tuple[str, str] | None:
        end = text.find(self._closed, len(self._closing))
        if end < 0:
            return None
        frame = self._frames.pop()
        return ("]" if frame.is_array else "}"), text[end + len(self._closed) :]

    def _read_name(self, frame: _Frame, text: str) -> tuple[str, str] | None:
        style = self._style
        if not text.startswith(style.opening):
            return None if style.opening.startswith(text) else self._end_root(text)
        end = text.find(self._named, len(style.opening))
        if end < 0:
            return None
        kind, mark = self._marked(text, end, style.named)
        if mark is None:
            return None
        name = text[len(style.opening) : end]
        self._open(None if frame.place is None else frame.place.member(name), kind)
        before = "," if frame.count else "{" if len(self._frames) == 1 else ""
        frame.count += 1
        return before + json.dumps(name, ensure_ascii=False) + ":" + self._begin(), text[end + len(mark) :]

    def _read_item(self, frame: _Frame, text: str) -> tuple[str, str] | None:
        kind, mark = self._marked(text, 0, self._style.item)
        if mark is None:
            return None if any(one.startswith(text) for one in self._style.item.values()) else self._end_root(text)
        self._open(None if frame.place is None else frame.place.item, kind)
        before = "," if frame.count else ""
        frame.count += 1
        return before + self._begin(), text[len(mark) :]

    def _marked(self, text: str, at: int, marks: Mapping[Kind | None, str]) -> tuple[Kind | None, str | None]:
        """Return the kind and the text of the mark at an offset; no text if the mark is not complete."""
        for kind, mark in marks.items():
            if text.startswith(mark, at):
                return kind or "number", mark  # a JSON text, as all but strings
        return None, None

    def _open(self, place: ValuePlace | None, kind: Kind | None) -> None:
        """Begin a value at a place, or of a kind that its mark names."""
        self._place = place
        self._kinds = frozenset[Kind]((kind or "number",)) if place is None else place.kinds
        self._kind = next(iter(self._kinds)) if len(self._kinds) == 1 else None

    def _begin(self) -> str:
        """Return the JSON before the value, once its kind is known."""
        self._scanner = None
        kind = self._kind
        if kind in ("array", "object") and self._style.nests:
            self._frames.append(_Frame(self._place, is_array=kind == "array"))
            self._kinds = self._kind = None
            return OPENINGS[kind]
        return '"' if self._kind == "string" else ""

    # --- values ---

    def _read_kind(self, text: str) -> tuple[str, str] | None:
        """Find out of which kind the value is."""
        assert self._kinds is not None
        style, others = self._style, self._kinds - {"string"}
        if style.nests:
            # An object or array begins with a tag, and an empty value with its closing tag.
            item = style.before_item("string")
            if self._closing.startswith(text) or item.startswith(text):
                return None
            if text.startswith((self._closing, style.opening)):
                shown = "" if text.startswith(self._closing) else text
                self._kind = nested_kind(shown, self._kinds, style)
                return self._begin(), text
            others -= OPENINGS.keys()
        whole, closing, _ = text.partition(self._closing)
        if "string" not in self._kinds:
            if not text:
                return None
            self._kind = next((kind for kind in OPENINGS if text.startswith(OPENINGS[kind])), "number")
        elif closing:
            self._kind = split_kinds(whole, others)
        elif any(text.startswith(OPENINGS[kind]) for kind in OPENINGS if kind in others):
            self._kind = split_kinds(text, others)
        else:
            sure = text[: len(text) - overlap(text, self._closing)]
            if is_undecided(sure, others):
                return None
            self._kind = "string"
        return self._begin(), text

    def _read_value(self, text: str) -> tuple[str, str] | None:
        if self._kind != "string" and self._scanner is None and text.startswith(("[", "{")):
            self._scanner = ObjectScanner()
        if self._scanner is not None and not self._scanner.done:
            length = self._scanner.scan(text)
            return (text[:length], text[length:]) if length else None
        found = text.find(self._closing)
        end = -1 if found < 0 else text.find(self._closed, found + len(self._closing))
        if end >= 0:
            shown = self._shown(text[:found]) + ('"' if self._kind == "string" else "")
            self._kinds = self._kind = None
            return shown, text[end + len(self._closed) :]
        sure = len(text) - overlap(text, self._closing) if found < 0 else found
        return (self._shown(text[:sure]), text[sure:]) if sure else None

    def _shown(self, text: str) -> str:
        """Return a part of the value as JSON."""
        return json.dumps(text, ensure_ascii=False)[1:-1] if self._kind == "string" else text
