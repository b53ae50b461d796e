"""Checks of requests before they are sent to the engine."""

from __future__ import annotations

from typing import get_args

from radixrt.errors import RequestError, shown
from radixrt.messages.client import (
    ClassifyReq,
    DetokenizeReq,
    EmbedReq,
    GenerateReq,
    RelevanceReq,
    ScoreReq,
    TokenizeReq,
)
from radixrt.messages.parts import ProgramHint, PromptPart, SelectMethod, TemplateText

Question = ScoreReq | EmbedReq | ClassifyReq | RelevanceReq | TokenizeReq | DetokenizeReq
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
    if not isinstance(request, (TokenizeReq, DetokenizeReq)):
        _check_routing(request)
    if isinstance(request, ScoreReq):
        _check_choices(request)
    if isinstance(request, (EmbedReq, ClassifyReq)):
        _check_prompts(request)
    elif isinstance(request, RelevanceReq):
        _check_relevance(request)
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


def _check_prompts(request: EmbedReq | ClassifyReq) -> None:
    for name, kind in (("prompts", str), ("input_ids", bytes)):
        _check_each(request, name, kind)
    if isinstance(request, ClassifyReq):
        _check_types(request, {"activation": bool}, optional=False)
        return
    _check_types(request, {"dimensions": int, "normalize": bool, "prompt_name": str, "prompt_text": str})
    if request.dimensions is not None and not 1 <= request.dimensions < 2**31:
        raise RequestError(f"dimensions must be at least 1, not {request.dimensions}", param="dimensions")


def _check_relevance(request: RelevanceReq) -> None:
    for name in ("queries", "documents"):
        _check_each(request, name, str)
    _check_types(request, {"instruction": str})
    _check_types(request, {"activation": bool, "retrieves": bool}, optional=False)


def _check_each(request: Question, name: str, kind: type) -> None:
    """Check the elements of a field that is a list."""
    for i, value in enumerate(getattr(request, name) or ()):
        if not isinstance(value, kind):
            raise RequestError(f"{name}[{i}] must be a {kind.__name__}, not {shown(value)}", param=f"{name}[{i}]")


def _check_types(request: Question, kinds: dict[str, type], *, optional: bool = True) -> None:
    for name, kind in kinds.items():
        value = getattr(request, name)
        if not (optional and value is None) and type(value) is not kind:
            param = "prompt" if name == "prompt_text" else name
            raise RequestError(f"{param} must be a {kind.__name__}, not {shown(value)}", param=param)


def _check_routing(request: GenerateReq | ScoreReq | EmbedReq | ClassifyReq | RelevanceReq) -> None:
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
