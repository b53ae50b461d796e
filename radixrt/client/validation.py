"""Checks of requests before they are sent to the engine."""

from __future__ import annotations

from typing import get_args

from radixrt.errors import RequestError, shown
from radixrt.messages.client import DetokenizeReq, EmbedReq, GenerateReq, ScoreReq, TokenizeReq
from radixrt.messages.parts import ProgramHint, PromptPart, SelectMethod, TemplateText

Question = ScoreReq | EmbedReq | TokenizeReq | DetokenizeReq
"""Request that is answered with one RequestOutput."""

Request = GenerateReq | Question
"""Request that is answered with RequestOutputs, the last of which has `finish`."""


def check_request(request: Request) -> None:
    """Check parameters and types of a request.

    The engine drops a message whose fields have wrong types, and such a request would never be answered.

    Raises:
        RequestError: a field is not valid; names it.
    """
    if isinstance(request, GenerateReq):
        request.sampling.validate()
    if isinstance(request, (GenerateReq, ScoreReq, EmbedReq)):
        _check_routing(request)
    if isinstance(request, ScoreReq):
        _check_choices(request)
    if isinstance(request, EmbedReq):
        _check_embed(request)
    elif not isinstance(request, DetokenizeReq):
        _check_parts(request.parts)


def _check_hint(hint: ProgramHint | None) -> None:
    if hint is None:
        return
    if not isinstance(hint, ProgramHint):
        raise RequestError(f"program must be a ProgramHint, not {shown(hint)}", param="program")
    for name, kind in (
        ("program", str),
        ("branch", str),
        ("fork_len", int),
        ("siblings", int),
        ("will_continue", bool),
    ):
        value = getattr(hint, name)
        if type(value) is not kind:
            raise RequestError(f"program.{name} must be a {kind.__name__}, not {shown(value)}", param=f"program.{name}")
    for name in ("fork_len", "siblings"):
        if not -(2**31) <= getattr(hint, name) < 2**31:
            raise RequestError(f"program.{name} must be a 32-bit integer", param=f"program.{name}")


def _check_choices(request: ScoreReq) -> None:
    if request.method not in get_args(SelectMethod):
        known = ", ".join(get_args(SelectMethod))
        raise RequestError(f"method must be one of {known}; not {shown(request.method)}", param="method")
    if not isinstance(request.choices, list):
        raise RequestError(f"choices must be a list of texts, not {shown(request.choices)}", param="choices")
    for i, choice in enumerate(request.choices):
        if not isinstance(choice, str):
            raise RequestError(f"choices[{i}] must be a text, not {shown(choice)}", param=f"choices[{i}]")


def _check_embed(request: EmbedReq) -> None:
    for name, kind in (("prompts", str), ("input_ids", bytes)):
        given = getattr(request, name)
        for i, prompt in enumerate(given or ()):
            if not isinstance(prompt, kind):
                raise RequestError(f"{name}[{i}] must be a {kind.__name__}, not {shown(prompt)}", param=f"{name}[{i}]")
    for name, wanted in (("dimensions", int), ("normalize", bool)):
        value = getattr(request, name)
        if value is not None and type(value) is not wanted:
            raise RequestError(f"{name} must be a {wanted.__name__}, not {shown(value)}", param=name)
    if request.dimensions is not None and not 1 <= request.dimensions < 2**31:
        raise RequestError(f"dimensions must be at least 1, not {request.dimensions}", param="dimensions")


def _check_routing(request: GenerateReq | ScoreReq | EmbedReq) -> None:
    if not isinstance(request.priority, int) or isinstance(request.priority, bool):
        raise RequestError(f"priority must be an integer, not {shown(request.priority)}", param="priority")
    if not isinstance(request.cache_salt, str):
        raise RequestError(f"cache_salt must be a string, not {shown(request.cache_salt)}", param="cache_salt")
    _check_hint(request.program)
    timeout_s = request.timeout_s
    if timeout_s is not None and (not isinstance(timeout_s, (int, float)) or isinstance(timeout_s, bool)):
        raise RequestError(f"timeout_s must be a number, not {shown(timeout_s)}", param="timeout_s")


def _check_parts(parts: list[PromptPart] | None) -> None:
    for i, part in enumerate(parts or ()):
        if not isinstance(part, (str, list, TemplateText)):
            raise RequestError(
                f"input_parts[{i}] must be a text, a list of token ids or a TemplateText, not {shown(part)}",
                param=f"input_parts[{i}]",
            )
