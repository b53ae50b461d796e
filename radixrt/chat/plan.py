"""`ChatPlan`: prompt, sampling parameters and answer form of one chat request, decided before the request is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from radixrt.chat.answer import AnswerForm
from radixrt.chat.channels import Channels
from radixrt.chat.constraint import ConstraintFields, FieldNames, RequestedConstraint, renamed
from radixrt.chat.dialect import Dialect
from radixrt.chat.planned_constraint import plan_constraint
from radixrt.chat.prompt import chat_prompt, template_variables
from radixrt.chat.reasoning import ReasoningMarkers, Thinking
from radixrt.chat.tools import read_tools
from radixrt.chat.types import Conversation, ToolOptions
from radixrt.errors import RequestError, shown
from radixrt.messages.parts import ChatPrompt
from radixrt.sampling_params import SamplingParams, StopScope

MAX_BUDGET = 10_000_000


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Decisions about one chat request.

    Attributes:
        prompt: the conversation for the chat template.
        sampling: the sampling parameters, with the constraint that tools, reasoning and the client ask for.
        form: the parts that the answer's text can have.
        names: the client's names for the engine's fields.
    """

    prompt: ChatPrompt
    sampling: SamplingParams
    form: AnswerForm
    names: FieldNames


def plan_chat(
    conversation: Conversation,
    tools: ToolOptions,
    constraint: ConstraintFields | RequestedConstraint | None,
    sampling: Mapping[str, Any],
    dialect: Dialect,
    vocab_size: int,
    names: FieldNames,
) -> ChatPlan:
    """Plan a request.

    Args:
        constraint: the client's constraint on the answer, in any of its forms, or as it was read from them.
        sampling: fields of `SamplingParams` that the client gave.
        names: the client's names for the engine's fields, except for fields of the constraint.

    Raises:
        RequestError: naming the field that is malformed.
    """
    budget, stops = _reasoning_budget(conversation), _stop_strings(sampling)
    offered = read_tools(tools, closed=dialect.closed_tools)
    variables = template_variables(conversation)
    prompt = chat_prompt(conversation, offered, dialect, variables)
    thinking, channels = Thinking.OFF, None
    if prompt.add_generation_prompt and not prompt.continue_final_message:
        thinking, channels = dialect.thinking(variables, prompt.messages), dialect.channels
    own = dialect.reasoning
    reasoning_end_id = dialect.tokens.get(own.end if channels is None else channels.reasoning_end)
    form = AnswerForm(thinking=thinking, markers=own, reasoning_end_id=reasoning_end_id, channels=channels)
    markers: tuple[str, ...] = () if thinking is Thinking.OFF else own.texts
    if offered is not None:
        form = replace(form, tool_format=dialect.tool_format, tools=offered.tools, legacy=offered.legacy)
        markers += dialect.tool_format.markers
    if channels is not None:
        markers = channels.markers
        _check_channels(conversation, channels)
    chosen = {**sampling}
    if not dialect.special_tokens.isdisjoint(markers):
        chosen["skip_special_tokens"] = False
    defaults: dict[str, Any] = {}
    if thinking is not Thinking.OFF and channels is None:
        defaults = {"reasoning_end": own.end, "reasoning_budget": budget}
    planned = plan_constraint(constraint, offered, form, dialect.tokens, defaults, names, stops)
    if stops and (scope := _stop_scope(thinking, own, channels, constrained=bool(planned.fields))) is not None:
        chosen["stop_scope"] = scope
    form = replace(form, tool_format=planned.tool_format)
    marker = planned.fields["structured"].reasoning_end if planned.fields else None
    if marker is not None:
        # The constraint waits for the marker and enforces it, so all text before the marker is reasoning.
        marker_id = form.reasoning_end_id if marker == own.end else None
        form = replace(form, thinking=Thinking.BEGUN, markers=replace(own, end=marker), reasoning_end_id=marker_id)
    try:
        validated = SamplingParams(**{**chosen, **planned.fields}).validate(vocab_size)
    except RequestError as error:
        raise renamed(error, planned.names) from None
    return ChatPlan(prompt, validated, form, planned.names)


def _stop_scope(
    thinking: Thinking, markers: ReasoningMarkers, channels: Channels | None, *, constrained: bool
) -> StopScope | None:
    """Return the part of the answer in which stop strings are searched, which excludes the reasoning; None for the
    whole answer.

    Args:
        constrained: a constraint takes care of the stop strings (`radixrt.constrained.stop_strings`).
    """
    if channels is not None:
        return channels.free_text(thinking)
    if thinking is Thinking.OFF or constrained:
        return None
    return StopScope(reasoning_end=markers.end, reasoning_start=markers.start if thinking is Thinking.FREE else "")


def _reasoning_budget(conversation: Conversation) -> int | None:
    """Return the most tokens of reasoning, if the client bounds them; an error names the field."""
    budget = conversation.thinking_token_budget
    if budget is not None and not 1 <= budget <= MAX_BUDGET:
        raise RequestError(
            f"thinking_token_budget must be between 1 and {MAX_BUDGET}, not {shown(budget)}",
            param="thinking_token_budget",
        )
    return budget


def _stop_strings(sampling: Mapping[str, Any]) -> tuple[str, ...]:
    given = sampling.get("stop") or ()
    return (given,) if isinstance(given, str) else tuple(given)


def _check_channels(conversation: Conversation, channels: Channels) -> None:
    """Refuse options of reasoning for models that reason in channels, because such models do not have these options."""
    effort = conversation.reasoning_effort
    if effort is not None and effort not in channels.efforts:
        *others, last = channels.efforts
        raise RequestError(
            f"reasoning_effort must be {', '.join(others)} or {last} for this model, not {shown(effort)}",
            param="reasoning_effort",
        )
    if conversation.thinking_token_budget is not None:
        raise RequestError(
            "thinking_token_budget is not supported for a model that reasons in channels; set reasoning_effort",
            param="thinking_token_budget",
        )
