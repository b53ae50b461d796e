"""Generation: completions of prompts, whole or streamed, with their sampling parameters and constraints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

import msgspec

from radixrt.client.answers import raise_for_error
from radixrt.client.collector import OutputCollector
from radixrt.constraint import KINDS, StructuredOptions, as_structured_options
from radixrt.errors import RequestError, shown
from radixrt.messages.client import ClientRequest, Input, InputRow, RequestOutput, TokenInput
from radixrt.messages.parts import FINISH_ABORT, Finish, Timings, Usage
from radixrt.messages.wire import pack_i32
from radixrt.python_types import parse
from radixrt.sampling_params import HiddenPositions, SamplingParams
from radixrt.tasks.messages import Messages, chat_input, is_messages, read_images, text_about
from radixrt.tasks.prompts import Prompt, input_of, take_envelope, token_ids


def expand_n(request: ClientRequest) -> list[ClientRequest]:
    """Split a request for n completions into n requests for one; request i gets the seed + i, if there is a seed."""
    sampling = request.sampling
    if sampling is None or sampling.n == 1:
        return [request]
    out = []
    for i in range(sampling.n):
        seed = None if sampling.seed is None else (sampling.seed + i + 2**63) % 2**64 - 2**63
        one = msgspec.structs.replace(sampling, n=1, seed=seed)
        envelope = msgspec.structs.replace(request.envelope, rid=f"{request.rid}-{i}")
        out.append(msgspec.structs.replace(request, envelope=envelope, sampling=one))
    return out


class RequestOptions(TypedDict, total=False):
    """Options of a call besides prompts and sampling parameters; they apply to all its prompts.

    Attributes:
        json_schema: a schema (dict, JSON text) or a Python type: pydantic model, dataclass, TypedDict, Literal, ...
        regex, ebnf, choices, structural_tag: other constraints; a call may have at most one constraint.
        structured: how the constraint is enforced; a StructuredOptions or a dict of its fields.
        return_hidden_states: "last" or "prompt"; see `SamplingParams`.
        priority: higher is scheduled first.
        cache_salt: namespace of the radix cache.
        timeout_s: the request ends with an error after this long.
        images: list of pictures (see `radixrt.vision.encode.picture_bytes`). Each prompt must be a text, and becomes a
            message of the user in which the pictures come first.
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
    images: Sequence[Any]


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


class Completion(RequestOutput, frozen=True, kw_only=True):
    """One finished completion.

    Attributes:
        text: the output, without its stop string or end token unless the request asked for it.
        token_ids: output token ids, the stop token included if one ended the request.
        prompt_token_ids: token ids of the prompt as the model received it.
        finish_reason: "stop", "length", "timeout" (the deadline, with the output so far) or "abort".
        matched_stop: stop string or stop token id that ended the request.
        logprobs, prompt_logprobs: one entry for each token, if requested.
        hidden_states: of the prompt, if requested: `hidden_states.array` is float32 [1 or prompt tokens, hidden size].
        usage: token counts, cached ones included.
        timings: seconds in the scheduler.
        forced_close: whether a constrained output was closed early along the grammar's shortest completion.
        constraint: how the constraint was enforced; None without a constraint.
        reader: reads `parsed` from the text; None without a constraint.
    """

    finish: Finish
    usage: Usage
    timings: Timings
    reader: OutputReader | None = None

    @property
    def finish_reason(self) -> str:
        return self.finish.reason

    @cached_property
    def parsed(self) -> Any:
        """Value of the output: of the type or schema for `json_schema`, the text for other constraints (the part after
        the reasoning, if there is any); None without a constraint, or if the request was aborted.

        Raises:
            ValueError: the type has a rule that its schema cannot express, and the value breaks it (pydantic's
                ValidationError).
        """
        if self.reader is None or self.finish_reason == FINISH_ABORT:
            return None
        return self.reader.value_of(self.text)

    def __repr__(self) -> str:
        names = ("text", "token_ids", "finish_reason", "matched_stop", "usage", "timings", "forced_close", "constraint")
        return f"Completion({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Chunk(RequestOutput, frozen=True, kw_only=True):
    """Increment of a streamed completion: new `text` and `token_ids`; the last one carries the whole `completion`."""

    completion: Completion | None = None

    def __repr__(self) -> str:
        return f"Chunk(text={self.text!r}, token_ids={self.token_ids!r}, completion={self.completion!r})"


def as_completion(
    output: RequestOutput, reader: OutputReader | None = None, prompt_ids: bytes | None = None
) -> Completion:
    """Convert a whole output to a Completion.

    Args:
        reader: reads the completion's value; None without a constraint.
        prompt_ids: int32[n] column of the prompt where the caller has it, since the engine does not send it back then.

    Raises:
        RequestError: the request ended with an error.
    """
    finish = output.finish
    assert finish is not None
    raise_for_error(finish)
    fields = _fields(output)
    fields["prompt_ids"] = output.prompt_ids or prompt_ids
    fields["usage"] = output.usage or Usage()
    fields["timings"] = output.timings or Timings()
    return Completion(**fields, reader=reader)


def _fields(output: RequestOutput) -> dict[str, Any]:
    return {name: getattr(output, name) for name in RequestOutput.__struct_fields__}


@dataclass(frozen=True)
class Job:
    """Request for one completion, and the reader of its value; None without a constraint."""

    request: ClientRequest
    reader: OutputReader | None

    def completion(self, output: RequestOutput | None) -> Completion:
        """Return the completion from the whole output; raises RequestError if the request ended with an error."""
        assert output is not None
        prompt = self.request.rows[0].input
        return as_completion(output, self.reader, prompt.ids if isinstance(prompt, TokenInput) else None)

    def chunk(self, collector: OutputCollector, output: RequestOutput) -> Chunk:
        """Return the chunk for the next increment, which the collector takes; raises as `completion`."""
        whole = collector.add(output)
        return Chunk(**_fields(output), completion=None if whole is None else self.completion(whole))


def jobs(prompts: list[Prompt | Messages], params: Any, options: dict[str, Any]) -> Iterator[Job]:
    """Jobs of a call, prompt by prompt, n for each; a prompt is converted when the iterator reaches it.

    Raises:
        RequestError: a parameter is not valid; names it. From the iterator: a prompt is not valid.
        TypeError: an unknown option.
    """
    options = _checked(options)
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


def streamed_job(prompt: Prompt | Messages, params: Any, options: dict[str, Any]) -> Job:
    """The one job of a stream; raises as `jobs` does."""
    options = _checked(options)
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


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call with its pictures read, once for all prompts."""
    if unknown := options.keys() - RequestOptions.__annotations__.keys():
        raise TypeError(f"unknown argument {min(unknown)!r}; known are {', '.join(RequestOptions.__annotations__)}")
    images = options.get("images")
    return options if images is None else {**options, "images": read_images(images)}


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


def _request(
    prompt: Prompt | Messages, sampling: SamplingParams, options: dict[str, Any], *, stream: bool
) -> ClientRequest:
    """Build the request for the completions of a prompt; token ids are not sent back, since the caller has them."""
    given: Input
    if options.get("images") is not None:
        given = text_about(options["images"], prompt)
    elif is_messages(prompt):
        given = chat_input(prompt)
    else:
        given = input_of(prompt) if isinstance(prompt, str) else TokenInput(pack_i32(token_ids(prompt, "prompt")))
    known = isinstance(given, TokenInput)
    return ClientRequest(take_envelope(dict(options)), [InputRow(given)], sampling, stream, return_prompt_ids=not known)
