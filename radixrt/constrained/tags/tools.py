"""Tool calls: the formats in which models write them, and the constraint under which no call is ever invalid.

The constraint is a structural tag (see `structural_tag`), so that the engine needs to know nothing else about tools. In
every format an answer with calls is

    begin call (separator call)* end        call = head arguments tail

where the head names the tool; these are constant texts, and the arguments are held to the schema of the tool.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixrt.sampling_params import StopScope

ToolFormatName = Literal["hermes", "llama3", "json"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format in which a model writes calls.

    Attributes:
        before, after: texts before and after each call's JSON.
        begin, separator, end: texts before the first call, between two calls, and after the last call.
        arguments_key: name of the member that holds a call's arguments.
        in_text: calls may come after free text; otherwise an answer either begins with a call or has none.
        optional_token: a token that may stand before everything else.
        markers: texts that are single tokens in the vocabularies of models that were trained on this format. Where text
            may come first, calls begin with the first marker.
        several: an answer can hold more than one call.
    """

    name: ToolFormatName
    before: str = ""
    after: str = ""
    begin: str = ""
    separator: str = ""
    end: str = ""
    arguments_key: str = "arguments"
    in_text: bool = False
    optional_token: str | None = None
    markers: tuple[str, ...] = ()
    several: bool = True

    @property
    def free_text(self) -> StopScope:
        """The part of an answer that is not a call."""
        if self.in_text:
            return StopScope(until=(self.trigger,))
        optional = () if self.optional_token is None else (self.optional_token,)
        return StopScope(until=(self.trigger, *optional), at_start=True)

    def head(self, name: str) -> str:
        """The text of a call up to its arguments."""
        return f'{self.before}{{"name": "{name}", "{self.arguments_key}": '

    @property
    def tail(self) -> str:
        """The text of a call after its arguments."""
        return "}" + self.after

    @property
    def trigger(self) -> str:
        """Text by which an answer with calls is recognized. With `in_text` the trigger may stand anywhere in the
        answer, otherwise the answer begins with the trigger."""
        return self.markers[0] if self.in_text else f'{self.begin}{self.before}{{"name"'


HERMES = ToolFormat(
    "hermes",
    before="<tool_call>\n",
    after="\n</tool_call>",
    separator="\n",
    in_text=True,
    markers=("<tool_call>", "</tool_call>"),
)
LLAMA3 = ToolFormat(
    "llama3", arguments_key="parameters", optional_token="<|python_tag|>", markers=("<|python_tag|>",), several=False
)
GENERIC_JSON = ToolFormat("json", begin="[", separator=", ", end="]")

TOOL_FORMATS: dict[str, ToolFormat] = {form.name: form for form in (HERMES, LLAMA3, GENERIC_JSON)}


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


def arguments_format(tool: Tool) -> dict[str, Any]:
    """The format of a structural tag for the arguments of a tool."""
    schema: dict[str, Any] = {"type": "json_schema", "json_schema": msgspec.Raw(tool.parameters.encode())}
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
        content = calls.after_text()
    else:
        text = {"type": "regex", "pattern": f"(?!{re.escape(form.trigger)})[\\s\\S]*"}
        content = _any_of([text, calls.alone()])
    return msgspec.json.encode({"type": "structural_tag", "format": content}).decode()


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
        parts = self._calls(begin=self._form.begin, end=self._form.end)
        optional = self._form.optional_token
        if optional is not None and optional in self._tokens:
            parts.insert(0, {"type": "optional", "content": _token(optional)})
        return _sequence(parts)

    def after_text(self) -> dict[str, Any]:
        """Free text, then perhaps calls, and nothing after them."""
        trigger = self._form.trigger
        tag = {"type": "tag", "content": _sequence(self._calls(begun=trigger, end=self._form.end)), "end": ""}
        if trigger in self._tokens:
            tag["begin"] = _token(trigger)
            kind, triggers = "token_triggered_tags", "trigger_tokens"
        else:
            tag["begin"] = trigger
            kind, triggers = "triggered_tags", "triggers"
        return {"type": kind, triggers: [trigger], "tags": [tag], "stop_after_first": True}

    def _calls(self, *, begin: str = "", begun: str = "", end: str) -> list[dict[str, Any]]:
        """Return the grammar of the calls without the part of the first call that has been written already."""
        parts = self._call(begin, begun)
        if self._several:
            another = _sequence([*self._pieces(self._form.separator), *self._call("", "")])
            parts.append({"type": "star", "content": another})
        return [*parts, *self._pieces(end)]

    def _call(self, before: str, begun: str) -> list[dict[str, Any]]:
        heads = [self._pieces((before + self._form.head(tool.name)).removeprefix(begun)) for tool in self._tools]
        tail = self._pieces(self._form.tail)
        options = [
            _sequence([head[-1], arguments_format(tool), tail[0]])
            for head, tool in zip(heads, self._tools, strict=True)
        ]
        return [*heads[0][:-1], _any_of(options), *tail[1:]]

    def _pieces(self, text: str) -> list[dict[str, Any]]:
        """The text as constant strings and the markers in it that are tokens."""
        if not self._tokens:
            return [_text(text)] if text else []
        parts = re.split("(" + "|".join(map(re.escape, self._tokens)) + ")", text)
        return [_token(one) if one in self._tokens else _text(one) for one in parts if one]


def _token(text: str) -> dict[str, Any]:
    return {"type": "token", "token": text}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _any_of(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
