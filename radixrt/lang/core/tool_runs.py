"""Runs the Python functions that a model has called as tools, and writes their results as the model will read them."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import pydantic
import pydantic_core

from radixrt.errors import shown
from radixrt.lang.errors import ProgramError, describe

OnError = Literal["raise", "tell"]
Functions = Mapping[str, Callable[..., Any]]
ToolCall = Mapping[str, Any]


def check_on_error(on_error: str) -> None:
    """Raise ProgramError if there is no such way to treat an exception of a tool."""
    if on_error not in get_args(OnError):
        raise ProgramError(f"on_error must be {' or '.join(get_args(OnError))}, not {shown(on_error)}")


def run_call(call: ToolCall, functions: Functions, on_error: OnError) -> Any:
    """Run the function of one call; returns what it returns, or a text about its exception if the model is to be told.

    Raises:
        ProgramError: it is no Python function, or one that must be awaited.
        Exception: the function raised it, and `on_error` is "raise".
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
