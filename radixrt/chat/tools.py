"""Tool definitions and tool choice of a request, checked, in the form that templates and constraints take."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from radixrt.chat.types import FunctionDefinition, ToolChoice, ToolDefinition, ToolName, ToolOptions
from radixrt.constrained.tags.tools import Tool
from radixrt.errors import RequestError, shown

MAX_TOOLS = 512
NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'

_definitions_decoder = msgspec.json.Decoder(list[ToolDefinition])
_DECLARING = frozenset(
    ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties", "$ref")
) | {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "enum", "const"}
"""Keywords that may be about further properties of an object beside an empty `properties`."""
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools that the model may call or must call.

    Attributes:
        definitions: JSON array of all tools that the request defines, for the prompt.
        tools: the tools that may be called.
        required: the answer consists of calls.
        parallel: several calls are allowed.
        legacy: the client uses OpenAI's older `functions` and receives one `function_call`.
    """

    definitions: bytes
    tools: tuple[Tool, ...]
    required: bool = False
    parallel: bool = True
    legacy: bool = False


def offer_tools(definitions: Sequence[Mapping[str, Any]], choice: str) -> OfferedTools:
    """Check tools given as plain Python values.

    Args:
        definitions: tool definitions as in the OpenAI API.
        choice: "auto", "required", or the name of the tool that must be called.

    Raises:
        RequestError: naming the argument that is malformed.
    """
    wanted = choice if choice in ("auto", "required") else ToolChoice(type="function", function=ToolName(name=choice))
    try:
        tools = _definitions_decoder.decode(json.dumps(list(definitions)))
    except (TypeError, ValueError) as error:
        reason = str(error).replace("`$[", "`tools[")
        raise RequestError(f"tools are not as in the OpenAI API: {reason}", param="tools") from None
    offered = read_tools(ToolOptions(tools=tools, tool_choice=wanted))
    if offered is None:
        raise RequestError("tool_choice must be auto, required or the name of a tool", param="tool_choice")
    return offered


def read_tools(options: ToolOptions, *, closed: bool = True) -> OfferedTools | None:
    """Return the tools of a request, or None if it has none or none may be called.

    Args:
        closed: arguments have only the declared properties where a tool's definition does not say `strict`.

    Raises:
        RequestError: naming the field that is malformed.
    """
    if options.tools and options.functions:
        raise RequestError("tools and functions exclude each other; functions is the older form", param="functions")
    legacy = bool(options.functions)
    given = _functions(options)
    choice = options.function_call if legacy else options.tool_choice
    field = "function_call" if legacy else "tool_choice"
    if not given:
        if choice not in (None, "none", "auto"):
            raise RequestError(f"{field} needs {'functions' if legacy else 'tools'} to choose from", param=field)
        return None
    tools = _checked(given, "functions" if legacy else "tools", options, closed=closed)
    offered = OfferedTools(
        definitions=_definitions([function for function, _ in given]),
        tools=tuple(tools),
        parallel=not legacy and options.parallel_tool_calls is not False,
        legacy=legacy,
    )
    return _chosen(offered, choice, field)


def _functions(options: ToolOptions) -> list[tuple[FunctionDefinition, str]]:
    """Return each definition with its place in the request."""
    if options.functions:
        return [(function, f"functions/{i}") for i, function in enumerate(options.functions)]
    found = []
    for i, tool in enumerate(options.tools or []):
        if tool.type != "function":
            raise RequestError(f"tools[{i}] must be of type function, not {shown(tool.type)}", param=f"tools[{i}].type")
        if tool.function is None:
            raise RequestError(f"tools[{i}].function is required", param=f"tools[{i}].function", code="missing_field")
        found.append((tool.function, f"tools/{i}" if options.flat else f"tools/{i}/function"))
    return found


