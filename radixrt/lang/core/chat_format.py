"""`ChatFormat`: renders a conversation with the model's own chat template, as pieces of text.

Pieces separate the template's text, in which control tokens are read, from message contents, in which they are not.
The caller compares the rendered text with what was sent before, which detects templates that rewrite earlier turns,
strip contents or insert the date.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.errors import RequestError
from radixrt.lang.core.transcript import Message
from radixrt.lang.pictures import Picture
from radixrt.tokenizer.chat_template import ChatTemplate

MAX_SHAPES = 4096
"""Maximum number of cached shapes. A shape is a rendering with markers in the place of contents."""

_MARK = re.compile("\ue000c([0-9]+)\ue001")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a prompt.

    Attributes:
        template: written by the chat template, not by the program or the model.
        picture: the picture for which the template has written the text, an image token; None for any other text.
    """

    text: str
    template: bool
    picture: Picture | None = None

    @property
    def shown(self) -> str:
        """The text, or the label of the picture."""
        return self.text if self.picture is None else self.picture.label


@dataclass(frozen=True, slots=True)
class _Ending:
    """End of a rendering: after the last message, with an assistant header, or inside the last message."""

    header: bool = False
    inside: bool = False


class ChatFormat:
    """See the module's docstring. Thread-safe.

    Args:
        templates: name -> Jinja source; special_tokens: name -> text, which templates see as variables.

    Raises:
        ModelLoadError: a template does not compile.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._template = ChatTemplate(templates, special_tokens)
        self._shapes: dict[tuple[Any, ...], tuple[str | int, ...] | None] = {}
        self._lock = threading.Lock()  # the template renders one conversation at a time

    def render(
        self, messages: Sequence[Message], *, open: bool = False, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[Piece]:
        """The text of a conversation.

        Args:
            open: the last message is to be continued. An assistant's begins behind the template's generation prompt.
            tools: definitions that the template is given.

        Raises:
            RequestError: the template refuses these messages.
        """
        with self._lock:
            if not open:
                return self._pieces(messages, _Ending(), tools)
            last = messages[-1]
            if last.role == "assistant" and len(messages) > 1:
                pieces = self._pieces(messages[:-1], _Ending(header=True), tools)
                return [*pieces, Piece(last.content, False)] if last.content else pieces
            return self._pieces(messages, _Ending(inside=True), tools)

    def picture_text(self) -> str | None:
        """Return the template's text for a picture between two texts; None if the picture is written elsewhere."""
        before, after = _mark(0), _mark(1)
        with self._lock:
            text = self._rendered([{"role": "user", "content": _content((before, None, after))}], _Ending(), ())
        start, end = text.find(before), text.find(after)
        return text[start + len(before) : end] if 0 <= start < end else None

    def _pieces(self, messages: Sequence[Message], ending: _Ending, tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
        plain = [_plain(m) for m in messages]
        text = self._rendered(plain, ending, tools)
        contents = [part for m in messages for part in m.parts or (m.content,) if isinstance(part, str)]
        stripped = [content.strip() for content in contents]
        heads = tuple(_head(m) for m in messages)
        shape = self._shape(heads, ending, tools)
        for filled in (contents, stripped):
            if shape is not None and (pieces := _fill(shape, filled, text)) is not None:
                return pieces
        # A template may parse assistant contents, e.g. to drop their reasoning; then only the other contents are
        # replaced by markers.
        marks = map(_mark, itertools.count())
        marked = []
        for (role, _, kinds), each in zip(heads, plain, strict=True):
            content = _marked(kinds, marks)
            marked.append(each if role == "assistant" else {**each, "content": content})
        shape = self._split(marked, ending, tools)
        for filled in (contents, stripped):
            if shape is not None and (pieces := _fill(shape, filled, text)) is not None:
                return pieces
        return [Piece(text, True)]

    def _shape(
        self, heads: tuple[_Head, ...], ending: _Ending, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str | int, ...] | None:
        """The template's texts and the indices of the texts of messages that are between them; None where the template
        refuses the markers."""
        key = (heads, ending, msgspec.json.encode(tools) if tools else b"")
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            marks = map(_mark, itertools.count())
            marked = [
                {"role": role, "content": _marked(kinds, marks), **({"name": name} if name else {})}
                for role, name, kinds in heads
            ]
            self._shapes[key] = self._split(marked, ending, tools)
        return self._shapes[key]

    def _split(
        self, marked: list[dict[str, Any]], ending: _Ending, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str | int, ...] | None:
        try:
            text = self._rendered(marked, ending, tools)
        except RequestError:
            return None
        split = _MARK.split(text)  # text, number, text, number, ..., text
        return tuple(int(part) if i % 2 else part for i, part in enumerate(split))

    def _rendered(self, messages: list[dict[str, Any]], ending: _Ending, tools: Sequence[Mapping[str, Any]]) -> str:
        return self._template.render(
            messages,
            add_generation_prompt=ending.header,
            continue_final_message=ending.inside,
            tools=[dict(tool) for tool in tools] or None,
        )


def _plain(m: Message) -> dict[str, Any]:
    """The message for the template; a tool's result has the name of the function, which some templates write."""
    name = {} if m.answers is None else {"name": m.answers["function"]["name"]}
    return {"role": m.role, "content": _content(m.parts) if m.parts else m.content, **name}


def _content(parts: Sequence[str | Picture | None]) -> list[dict[str, Any]]:
    """The content of a message with pictures for the template, which does not see the pictures themselves."""
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]


_Head = tuple[str, str, tuple[bool, ...]]
"""Role of a message, name of the function, and for a content with pictures whether each part is a text."""


def _head(m: Message) -> _Head:
    name = "" if m.answers is None else m.answers["function"]["name"]
    return m.role, name, tuple(isinstance(part, str) for part in m.parts)


def _marked(kinds: tuple[bool, ...], marks: Iterator[str]) -> str | list[dict[str, Any]]:
    """The content of a message with a marker in place of each text.

    Args:
        kinds: see `_Head`.
    """
    return _content([next(marks) if is_text else None for is_text in kinds]) if kinds else next(marks)


def _mark(i: int) -> str:
    return f"\ue000c{i}\ue001"


def _fill(shape: tuple[str | int, ...], contents: Sequence[str], text: str) -> list[Piece] | None:
    """The pieces of a shape with these contents, if they join to the text."""
    if any(isinstance(part, int) and part >= len(contents) for part in shape):
        return None
    pieces = [Piece(part, True) if isinstance(part, str) else Piece(contents[part], False) for part in shape]
    pieces = [piece for piece in pieces if piece.text]
    return pieces if "".join(piece.text for piece in pieces) == text else None
