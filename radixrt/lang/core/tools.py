"""Tools in programs: the offer, the constraint of the output, the calls in it, and running the called functions.

The constraint makes every call valid; see `radixrt.constrained.tags.tools`. `State.run_tools` runs the called functions
and appends their results; a program that runs them itself appends each as `rt.role("tool", result)`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec
import pydantic
import pydantic_core

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.chat.tool_parser import read_tool_calls
from radixrt.chat.tools import OfferedTools, offer_tools
from radixrt.constrained.tags.tools import tools_constraint
from radixrt.errors import RequestError, shown
from radixrt.lang.backends.base import Backend, Unsupported
from radixrt.lang.errors import ProgramError, describe
from radixrt.messages.parts import TemplateText
from radixrt.python_types import schema_text
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.chat_template import ChatTemplate

Definition = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Offer:
    """Tools that a gen offers.

    Attributes:
        given: definitions as in the OpenAI API.
        choice: "auto", "required", or the name of the tool that must be called.
        read: the checked definitions and choice.
        functions: the tools that were given as Python functions, by name.
    """

    given: Sequence[Definition]
    choice: str
    read: OfferedTools
    functions: Mapping[str, Callable[..., Any]]

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Definitions in the form that chat templates take."""
        found: list[dict[str, Any]] = msgspec.json.decode(self.read.definitions)
        return found


def offer(tools: Sequence[Definition | Callable[..., Any]], choice: str) -> Offer:
    """Check definitions, and write those of Python functions.

    Raises:
        RequestError: a field is malformed; names it.
    """
    given = tuple(define(tool, f"tools[{i}]") if callable(tool) else tool for i, tool in enumerate(tools))
    functions = {made["function"]["name"]: tool for made, tool in zip(given, tools, strict=True) if callable(tool)}
    return Offer(given, choice, offer_tools(given, choice), functions)


def define(function: Callable[..., Any], place: str) -> Definition:
    """The definition of a Python function: its name, the first paragraph of its docstring, and its parameters.

    Raises:
        RequestError: a parameter has no annotation, no JSON form or no name; names it.
    """
    name = getattr(function, "__name__", type(function).__name__)
    hints: dict[str, Any] = {}
    try:
        known = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise RequestError(f"{place}: the parameters of {name} cannot be read: {error}", param="tools") from None
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
            raise RequestError(f"{place}: {name} takes {bare}; a tool's parameters have names", param="tools")
        if parameter.name not in known:
            raise RequestError(
                f"{place}: parameter {parameter.name!r} of {name} has no type; write {parameter.name}: str",
                param="tools",
            )
        hint = known[parameter.name]
        hints[parameter.name] = hint if parameter.default is parameter.empty else typing.NotRequired[hint]
    try:
        schema = schema_text(typing.TypedDict(name, hints))  # type: ignore[operator]
    except RequestError as error:
        raise RequestError(f"{place}: {error.message.removeprefix('json_schema: ')}", param="tools") from None
    description = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    told = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **told, "parameters": json.loads(schema)}}


async def find_dialect(backend: Backend, template: ChatTemplate) -> Dialect:
    """The tool dialect of the model behind a backend."""
    # Programs read answers as text, without channels, and describe tools by instructions where those are needed.
    dialect = make_dialect(template, reasoning_parser="none")
    tokens = {}
    for marker in dialect.tool_format.markers:
        try:
            ids = await backend.tokenize([TemplateText(marker)])
        except (RequestError, Unsupported):
            continue
        if len(ids) == 1:
            tokens[marker] = ids[0]
    return replace(dialect, tokens=tokens)


def constrained(sampling: SamplingParams, offered: Offer, dialect: Dialect) -> SamplingParams:
    """Sampling parameters under which the answer's calls are valid."""
    source = tools_constraint(
        offered.read.tools,
        dialect.tool_format,
        required=offered.read.required,
        parallel=offered.read.parallel,
        tokens=dialect.tokens,
    )
    shows_markers = any(marker in dialect.tokens for marker in dialect.tool_format.markers)
    return msgspec.structs.replace(
        sampling,
        structural_tag=source,
        skip_special_tokens=sampling.skip_special_tokens and not shows_markers,
    )


def read_calls(text: str, offered: Offer, dialect: Dialect) -> tuple[str, list[dict[str, Any]]]:
    """The text of an answer beside its calls, and the calls as in the OpenAI API."""
    return read_tool_calls(text, dialect.tool_format, offered.read.tools)


OnError = Literal["raise", "tell"]
Functions = Mapping[str, Callable[..., Any]]
ToolCall = Mapping[str, Any]


def check_on_error(on_error: str) -> None:
    """Raise ProgramError if there is no such way to treat an exception of a tool."""
    if on_error not in get_args(OnError):
        raise ProgramError(f"on_error must be {' or '.join(get_args(OnError))}, not {shown(on_error)}")


def run_call(call: ToolCall, functions: Functions, on_error: OnError) -> Any:
    """Run the function of a call. Return the function's result or, if `on_error` is "tell", a text about its exception.

    Raises:
        ProgramError: the tool is not a Python function, or must be awaited.
        Exception: the exception of the function, if `on_error` is "raise".
    """
    function = _function(call, functions)
    if inspect.iscoroutinefunction(function):
        name = call["function"]["name"]
        raise ProgramError(f"the tool {name} is an async def; write await state.async_run_tools(...)")
    try:
        return pydantic.validate_call(function)(**json.loads(call["function"]["arguments"]))
    except Exception as error:
        if on_error == "raise":
            raise
        return f"error: {describe(error)}"


async def run_calls(calls: Sequence[ToolCall], functions: Functions, on_error: OnError) -> list[Any]:
    """`run_call` for several calls at once: async functions run concurrently, others each in a thread."""

    async def one(call: ToolCall) -> Any:
        function = _function(call, functions)
        if not inspect.iscoroutinefunction(function):
            return await asyncio.to_thread(run_call, call, functions, on_error)
        try:
            return await pydantic.validate_call(function)(**json.loads(call["function"]["arguments"]))
        except Exception as error:
            if on_error == "raise":
                raise
            return f"error: {describe(error)}"

    return list(await asyncio.gather(*map(one, calls)))


def _function(call: ToolCall, functions: Functions) -> Callable[..., Any]:
    name = call["function"]["name"]
    function = functions.get(name)
    if function is None:
        raise ProgramError(
            f"the tool {name} was given as a definition, so that only the program can run it: give a Python function "
            f'in tools=[...], or append its result as rt.role("tool", ...)'
        )
    return function


def result_text(result: Any) -> str:
    """The text of a result for the model: a text as it is, anything else as JSON."""
    if isinstance(result, str):
        return result
    return pydantic_core.to_json(result, fallback=str, inf_nan_mode="strings").decode()
