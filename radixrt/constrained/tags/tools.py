"""Tool calls: the constraint under which no call is ever invalid.

The constraint is a structural tag (see `structural_tag`), so that the engine needs to know nothing else about tools.
`tool_formats` has the texts of calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixrt.constrained.tags.tool_formats import INDEX, NAME, ToolFormat

MAX_INDEX_DIGITS = 4
"""Most digits of the number of a call."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called.

    Attributes:
        parameters: JSON text of the schema of the arguments, which are an object.
        strict: objects of the schema that declare properties allow no others; None: as for all schemas of the request.
            "preferred" closes them too, but leaves them open where no value satisfies the closed schema.
        origin: where the schema stands in the client's request, e.g. "tools/0/function/parameters"; refusals name it.
    """

    name: str
    parameters: str
    strict: bool | Literal["preferred"] | None = None
    origin: str = ""


def arguments_format(tool: Tool, style: str = "json", tokens: Sequence[str] = ()) -> dict[str, Any]:
    """The format of a structural tag for the arguments of a tool.

    Args:
        style: of the arguments, in `ARGUMENT_STYLES`.
        tokens: texts in the tags of the style that are control tokens.
    """
    schema: dict[str, Any] = {"type": "json_schema", "json_schema": msgspec.Raw(tool.parameters.encode())}
    if style != "json":
        schema["style"] = style
        schema["tokens"] = list(tokens)
    if tool.strict is not None:
        schema["closed"] = tool.strict
    if tool.origin:
        schema["origin"] = tool.origin
    return schema


def tools_constraint(
    tools: Sequence[Tool],
    form: ToolFormat,
    *,
    required: bool,
    parallel: bool,
    tokens: Collection[str] = (),
    response: dict[str, Any] | None = None,
) -> str:
    """The structural tag, as JSON text, of an answer that may or must call tools.

    Args:
        tools: those that may be called.
        required: calls and nothing else; otherwise free text too, or `response` instead of it.
        parallel: whether several calls are allowed, if the format can express several calls.
        tokens: markers that are single tokens of the vocabulary; they come as those and never as text.
        response: a format of a structural tag, for an answer without calls.
    """
    calls = _Calls(tools, form, parallel and form.several, tokens)
    if required:
        content = calls.alone()
    elif response is not None:
        content = _any_of([response, calls.alone()])
    elif form.in_text:
        content = calls.in_text()
    else:
        text = {"type": "regex", "pattern": f"(?!{re.escape(form.trigger)})[\\s\\S]*"}
        content = _any_of([text, calls.alone()])
    return msgspec.json.encode({"type": "structural_tag", "format": content}).decode()


def calls_format(tools: Sequence[Tool], form: ToolFormat, *, parallel: bool, tokens: Collection[str]) -> dict[str, Any]:
    """The format of a structural tag for calls and nothing else. Arguments are the same as of `tools_constraint`."""
    return _Calls(tools, form, parallel and form.several, tokens).alone()


def marked_text(text: str, tokens: Collection[str]) -> list[dict[str, Any]]:
    """The text as formats of a structural tag: constant strings, and the markers in it that are tokens."""
    if not tokens:
        return [_text(text)] if text else []
    parts = re.split("(" + "|".join(map(re.escape, tokens)) + ")", text)
    return [_token(one) if one in tokens else _text(one) for one in parts if one]


class _Calls:
    """Builds the parts of a constraint that hold calls.

    The common beginning of all calls stands before the choice between the tools only where that beginning is a token.
    As text, the beginning is part of the constant that names the tool, so that both are a single terminal.
    """

    def __init__(self, tools: Sequence[Tool], form: ToolFormat, several: bool, tokens: Collection[str]) -> None:
        self._tools = tools
        self._form = form
        self._several = several
        self._tokens = [marker for marker in form.markers if marker in tokens]

    def alone(self) -> dict[str, Any]:
        """Calls and nothing else."""
        form = self._form
        parts = self._call(form.begin, "")
        if self._several:
            another = _sequence([*self._pieces(form.separator), *self._call("", "")])
            parts.append({"type": "star", "content": another})
        parts += self._pieces(form.end)
        optional = form.optional_token
        if optional is not None and optional in self._tokens:
            parts.insert(0, {"type": "optional", "content": _token(optional)})
        return _sequence(parts)

    def in_text(self) -> dict[str, Any]:
        """Free text and calls in it; after a call that must be the only one, nothing."""
        form = self._form
        trigger = form.trigger
        # A trigger with a control token in it is recognized by the token.
        token = next((one for one in self._tokens if one in trigger), "")
        before, begins_as_token, after = trigger.partition(token) if token else ("", "", "")
        begun = self._pieces(after)
        parts = self._call(form.begin, trigger)
        if form.begin and self._several:
            another = _sequence([*self._pieces(form.separator), *self._call("", "")])
            parts.append({"type": "star", "content": another})
        once = not self._several
        content = _sequence([*begun, *parts, *self._pieces(form.end)])
        if not begins_as_token:
            tag = {"type": "tag", "begin": trigger, "content": content, "end": ""}
            return {"type": "triggered_tags", "triggers": [trigger], "tags": [tag], "stop_after_first": once}
        tag = {"type": "tag", "begin": _token(token), "content": content, "end": ""}
        lead = {"lead": before} if before else {}
        tags: dict[str, Any] = {"trigger_tokens": [token], "tags": [tag], **lead, "stop_after_first": once}
        return {"type": "token_triggered_tags", **tags}

    def _call(self, before: str, begun: str) -> list[dict[str, Any]]:
        """Return a call, without the text `begun` of it that has been written already.

        Args:
            before: text before the call.
        """
        heads = [self._head(before, begun, tool.name) for tool in self._tools]
        shared = _shared([head[:-1] for head in heads])
        tail = self._pieces(self._form.tail)
        options = [
            _sequence([*head[shared:], arguments_format(tool, self._form.style, self._tokens), tail[0]])
            for head, tool in zip(heads, self._tools, strict=True)
        ]
        return [*heads[0][:shared], _any_of(options), *tail[1:]]

    def _head(self, before: str, begun: str, name: str) -> list[dict[str, Any]]:
        """Return the text of a call up to its arguments; the number of the call is any number."""
        first, *others = "".join([before, *self._form.head_parts]).split(INDEX)
        pieces = self._pieces(first.replace(NAME, name).removeprefix(begun))
        for text in others:
            pieces.append({"type": "regex", "pattern": f"0|[1-9][0-9]{{0,{MAX_INDEX_DIGITS - 1}}}"})
            pieces += self._pieces(text.replace(NAME, name))
        return pieces

    def _pieces(self, text: str) -> list[dict[str, Any]]:
        return marked_text(text, self._tokens)


def _shared(heads: Sequence[Sequence[dict[str, Any]]]) -> int:
    """Number of leading pieces that are the same in all heads."""
    shared = 0
    for pieces in zip(*heads, strict=False):
        if any(piece != pieces[0] for piece in pieces):
            break
        shared += 1
    return shared


def _token(text: str) -> dict[str, Any]:
    return {"type": "token", "token": text}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _any_of(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
