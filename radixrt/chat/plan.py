"""`ChatPlan`: the prompt, the constraint and the answer form of one chat request, decided before it is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from radixrt.chat.answer import AnswerForm
from radixrt.chat.constraint import FieldNames, RequestedConstraint, constraint_fields, field_names
from radixrt.chat.dialect import Dialect
from radixrt.chat.prompt import chat_prompt, template_variables
from radixrt.chat.reasoning import THINK_END, THINK_START, Thinking
from radixrt.chat.tools import OfferedTools, read_tools
from radixrt.chat.types import Conversation, ToolOptions
from radixrt.constrained.tags.fields import from_legacy
from radixrt.constrained.tags.tools import ToolFormat, tools_constraint
from radixrt.errors import RequestError
from radixrt.messages.parts import ChatPrompt


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Decisions about one chat request that follow from its conversation, tools and constraint.

    Attributes:
        prompt: the conversation for the chat template.
        sampling: fields of `SamplingParams` that follow from tools, constraint and reasoning.
        form: the parts that the answer's text can have.
        names: the client's names for the engine's fields.
    """

    prompt: ChatPrompt
    sampling: Mapping[str, Any]
    form: AnswerForm
    names: FieldNames


def plan_chat(
    conversation: Conversation,
    options: ToolOptions,
    constraint: RequestedConstraint | None,
    structured: Mapping[str, Any] | None,
    dialect: Dialect,
    *,
    has_stop: bool = False,
    names: FieldNames | None = None,
) -> ChatPlan:
    """Plan a request.

    Args:
        constraint: the client's constraint on the answer without calls.
        structured: the client's options for enforcing it.
        has_stop: the request has stop strings, which tools exclude.
        names: the client's names for further fields of the engine.

    Raises:
        RequestError: naming the field that is malformed.
    """
    offered = read_tools(options)
    if offered is not None and has_stop:
        raise RequestError("stop strings would cut calls before they are complete; leave stop out", param="stop")
    variables = template_variables(conversation)
    prompt = chat_prompt(conversation, offered, dialect, variables)
    thinking = Thinking.OFF
    if prompt.add_generation_prompt and not prompt.continue_final_message:
        thinking = dialect.thinking(variables)
    form = AnswerForm(thinking=thinking, reasoning_end_id=dialect.tokens.get(THINK_END))
    if offered is not None:
        tool_format = dialect.tool_format
        if constraint is not None:
            tool_format = replace(tool_format, in_text=False)
        constraint = _with_tools(constraint, offered, tool_format, dialect)
        called = tuple(tool.name for tool in offered.tools)
        form = replace(form, tool_format=tool_format, names=called, legacy=offered.legacy)
    reasoning = {"reasoning_end": THINK_END} if constraint is not None and thinking is not Thinking.OFF else {}
    sampling = constraint_fields(constraint, structured, **reasoning)
    if sampling:
        form = _with_marker(form, sampling["structured"].reasoning_end)
    if _needs_special_tokens(form, thinking, dialect):
        sampling["skip_special_tokens"] = False
    return ChatPlan(prompt, sampling, form, field_names(constraint, **(names or {})))


def _with_marker(form: AnswerForm, marker: str | None) -> AnswerForm:
    """A constraint that waits for a marker enforces it: all text before the marker is reasoning."""
    if marker is None:
        return form
    marker_id = form.reasoning_end_id if marker == form.reasoning_end else None
    return replace(form, thinking=Thinking.BEGUN, reasoning_end=marker, reasoning_end_id=marker_id)


def _needs_special_tokens(form: AnswerForm, thinking: Thinking, dialect: Dialect) -> bool:
    """Return whether the text must include special tokens, because the markers of calls or reasoning are such."""
    markers = () if form.tool_format is None else form.tool_format.markers
    if thinking is not Thinking.OFF:
        markers = (*markers, THINK_START, THINK_END)
    return not dialect.special_tokens.isdisjoint(markers)


def _with_tools(
    constraint: RequestedConstraint | None, offered: OfferedTools, form: ToolFormat, dialect: Dialect
) -> RequestedConstraint:
    """The constraint on calls, combined with the constraint on an answer without calls."""
    source = tools_constraint(
        offered.tools,
        form,
        required=offered.required,
        parallel=offered.parallel,
        tokens=dialect.tokens,
        response=None if constraint is None else _as_format(constraint, form),
    )
    options = {} if constraint is None else dict(constraint.options or {})
    options.pop("closed", None)
    return RequestedConstraint("structural_tag", source, offered.field, options)


def _as_format(constraint: RequestedConstraint, form: ToolFormat) -> dict[str, Any]:
    """A constraint as a format of a structural tag."""
    source, field = constraint.source, constraint.field
    if isinstance(source, tuple):
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in source]}
    if constraint.kind == "json_schema":
        _json(source, field)
        closed = bool((constraint.options or {}).get("closed"))
        return {"type": "json_schema", "json_schema": msgspec.Raw(source.encode()), "closed": closed, "origin": field}
    if constraint.kind == "regex":
        # A text that begins like a call is a call.
        return {"type": "regex", "pattern": f"(?!{re.escape(form.trigger)})(?:{source})"}
    if constraint.kind == "ebnf":
        return {"type": "grammar", "grammar": source}
    tag = _json(source, field)
    if isinstance(tag, dict) and "structures" in tag:
        return from_legacy({name: value for name, value in tag.items() if name != "type"})
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise RequestError(f"{field} must be an object with a format", param=field)
    found: dict[str, Any] = tag["format"]
    return found


def _json(source: str, field: str) -> Any:
    try:
        return msgspec.json.decode(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field} is not JSON: {error}", param=field, code="invalid_json") from None
