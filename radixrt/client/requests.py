"""Builds the requests of the offline API from the arguments of a call: prompts, sampling parameters, constraints."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import numpy as np

from radixrt.constraint import KINDS, StructuredOptions, as_structured_options
from radixrt.errors import RequestError, shown
from radixrt.messages.client import GenerateReq, ScoreReq, TokenizeReq
from radixrt.messages.parts import ProgramHint, PromptPart, SelectMethod, TemplateText
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.python_types import parse
from radixrt.sampling_params import HiddenPositions, SamplingParams

Prompt = str | Sequence[int]
"""A text or token ids."""

Part = str | Sequence[int] | TemplateText
"""Part of a prompt: a user's text, token ids, or a text that the chat template wrote."""

ScoredPrompt = Prompt | Sequence[Part]
"""A text, token ids, or parts (see `GenerateReq.parts`)."""

NO_DEADLINE_S = 1e9
"""Timeout of offline requests: their caller waits for them; `request_timeout_s` is for servers."""


def new_rid() -> str:
    """Return a unique request id."""
    return uuid.uuid4().hex


def expand_n(request: GenerateReq) -> list[GenerateReq]:
    """Split a request for n completions into n requests for one; request i gets the seed + i, if there is a seed."""
    sampling = request.sampling
    if sampling.n == 1:
        return [request]
    out = []
    for i in range(sampling.n):
        seed = None if sampling.seed is None else (sampling.seed + i + 2**63) % 2**64 - 2**63
        one = msgspec.structs.replace(sampling, n=1, seed=seed)
        out.append(msgspec.structs.replace(request, rid=f"{request.rid}-{i}", sampling=one))
    return out


class RequestOptions(TypedDict, total=False):
    """Options of a call besides prompts and sampling parameters; they apply to all its prompts.

    Attributes:
        json_schema: a schema (dict, JSON text) or a Python type: pydantic model, dataclass, TypedDict, Literal, ...
        regex, ebnf, choices, structural_tag: other constraints; at most one of these five may be given.
        structured: how the constraint is enforced; a StructuredOptions or a dict of its fields.
        return_hidden_states: "last" or "prompt"; see `SamplingParams`.
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
    return_hidden_states: HiddenPositions
    priority: int
    cache_salt: str
    timeout_s: float


@dataclass(frozen=True)
class OutputReader:
    """Reads the value of a constrained completion from its text.

    Attributes:
        schema: the schema or type of a `json_schema`; None for constraints whose value is the text.
        reasoning_end: marker that ends the free text before the constrained output, if there is such text.
    """

    schema: Any
    reasoning_end: str | None

    def value_of(self, text: str) -> Any:
        """Return the value; raises ValueError if the text does not parse as the type."""
        if self.reasoning_end is not None:
            text = text.partition(self.reasoning_end)[2]
        return text if self.schema is None else parse(self.schema, text)


@dataclass(frozen=True)
class Job:
    """Request for one completion, and the reader of its value; None without a constraint."""

    request: GenerateReq
    reader: OutputReader | None


def split(prompts: Any) -> tuple[list[Prompt], bool]:
    """Return the prompts as a list, and whether the argument was a single prompt: a text or a flat list of token ids.

    Raises:
        RequestError: the argument is neither a prompt nor a list of prompts.
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
    """Jobs of a call, prompt by prompt, n for each; a prompt is converted when the iterator reaches it.

    Raises:
        RequestError: a parameter is not valid; names it. From the iterator: a prompt is not valid.
        TypeError: an unknown option.
    """
    _check_names(options)
    if isinstance(params, (list, tuple)):
        if len(params) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(params)} sampling_params", param="sampling_params")
        settings = [_with_constraint(one, options) for one in params]
    else:
        settings = [_with_constraint(params, options)] * len(prompts)
    return (
        Job(request, reader)
        for prompt, (sampling, reader) in zip(prompts, settings, strict=True)
        for request in expand_n(_request(prompt, sampling, options, stream=False))
    )


