"""From the arguments of a call to the requests that it stands for: prompts, sampling parameters, constraints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from radixrt.client.engine_client import expand_n, new_rid
from radixrt.client.prompt_parts import token_ids
from radixrt.constraint import KINDS, StructuredOptions, as_structured_options
from radixrt.errors import RequestError, shown
from radixrt.messages.client import GenerateReq
from radixrt.messages.wire import pack_i32
from radixrt.python_types import parse
from radixrt.sampling_params import SamplingParams

Prompt = str | Sequence[int]

NO_DEADLINE_S = 1e9
"""Offline, whoever started the work waits for it; `request_timeout_s` is for servers."""


class RequestOptions(TypedDict, total=False):
    """What a call may say beside prompts and sampling parameters, for all its prompts.

    Attributes:
        json_schema: a schema (dict, JSON text) or a Python type: pydantic model, dataclass, TypedDict, Literal, ...
        regex, ebnf, choices, structural_tag: what else the output may have to be; at most one of these five.
        structured: how that is enforced; a StructuredOptions or a dict of its fields.
        priority: higher is scheduled first.
        cache_salt: namespace of the radix cache.
        timeout_s: the request ends with an error after this long.
    """

    json_schema: Any
    regex: str
    ebnf: str
    choices: Sequence[str]
    structural_tag: Any
    structured: StructuredOptions | dict[str, Any]
    priority: int
    cache_salt: str
    timeout_s: float


@dataclass(frozen=True)
class Asked:
    """What a completion's text is read as.

    Attributes:
        schema: the schema or type of a `json_schema`; None for constraints whose value is their text.
        reasoning_end: free text comes first, up to and including this marker.
    """

    schema: Any
    reasoning_end: str | None

    def value_of(self, text: str) -> Any:
        if self.reasoning_end is not None:
            text = text.partition(self.reasoning_end)[2]
        return text if self.schema is None else parse(self.schema, text)


@dataclass(frozen=True)
class Job:
    """One completion to generate, and how to read it."""

    request: GenerateReq
    asked: Asked | None


def split(prompts: Any) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether it was a single one: a text, or a flat list of token ids.

    Raises:
        RequestError: it is neither a prompt nor a list of prompts.
    """
    if isinstance(prompts, str):
        return [prompts], True
    if not hasattr(prompts, "__iter__") or isinstance(prompts, (bytes, dict)):
        raise RequestError(f"prompts must be texts or lists of token ids, not {shown(prompts)}", param="prompt")
    prompts = list(prompts)
    if prompts and not any(hasattr(p, "__len__") for p in prompts):
        return [prompts], True
    return prompts, False


def jobs(prompts: list[Prompt], params: Any, options: dict[str, Any]) -> Iterator[Job]:
    """The completions of a call, prompt by prompt, n for each; prompts are read as their turn comes.

    Raises:
        RequestError: a parameter is not valid; names it. Later, when its turn comes: a prompt is not.
        TypeError: an option that there is not.
    """
    _check_names(options)
    if isinstance(params, (list, tuple)):
        if len(params) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(params)} sampling_params", param="sampling_params")
        settings = [_with_constraint(one, options) for one in params]
    else:
        settings = [_with_constraint(params, options)] * len(prompts)
    return (
        Job(request, asked)
        for prompt, (sampling, asked) in zip(prompts, settings, strict=True)
        for request in expand_n(_request(prompt, sampling, options, stream=False))
    )


def streamed_job(prompt: Prompt, params: Any, options: dict[str, Any]) -> Job:
    """The one completion of a stream; raises as `jobs` does."""
    _check_names(options)
    sampling, asked = _with_constraint(params, options)
    if sampling.n != 1:
        raise RequestError("streaming takes n=1; start several streams instead", param="n")
    return Job(_request(prompt, sampling, options, stream=True), asked)


def as_sampling_params(value: Any) -> SamplingParams:
    """SamplingParams from None, a dict or itself.

    Raises:
        RequestError: an unknown field, or a value out of bounds.
    """
    if value is None:
        return SamplingParams()
    if isinstance(value, SamplingParams):
        return value.validate()
    if not isinstance(value, dict):
        raise RequestError("sampling_params must be a SamplingParams or a dict", param="sampling_params")
    for name in value:
        if name not in SamplingParams.__struct_fields__:
            known = ", ".join(SamplingParams.__struct_fields__)
            raise RequestError(f"unknown sampling parameter {shown(name)}; known are {known}", param=str(name))
    if "structured" in value:
        value = {**value, "structured": as_structured_options(value["structured"])}
    return SamplingParams(**value).validate()


def _check_names(options: dict[str, Any]) -> None:
    if unknown := options.keys() - RequestOptions.__annotations__.keys():
        raise TypeError(f"unknown argument {min(unknown)!r}; known are {', '.join(RequestOptions.__annotations__)}")


def _with_constraint(params: Any, options: dict[str, Any]) -> tuple[SamplingParams, Asked | None]:
    """The sampling parameters with the constraint of the call's own arguments, and how to read the answer."""
    sampling = as_sampling_params(params)
    own = {name: options[name] for name in (*KINDS, "structured") if options.get(name) is not None}
    if isinstance(own.get("structured"), dict):
        own["structured"] = as_structured_options(own["structured"])
    there = sampling.constraint
    if own and there is not None:
        name = next(iter(own))
        raise RequestError(
            f"{name} is given beside sampling_params that ask for {there.kind} already; say it in one place", param=name
        )
    if own:
        sampling = msgspec.structs.replace(sampling, **own).validate()
    constraint = sampling.constraint
    if constraint is None:
        return sampling, None
    if (
        sampling.structured.reasoning_end is not None
    ):  # some models' marker is a special token, and must show in the text
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
    schema = None
    if constraint.kind == "json_schema":  # as it was given: a type reads its own values
        given = params.get("json_schema") if isinstance(params, dict) else None
        schema = next(s for s in (own.get("json_schema"), given, sampling.json_schema) if s is not None)
    return sampling, Asked(schema, sampling.structured.reasoning_end)


def _request(prompt: Prompt, sampling: SamplingParams, options: dict[str, Any], *, stream: bool) -> GenerateReq:
    text = prompt if isinstance(prompt, str) else None
    return GenerateReq(
        new_rid(),
        sampling,
        prompt=text,
        input_ids=pack_i32(token_ids(prompt, "prompt")) if text is None else None,
        stream=stream,
        priority=options.get("priority", 0),
        cache_salt=options.get("cache_salt", ""),
        timeout_s=options.get("timeout_s", NO_DEADLINE_S),
        return_prompt_ids=text is not None,
    )
