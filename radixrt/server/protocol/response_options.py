"""Options of POST /v1/responses in the forms that chats take: sampling, reasoning, text format and tools."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from radixrt.chat.constraint import ANY_OBJECT, RequestedConstraint, raw_text
from radixrt.chat.types import (
    AllowedTools,
    FunctionDefinition,
    ToolChoice,
    ToolDefinition,
    ToolName,
    ToolOptions,
    ToolReference,
)
from radixrt.config import ServerConfig
from radixrt.errors import RequestError, shown, unsupported
from radixrt.messages.client import EngineReady
from radixrt.sampling_params import DrawParams, SamplingParams
from radixrt.server.answers.response_types import Response
from radixrt.server.protocol.fields import MAX_TOP_LOGPROBS, answer_limit
from radixrt.server.protocol.response_fields import (
    LOGPROBS,
    NamedTool,
    ReasoningOptions,
    ResponsesRequest,
    ResponseTool,
    ResponseToolChoice,
    TextFormat,
    TextOptions,
)

MAX_FORMAT_NAME_CHARS = 64
SAMPLING = (*DrawParams.__struct_fields__, "seed")


def read_sampling(body: ResponsesRequest, config: ServerConfig, info: EngineReady) -> dict[str, Any]:
    """Collect the fields of `SamplingParams` that a request gives, without those of its constraint.

    Raises:
        RequestError: naming the field.
    """
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    found = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    if top or LOGPROBS in (body.include or ()):
        found["logprobs"] = min(top, info.vocab_size)
    return {**found, "max_tokens": answer_limit(body.max_output_tokens, config, info)}


def read_effort(options: ReasoningOptions | None) -> tuple[str | None, bool]:
    """Return the reasoning effort, and whether the reasoning is reported as a summary of itself.

    Raises:
        RequestError: naming the field.
    """
    if options is None:
        return None, False
    for name in ("generate_summary", "context", "mode"):
        if getattr(options, name) is not None:
            raise unsupported(f"reasoning.{name}", instead="leave it out")
    if options.summary == "concise":
        raise unsupported("reasoning.summary", "a concise summary", instead="detailed is the reasoning as it is")
    return options.effort, options.summary is not None


# --- text.format ---


def read_format(options: TextOptions | None) -> RequestedConstraint | None:
    """Return the constraint that `text.format` states.

    Raises:
        RequestError: naming the field.
    """
    if options is not None and options.verbosity is not None:
        raise unsupported("text.verbosity", instead="say in instructions how long answers should be")
    form = None if options is None else options.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return RequestedConstraint("json_schema", ANY_OBJECT, "text.format")
    if form.type != "json_schema":
        raise RequestError(
            f"text.format.type must be text, json_object or json_schema, not {shown(form.type)}",
            param="text.format.type",
        )
    if not form.name:
        raise _missing("text.format.name")
    if len(form.name) > MAX_FORMAT_NAME_CHARS:
        raise RequestError(
            f"text.format.name must have at most {MAX_FORMAT_NAME_CHARS} characters", param="text.format.name"
        )
    schema = raw_text(form.schema, "text.format.schema")
    if schema is None:
        raise _missing("text.format.schema")
    return RequestedConstraint(
        "json_schema", schema, "text.format", None if form.strict is None else {"closed": form.strict}
    )


def _missing(field: str) -> RequestError:
    return RequestError(f"{field} is required", param=field, code="missing_field")


# --- tools ---


def read_tool_options(body: ResponsesRequest) -> ToolOptions:
    """Return the tools and the choice among them in the form of chats.

    Raises:
        RequestError: naming the field.
    """
    tools = [_definition(i, tool) for i, tool in enumerate(body.tools or ())]
    return ToolOptions(
        tools=tools,
        tool_choice=_choice(body.tool_choice, {tool.function.name for tool in tools if tool.function}),
        parallel_tool_calls=body.parallel_tool_calls,
        flat=True,
    )


def _definition(i: int, tool: ResponseTool) -> ToolDefinition:
    if tool.type != "function":
        raise unsupported(
            f"tools[{i}].type", f"a tool of type {shown(tool.type)}", instead="define a function that your code runs"
        )
    if tool.name is None:
        raise _missing(f"tools[{i}].name")
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return ToolDefinition(function=function)


def _choice(choice: str | ResponseToolChoice | None, names: set[str]) -> str | ToolChoice | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "function":
        named = _reference(NamedTool(type=choice.type, name=choice.name), "tool_choice", names)
        return ToolChoice(type="function", function=named.function)
    if choice.type != "allowed_tools":
        raise unsupported(
            "tool_choice.type", f"a choice of type {shown(choice.type)}", instead="there are function and allowed_tools"
        )
    if choice.mode not in ("auto", "required"):
        raise RequestError("tool_choice.mode must be auto or required", param="tool_choice.mode")
    if not choice.tools:
        raise RequestError("tool_choice.tools must name at least one tool", param="tool_choice.tools")
    references = [_reference(tool, f"tool_choice.tools[{i}]", names) for i, tool in enumerate(choice.tools)]
    return ToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=choice.mode, tools=references))


def _reference(tool: NamedTool, place: str, names: set[str]) -> ToolReference:
    if tool.type != "function":
        raise unsupported(f"{place}.type", f"a tool of type {shown(tool.type)}", instead="name a function")
    if tool.name is None:
        raise _missing(f"{place}.name")
    if tool.name not in names:
        raise RequestError(f"{place}.name: there is no tool of the name {shown(tool.name)}", param=f"{place}.name")
    return ToolReference(function=ToolName(name=tool.name))


# --- the answer's copy of the request ---


def begun_response(
    body: ResponsesRequest, sampling: SamplingParams, response_id: str, model: str, *, store: bool
) -> Response:
    """Return the response to a request before it is generated, with the members that repeat the request."""
    form = (body.text and body.text.format) or TextFormat(type="text")
    effort = body.reasoning or ReasoningOptions()
    choice: Any = body.tool_choice or "auto"
    return Response(
        id=response_id,
        created_at=int(time.time()),
        model=model,
        store=store,
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        reasoning={"effort": effort.effort, "summary": effort.summary},
        temperature=sampling.temperature,
        text={"format": form if form.type == "json_schema" else {"type": form.type}},
        tool_choice=choice,
        tools=[_shown_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
    )


def _shown_tool(tool: ResponseTool) -> Any:
    parameters = tool.parameters if bytes(tool.parameters) else msgspec.Raw(b"null")
    return msgspec.structs.replace(tool, parameters=parameters, strict=bool(tool.strict))
