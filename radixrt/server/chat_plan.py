"""`ChatPlan`: what a chat request asks of its answer (structure, tools, reasoning), decided before anything is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from radixrt.constrained.tags.fields import from_legacy
from radixrt.constrained.tags.tools import ToolFormat, tools_constraint
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from radixrt.server.answer import AnswerForm
from radixrt.server.chat_protocol import ChatRequest
from radixrt.server.conversation import template_variables
from radixrt.server.dialect import Dialect
from radixrt.server.reasoning import THINK_END, THINK_START, Thinking
from radixrt.server.structured import Asked, Names, names_of, read_constraint, read_options, sampling_fields
from radixrt.server.tools import OfferedTools, read_tools


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """See the module's docstring.

    Attributes:
        offered: the tools, if any may be called.
        sampling: fields of `SamplingParams` that follow.
        form: what the answer's text can hold.
        names: the client's names for the engine's fields.
    """

    offered: OfferedTools | None
    sampling: dict[str, Any]
    form: AnswerForm
    names: Names


def plan_chat(body: ChatRequest, dialect: Dialect) -> ChatPlan:
    """Raises RequestError naming the field."""
    asked = read_constraint(body)
    offered = read_tools(body)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    thinking = _thinking(body, dialect)
    form = AnswerForm(thinking=thinking, reasoning_end_id=dialect.tokens.get(THINK_END))
    if offered is not None:
        if body.stop:
            raise RequestError("stop strings would cut calls before they are complete; leave stop out", param="stop")
        tool_format = dialect.tool_format
        if asked is not None:
            tool_format = replace(tool_format, in_text=False)
        asked = _with_tools(asked, offered, tool_format, dialect)
        names = tuple(tool.name for tool in offered.tools)
        form = replace(form, tool_format=tool_format, names=names, legacy=offered.legacy)
    reasoning = {"reasoning_end": THINK_END} if asked is not None and thinking is not Thinking.OFF else {}
    options = read_options(body, asked, **reasoning)
    sampling = sampling_fields(asked, options)
    if _needs_special_tokens(form, dialect):
        sampling["skip_special_tokens"] = False
    names_ = names_of(asked, prompt="messages", input_ids="messages", max_tokens=limit)
    return ChatPlan(offered, sampling, _with_marker(form, options), names_)


def _thinking(body: ChatRequest, dialect: Dialect) -> Thinking:
    if body.continue_final_message or body.add_generation_prompt is False:
        return Thinking.OFF
    return dialect.thinking(template_variables(body))


def _with_marker(form: AnswerForm, options: StructuredOptions) -> AnswerForm:
    """A constraint that waits for a marker makes sure that it comes: all before it is reasoning, begun or not."""
    marker = options.reasoning_end
    if marker is None:
        return form
    marker_id = form.reasoning_end_id if marker == form.reasoning_end else None
    return replace(form, thinking=Thinking.BEGUN, reasoning_end=marker, reasoning_end_id=marker_id)


def _needs_special_tokens(form: AnswerForm, dialect: Dialect) -> bool:
    """Whether the text must show tokens that are left out of it otherwise."""
    markers = () if form.tool_format is None else form.tool_format.markers
    if form.thinking is not Thinking.OFF:
        markers = (*markers, THINK_START, THINK_END)
    return not dialect.special_tokens.isdisjoint(markers)


def _with_tools(asked: Asked | None, offered: OfferedTools, form: ToolFormat, dialect: Dialect) -> Asked:
    """The constraint of calls, together with that of an answer without any."""
    source = tools_constraint(
        offered.tools,
        form,
        required=offered.required,
        parallel=offered.parallel,
        tokens=dialect.tokens,
        response=None if asked is None else _as_format(asked, form),
    )
    options = {} if asked is None else {k: v for k, v in (asked.options or {}).items() if k != "closed"}
    return Asked("structural_tag", source, offered.field, options)


def _as_format(asked: Asked, form: ToolFormat) -> dict[str, Any]:
    """A constraint as a format of a structural tag."""
    source = asked.source
    if isinstance(source, tuple):
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in source]}
    if asked.kind == "json_schema":
        _json(source, asked.field)
        closed = bool((asked.options or {}).get("closed"))
        return {
            "type": "json_schema",
            "json_schema": msgspec.Raw(source.encode()),
            "closed": closed,
            "origin": asked.field,
        }
    if asked.kind == "regex":
        # A text that begins like a call is one.
        return {"type": "regex", "pattern": f"(?!{re.escape(form.trigger)})(?:{source})"}
    if asked.kind == "ebnf":
        return {"type": "grammar", "grammar": source}
    tag = _json(source, asked.field)
    if isinstance(tag, dict) and "structures" in tag:
        return from_legacy({name: value for name, value in tag.items() if name != "type"})
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise RequestError(f"{asked.field} must be an object with a format", param=asked.field)
    found: dict[str, Any] = tag["format"]
    return found


def _json(source: str, field: str) -> Any:
    try:
        return msgspec.json.decode(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field} is not JSON: {error}", param=field, code="invalid_json") from None
