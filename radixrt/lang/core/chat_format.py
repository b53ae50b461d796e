"""`ChatFormat`: a conversation as the text that the model's own chat template makes of it, in pieces.

The pieces tell the template's text, whose control tokens count, from the contents, in which nothing is a control token.
Whether the text goes on from what was sent before is for the caller to see: it compares the texts, so that a template
that rewrites earlier turns, strips contents or changes with the date is noticed whatever its reasons are.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.errors import RequestError
from radixrt.lang.core.transcript import Message
from radixrt.tokenizer.chat_template import ChatTemplate

MAX_SHAPES = 4096
"""Conversations' shapes whose pieces are remembered."""

_MARK = re.compile("\ue000c([0-9]+)\ue001")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a prompt, by the template or by the program and the model."""

    text: str
    template: bool


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a rendering ends: after the last message, with the header of an assistant's, or inside the last message."""

    header: bool = False
    inside: bool = False


class ChatFormat:
    """See the module's docstring. May be used from several threads.

    Args:
        templates: name -> Jinja source; special_tokens: name -> text, which templates see as variables.

    Raises:
        ModelLoadError: a template does not compile.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._template = ChatTemplate(templates, special_tokens)
        self._shapes: dict[tuple[Any, ...], tuple[str | int, ...] | None] = {}
        self._lock = threading.Lock()  # a template renders one conversation at a time

    def render(
        self, messages: Sequence[Message], *, open: bool = False, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[Piece]:
        """The text of a conversation.

        Args:
            open: the last message goes on. That of an assistant begins behind the template's generation prompt.
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

    def _pieces(self, messages: Sequence[Message], ending: _Ending, tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
        plain = [{"role": m.role, "content": m.content} for m in messages]
        text = self._rendered(plain, ending, tools)
        contents = [m.content for m in messages]
        stripped = [content.strip() for content in contents]
        shape = self._shape(tuple(m.role for m in messages), ending, tools)
        for filled in (contents, stripped):
            if shape is not None and (pieces := _fill(shape, filled, text)) is not None:
                return pieces
        # A template may read what assistants said, e.g. to leave out their reasoning; then only the others' contents
        # are found by marks.
        marked = [m if m["role"] == "assistant" else {**m, "content": _mark(i)} for i, m in enumerate(plain)]
        shape = self._split(marked, ending, tools)
        for filled in (contents, stripped):
            if shape is not None and (pieces := _fill(shape, filled, text)) is not None:
                return pieces
        return [Piece(text, True)]

    def _shape(
        self, roles: tuple[str, ...], ending: _Ending, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str | int, ...] | None:
        """The template's texts and the numbers of the messages whose contents stand between them; None where the
        template refuses contents that it does not know."""
        key = (roles, ending, msgspec.json.encode(tools) if tools else b"")
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            marked = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
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


def _mark(i: int) -> str:
    return f"\ue000c{i}\ue001"


def _fill(shape: tuple[str | int, ...], contents: Sequence[str], text: str) -> list[Piece] | None:
    """The pieces, if they come to that text."""
    if any(isinstance(part, int) and part >= len(contents) for part in shape):
        return None
    pieces = [Piece(part, True) if isinstance(part, str) else Piece(contents[part], False) for part in shape]
    pieces = [piece for piece in pieces if piece.text]
    return pieces if "".join(piece.text for piece in pieces) == text else None
