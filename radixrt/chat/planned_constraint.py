"""`plan_constraint`: the constraint of a chat request, including the constraint on tool calls, as fields of
`SamplingParams`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from radixrt.chat.answer import AnswerForm
from radixrt.chat.channels import Channels, ChannelTools
from radixrt.chat.constraint import (
    ANY_TEXT,
    ConstraintFields,
    FieldNames,
    RequestedConstraint,
    as_format,
    constraint_fields,
    field_names,
    part_of_tag,
    read_constraint,
    with_closed,
)
from radixrt.chat.reasoning import Thinking
from radixrt.chat.tools import OfferedTools
from radixrt.constrained.tags.tool_formats import ToolFormat
from radixrt.constrained.tags.tools import tools_constraint
from radixrt.errors import RequestError
from radixrt.sampling_params import NO_FREE_TEXT


@dataclass(frozen=True, slots=True)
class PlannedConstraint:
    """The constraint of a chat request, including the constraint on tool calls.

    Attributes:
        fields: fields of `SamplingParams` for the constraint; empty without a constraint.
        tool_format: format of the calls; None if the request allows no calls.
        names: the client's names for the engine's fields.
    """

    fields: Mapping[str, Any]
    tool_format: ToolFormat | None
    names: FieldNames


def plan_constraint(
    given: ConstraintFields | RequestedConstraint | None,
    offered: OfferedTools | None,
    form: AnswerForm,
    tokens: Collection[str],
    defaults: Mapping[str, Any],
    names: FieldNames,
    stops: tuple[str, ...] = (),
) -> PlannedConstraint:
    """Combine the client's constraint with the constraint on tool calls.

    Args:
        given: fields of the client that may hold a constraint, or the constraint as it was read from them.
        form: the parts of the answer, with the format of the tools.
        tokens: texts of the vocabulary's added tokens.
        defaults: fields of `StructuredOptions` that hold if the request has a constraint.
        names: the client's names for the engine's fields, except for fields of the constraint.
        stops: stop strings of the request, which apply only to free text outside of the calls.

    Raises:
        RequestError: the constraint or its options are malformed, or a choice holds a stop string.
    """
    # A reasoning budget alone needs a constraint as well, which allows any text.
    constraint = read_constraint(given) if isinstance(given, ConstraintFields) else given
    structured = given.structured if isinstance(given, ConstraintFields) else None
    if constraint is None and offered is None and defaults.get("reasoning_budget") is not None:
        constraint = RequestedConstraint("regex", ANY_TEXT, "thinking_token_budget")
    if form.channels is not None and (constraint is not None or offered is not None):
        return _in_channels(form.channels, form.thinking, constraint, offered, structured, tokens, names, stops)
    tool_format = form.tool_format
    if offered is None or tool_format is None:
        return PlannedConstraint(
            constraint_fields(constraint, structured, **(defaults if constraint is not None else {})),
            None,
            field_names(constraint, **names),
        )
    # With tools, the client's constraint becomes a part of the structural tag: an answer is either text under this
    # constraint or tool calls.
    combined = part_of_tag(constraint, "functions" if offered.legacy else "tools")
    fields = constraint_fields(combined, structured, **defaults)
    names = field_names(combined, **names)
    constraint, tools = with_closed(constraint, offered, structured)
    response = None
    if constraint is not None:
        tool_format = replace(tool_format, in_text=False)
        response = as_format(constraint, tool_format, stops)
    if stops:
        fields["stop_scope"] = tool_format.free_text if response is None else NO_FREE_TEXT
    fields["structural_tag"] = tools_constraint(
        tools,
        tool_format,
        required=offered.required,
        parallel=offered.parallel,
        tokens=tokens,
        response=response,
    )
    return PlannedConstraint(fields, tool_format, names)


def _in_channels(
    channels: Channels,
    thinking: Thinking,
    constraint: RequestedConstraint | None,
    offered: OfferedTools | None,
    structured: Mapping[str, Any] | None,
    tokens: Collection[str],
    names: FieldNames,
    stops: tuple[str, ...],
) -> PlannedConstraint:
    """Return the constraint of an answer in channels: free reasoning, then the constrained answer or a tool call."""
    if offered is not None:
        field = "functions" if offered.legacy else "tools"
    else:
        assert constraint is not None
        field = constraint.field
    if stops:
        raise RequestError(
            f"stop beside {field} is not supported for a model that answers in channels; leave one of them out",
            param="stop",
        )
    for option in ("reasoning_end", "reasoning_budget"):
        if (structured or {}).get(option) is not None:
            raise RequestError(
                f"structured.{option} is not supported for a model that reasons in channels",
                param=f"structured.{option}",
            )
    combined = part_of_tag(constraint, field)
    fields = constraint_fields(combined, structured)
    constraint, tools = with_closed(constraint, offered, structured)
    calls = ChannelTools()
    if offered is not None:
        calls = ChannelTools(tools, offered.required, offered.parallel)
    response = None if constraint is None else as_format(constraint, None, ())
    reserved = [marker for marker in channels.markers if marker in tokens]
    fields["structural_tag"] = channels.constraint(calls, response, reserved, thinking)
    return PlannedConstraint(fields, None, field_names(combined, **names))
