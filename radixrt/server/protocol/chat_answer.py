"""Bodies of chat answers: the `message` of a whole answer and the `delta` of a chunk, from the answer's parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from radixrt.chat.answer import AnswerForm, AnswerParser, Part, Reasoning
from radixrt.chat.reasoning import Thinking
from radixrt.chat.tool_parser import CallBegin, Text, tool_call
from radixrt.messages.parts import FINISH_STOP, Finish
from radixrt.server.protocol.usage import finish_reason


def chat_finish_reason(finish: Finish, parser: AnswerParser, form: AnswerForm) -> str:
    """Return "tool_calls" (or "function_call") if the answer ended by itself and holds only complete calls."""
    if parser.has_calls and finish.reason == FINISH_STOP:
        return "function_call" if form.legacy else "tool_calls"
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
        return {"tool_calls": [{"index": part.index, **tool_call(part.name, "")}]}
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
        message["tool_calls"] = [tool_call(name, text) for name, text in zip(names, arguments, strict=True)]
    return message