def streamed_job(prompt: Prompt, params: Any, options: dict[str, Any]) -> Job:
    """The one job of a stream; raises as `jobs` does."""
    _check_names(options)
    sampling, reader = _with_constraint(params, options)
    if sampling.n != 1:
        raise RequestError("streaming takes n=1; start several streams instead", param="n")
    return Job(_request(prompt, sampling, options, stream=True), reader)


def as_sampling_params(value: Any) -> SamplingParams:
    """Convert None, a dict or SamplingParams to validated SamplingParams.

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


def _with_constraint(params: Any, options: dict[str, Any]) -> tuple[SamplingParams, OutputReader | None]:
    """Merge the constraint of the call's own arguments into the sampling parameters; return also the reader."""
    sampling = as_sampling_params(_with_hidden_states(params, options))
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
    if sampling.structured.reasoning_end is not None:
        # In some models the marker is a special token; it must stay in the text.
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
    schema = None
    if constraint.kind == "json_schema":  # the original argument: a type parses its own values
        given = params.get("json_schema") if isinstance(params, dict) else None
        schema = next(s for s in (own.get("json_schema"), given, sampling.json_schema) if s is not None)
    return sampling, OutputReader(schema, sampling.structured.reasoning_end)


def _with_hidden_states(params: Any, options: dict[str, Any]) -> Any:
    """Merge the call's own return_hidden_states into the sampling parameters, before these are checked: with it
    max_tokens may be 0."""
    wanted = options.get("return_hidden_states")
    if wanted is None:
        return params
    if isinstance(params, SamplingParams):
        return msgspec.structs.replace(params, return_hidden_states=wanted)
    return {**(params or {}), "return_hidden_states": wanted} if params is None or isinstance(params, dict) else params


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


def score_request(
    prompt: ScoredPrompt, choices: Sequence[str], method: SelectMethod, *, priority: int = 0, cache_salt: str = "",
    timeout_s: float = NO_DEADLINE_S, program: ProgramHint | None = None,
) -> ScoreReq:  # fmt: skip
    """Build a scoring request; raises RequestError if the prompt or the choices have a wrong type."""
    if isinstance(choices, (str, bytes)) or not hasattr(choices, "__iter__"):
        raise RequestError(f"choices must be a list of texts, not {shown(choices)}", param="choices")
    return ScoreReq(
        new_rid(),
        list(choices),
        method,
        priority=priority,
        cache_salt=cache_salt,
        timeout_s=timeout_s,
        program=program,
        **prompt_fields(prompt),
    )


def tokenize_request(prompt: ScoredPrompt) -> TokenizeReq:
    """Build a tokenizing request; raises RequestError if the prompt has a wrong type."""
    return TokenizeReq(new_rid(), **prompt_fields(prompt))


def prompt_fields(prompt: ScoredPrompt) -> dict[str, Any]:
    """Return the request field for a prompt of this form, as a keyword argument."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if hasattr(prompt, "__iter__") and any(hasattr(part, "__len__") or hasattr(part, "template") for part in prompt):
        return {"parts": pack_parts(prompt)}  # type: ignore[arg-type]  # told from token ids by its elements
    return {"input_ids": pack_i32(token_ids(prompt, "prompt"))}


def pack_parts(parts: Sequence[Part], param: str = "input_parts") -> list[PromptPart]:
    """Convert a prompt in parts to the parts of a `GenerateReq`.

    Raises:
        RequestError: a part has a wrong type; names it with its index.
    """
    packed: list[PromptPart] = []
    for i, part in enumerate(parts):
        packed.append(part if isinstance(part, (str, TemplateText)) else token_ids(part, f"{param}[{i}]").tolist())
    return packed


def token_ids(ids: object, param: str) -> Int32Array:
    """Convert a flat sequence of integers to int32[n]; raises RequestError naming `param`."""
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError, OverflowError):
        array = np.empty((), object)
    whole = array.ndim == 1 and (array.dtype.kind in "iu" or not len(array))
    if not whole or (len(array) and not -(2**31) <= array.min() <= array.max() < 2**31):
        raise RequestError(
            f"{param} must be a text or a list of token ids, which are integers; not {shown(ids)}", param=param
        )
    return array.astype(np.int32)
