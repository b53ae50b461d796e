"""A chat answer's text as the parts of a message: reasoning, content, calls; whole or streamed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.constrained.tags.tools import ToolFormat
from radixrt.messages.parts import FINISH_STOP, Finish
from radixrt.server.openai import finish_reason
from radixrt.server.reasoning import THINK_END, ReasoningSplitter, Thinking
from radixrt.server.tool_calls import CallBegin, Text, ToolCallParser
from radixrt.server.tool_calls import Part as CallPart


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


Part = CallPart | Reasoning


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the text of a request's answers can hold.

    Attributes:
        tool_format: how calls are written; None where there are none.
        names: the tools that may be called.
        legacy: calls are told as the older `function_call`.
        thinking: whether reasoning comes first.
        reasoning_end: the marker after it.
        reasoning_end_id: its token, where it is one.
    """

    tool_format: ToolFormat | None = None
    names: tuple[str, ...] = ()
    legacy: bool = False
    thinking: Thinking = Thinking.OFF
    reasoning_end: str = THINK_END
    reasoning_end_id: int | None = None

    @property
    def is_plain(self) -> bool:
        """All of the text is content."""
        return self.tool_format is None and self.thinking is Thinking.OFF

    def parser(self) -> AnswerParser:
        return AnswerParser(self)


class AnswerParser:
    """One answer's text, in pieces as they come, into parts."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._splitter = ReasoningSplitter(form.thinking, end=form.reasoning_end)
        self._calls = None if form.tool_format is None else ToolCallParser(form.tool_format, form.names)

    def feed(self, text: str) -> list[Part]:
        return self._parts(*self._splitter.feed(text))

    def finish(self) -> list[Part]:
        """What was held back, at the end of the text."""
        parts = self._parts(*self._splitter.finish())
        return parts if self._calls is None else [*parts, *self._calls.finish()]

    def _parts(self, reasoning: str, answer: str) -> list[Part]:
        parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
        if not answer:
            return parts
        return [*parts, Text(answer)] if self._calls is None else [*parts, *self._calls.feed(answer)]

    def finish_reason(self, finish: Finish) -> str:
        """ "tool_calls" where whole calls were made and nothing was cut."""
        if self._calls is not None and self._calls.complete and finish.reason == FINISH_STOP:
            return "function_call" if self._form.legacy else "tool_calls"
        return finish_reason(finish)


def delta_of(part: Part, form: AnswerForm) -> dict[str, Any]:
    """The `delta` of a chunk."""
    if isinstance(part, Text):
        return {"content": part.text}
    if isinstance(part, Reasoning):
        return {"reasoning_content": part.text}
    if isinstance(part, CallBegin):
        if form.legacy:
            return {"function_call": {"name": part.name, "arguments": ""}}
        return {"tool_calls": [{"index": part.index, **_call(part.name, "")}]}
    if form.legacy:
        return {"function_call": {"arguments": part.text}}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def message_of(parts: Iterable[Part], form: AnswerForm) -> dict[str, Any]:
    """The whole `message`."""
    content: list[str] = []
    reasoning: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            content.append(part.text)
        elif isinstance(part, Reasoning):
            reasoning.append(part.text)
        elif isinstance(part, CallBegin):
            names.append(part.name)
            arguments.append("")
        else:
            arguments[part.index] += part.text
    text = "".join(content)
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not names else None, "refusal": None}
    if form.thinking is not Thinking.OFF:
        message["reasoning_content"] = "".join(reasoning) or None
    if names and form.legacy:
        message["function_call"] = {"name": names[0], "arguments": arguments[0]}
    elif names:
        message["tool_calls"] = [_call(name, text) for name, text in zip(names, arguments, strict=True)]
    return message


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def count_reasoning(token_ids: Sequence[int], form: AnswerForm) -> int:
    """Tokens up to and including the marker, where that is a token and has come."""
    if form.thinking is Thinking.OFF or form.reasoning_end_id is None:
        return 0
    return next((i for i, token in enumerate(token_ids, 1) if token == form.reasoning_end_id), 0)
