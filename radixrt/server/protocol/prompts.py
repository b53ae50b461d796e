"""Prompts of /v1/completions and /generate: text or token ids, one or several; or one prompt in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt.client.validation import MAX_ROWS
from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, EngineReady, Input, InputRow, PartsInput, TextInput, TokenInput
from radixrt.messages.parts import FillInTokens, PromptPart, TemplateText
from radixrt.messages.request import Envelope
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.server.protocol.fields import MAX_COMPLETIONS, MAX_PARTS, MAX_PROMPTS
from radixrt.tasks.prompts import pack_parts

Prompt = str | list[int]


def split_prompts(given: Any, param: str, most: int = MAX_PROMPTS) -> list[Prompt]:
    """Return a list of prompts, `most` at most, from str | [str] | [int] | [[int]]."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError(f"{param} must not be empty", param=param)
    if isinstance(given[0], int):
        _check_all(given, int, param)
        return [given]
    _check_all(given, type(given[0]), param)
    if len(given) > most:
        raise RequestError(f"{param} holds {len(given)} prompts; at most {most} are allowed", param=param)
    for i, prompt in enumerate(given):
        if isinstance(prompt, list) and not prompt:
            raise RequestError(f"{param}[{i}] must not be empty", param=f"{param}[{i}]")
    return list(given)


def _check_all(items: Sequence[Any], kind: type, param: str) -> None:
    for i, item in enumerate(items):
        if type(item) is not kind:
            raise RequestError(
                f"{param} must hold only strings, only token ids, or only lists of token ids", param=f"{param}[{i}]"
            )


def check_ids(ids: list[int], param: str, info: EngineReady) -> None:
    """Refuse ids outside the vocabulary, and a prompt that is too long, before any request is sent."""
    if len(ids) > info.max_input_tokens:
        raise RequestError(
            f"the prompt has {len(ids)} tokens; at most {info.max_input_tokens} can be served",
            param=param,
            code="context_length_exceeded",
        )
    if min(ids) < 0 or max(ids) >= info.vocab_size:
        wrong = next(token for token in ids if not 0 <= token < info.vocab_size)
        raise RequestError(
            f"{param} holds {str(wrong)[:40]}, which is not a token id below {info.vocab_size} (the vocabulary)",
            param=param,
        )


def read_parts(given: Sequence[str | list[int] | TemplateText], info: EngineReady, param: str) -> list[PromptPart]:
    """Check the parts of one prompt and return them in the form of `PartsInput`."""
    if len(given) > MAX_PARTS:
        raise RequestError(f"{param} holds {len(given)} parts; at most {MAX_PARTS} are allowed", param=param)
    for i, part in enumerate(given):
        if isinstance(part, list) and part:
            check_ids(part, f"{param}[{i}]", info)
    return pack_parts(given, param)


def make_requests(
    prompts: list[Prompt],
    param: str,
    sampling: SamplingParams,
    info: EngineReady,
    envelope: Envelope,
    *,
    stream: bool,
    keep_last: int | None = None,
) -> list[ClientRequest]:
    """Build one request for each prompt, which stands for n completions."""
    if len(prompts) * sampling.n > MAX_COMPLETIONS:
        raise RequestError(f"{len(prompts)} prompts times n is more than {MAX_COMPLETIONS} completions", param="n")
    requests: list[ClientRequest] = []
    for i, prompt in enumerate(prompts):
        own = msgspec.structs.replace(envelope, rid=f"{envelope.rid}-p{i}") if len(prompts) > 1 else envelope
        if isinstance(prompt, str):
            given: Input = TextInput(prompt)
        else:
            check_ids(prompt, param, info)
            given = TokenInput(pack_i32(prompt))
        requests.append(ClientRequest(own, [InputRow(given, keep_last=keep_last)], sampling, stream))
    return requests


def fill_in(request: ClientRequest, prompt: Prompt, suffix: str, tokens: FillInTokens) -> ClientRequest:
    """The request for the text between a prompt and a suffix. `FILL_IN_NAMES` are the client's names of its parts."""
    parts = pack_parts([
        "",  # what the tokenizer writes before a text, such as bos
        TemplateText(tokens.before_prefix), prompt,
        TemplateText(tokens.before_suffix), suffix,
        TemplateText(tokens.before_middle),
    ])  # fmt: skip
    sampling = request.sampling
    if sampling is not None and not sampling.ignore_eos:
        ends = dict.fromkeys([*sampling.stop_token_ids, *tokens.end_ids])
        sampling = msgspec.structs.replace(sampling, stop_token_ids=tuple(ends))
    return msgspec.structs.replace(request, rows=[InputRow(PartsInput(parts))], sampling=sampling)


FILL_IN_NAMES = {"input_parts": "prompt", "input_parts[2]": "prompt", "input_parts[4]": "suffix"}


def read_inputs(given: str | list[str | int | list[int]], info: EngineReady) -> list[Input]:
    """Return the inputs of an embedding or classification request for the prompts that the field `input` holds."""
    prompts = split_prompts(given, "input", MAX_ROWS)
    is_one = isinstance(given, str) or isinstance(given[0], int)
    names = ["input"] if is_one else [f"input[{i}]" for i in range(len(prompts))]
    inputs: list[Input] = []
    for prompt, name in zip(prompts, names, strict=True):
        if isinstance(prompt, str):
            inputs.append(TextInput(prompt, name))
        else:
            check_ids(prompt, name, info)
            inputs.append(TokenInput(pack_i32(prompt), name))
    return inputs