def _checked(
    given: list[tuple[FunctionDefinition, str]], field: str, options: ToolOptions, *, closed: bool
) -> list[Tool]:
    if len(given) > MAX_TOOLS:
        raise RequestError(f"{field} holds {len(given)} definitions; at most {MAX_TOOLS} are allowed", param=field)
    tools: dict[str, Tool] = {}
    for i, (function, place) in enumerate(given):
        flat = field == "functions" or options.flat
        param = f"{field}[{i}].name" if flat else f"{field}[{i}].function.name"
        if not _NAME.fullmatch(function.name):
            raise RequestError(
                f"{param} must be 1 to 64 letters, digits, '_', '.' or '-', not {shown(function.name)}", param=param
            )
        if function.name in tools:
            raise RequestError(f"{param}: there are two tools of the name {function.name!r}", param=param)
        origin = f"{place}/{options.schema_field}"
        strict: bool | Literal["preferred"] | None = function.strict
        if strict is None and closed:
            strict = "preferred"
        schema = _arguments_schema(function.parameters, origin, field, closed=bool(strict))
        tools[function.name] = Tool(function.name, schema, strict, origin)
    return list(tools.values())


def _arguments_schema(raw: msgspec.Raw, place: str, field: str, *, closed: bool) -> str:
    """Return the schema as JSON text that only an object satisfies.

    Args:
        closed: a function whose schema declares no parameters has none.
    """
    data = bytes(raw)
    if data in (b"", b"null"):
        return NO_ARGUMENTS
    pointer = "/" + place.partition("/")[2]
    try:
        text = data.decode()
        schema = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field} at {pointer}: not a schema: {error}", param=field) from None
    if schema is True:
        return '{"type":"object"}'
    if not isinstance(schema, dict):
        raise RequestError(f"{field} at {pointer}: a schema must be an object", param=field)
    declares_none = schema.get("properties") == {} and not (schema.get("required") or _DECLARING & schema.keys())
    if closed and declares_none:
        return NO_ARGUMENTS
    kind = schema.get("type")
    if kind == "object" and not schema.get("nullable"):
        return text
    if kind is None and schema and "nullable" not in schema:
        return '{"type":"object",' + text.lstrip()[1:]
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        raise RequestError(
            f'{field} at {pointer}/type: the arguments of a tool are an object, so this must be "object"', param=field
        )
    kept = {name: value for name, value in schema.items() if name not in ("type", "nullable")}
    return msgspec.json.encode({"type": "object", **kept}).decode()


def _definitions(functions: list[FunctionDefinition]) -> bytes:
    """Encode the definitions for chat templates: in OpenAI's order, without `strict`, which no model was trained on."""
    found = []
    for function in functions:
        one: dict[str, Any] = {"name": function.name}
        if function.description is not None:
            one["description"] = function.description
        empty = bytes(function.parameters) in (b"", b"null")
        one["parameters"] = msgspec.Raw(NO_ARGUMENTS.encode()) if empty else function.parameters
        found.append({"type": "function", "function": one})
    return msgspec.json.encode(found)


def _chosen(offered: OfferedTools, choice: Any, field: str) -> OfferedTools | None:
    if choice is None or choice == "auto":
        return offered
    if choice == "none":
        return None
    if choice == "required" and not offered.legacy:
        return replace(offered, required=True)
    if isinstance(choice, str):
        raise RequestError(f"{field} must be none, auto, required or name a function, not {shown(choice)}", param=field)
    if offered.legacy:
        return _only(offered, [choice.name], f"{field}.name", required=True, parallel=False)
    assert isinstance(choice, ToolChoice)
    if choice.type == "function":
        if choice.function is None:
            raise RequestError(f"{field}.function is required", param=f"{field}.function", code="missing_field")
        return _only(offered, [choice.function.name], f"{field}.function.name", required=True, parallel=False)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        if allowed.mode not in ("auto", "required"):
            raise RequestError(
                f"{field}.allowed_tools.mode must be auto or required", param=f"{field}.allowed_tools.mode"
            )
        names = [tool.function.name for tool in allowed.tools]
        return _only(
            offered,
            names,
            f"{field}.allowed_tools.tools",
            required=allowed.mode == "required",
            parallel=offered.parallel,
        )
    raise RequestError(
        f"{field}.type must be function or allowed_tools, not {shown(choice.type)}", param=f"{field}.type"
    )


def _only(offered: OfferedTools, names: list[str], param: str, *, required: bool, parallel: bool) -> OfferedTools:
    known = {tool.name: tool for tool in offered.tools}
    for name in names:
        if name not in known:
            raise RequestError(f"{param}: there is no tool of the name {shown(name)}", param=param)
    if not names:
        raise RequestError(f"{param} must name at least one tool", param=param)
    tools = tuple(known[name] for name in dict.fromkeys(names))
    return replace(offered, tools=tools, required=required, parallel=parallel)
