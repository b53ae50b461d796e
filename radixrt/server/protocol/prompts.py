"""Prompts of /v1/completions and /generate: text or token ids, one or several; or one prompt in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt.chat.constraint import FieldNames
from radixrt.client.requests import pack_parts
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, GenerateReq
from radixrt.messages.parts import FillInTokens, PromptPart, TemplateText
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.server.protocol.fields import MAX_COMPLETIONS, MAX_PARTS, MAX_PROMPTS
from radixrt.tokenizer.pooled_state import MAX_PROMPTS as MAX_POOLED

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
    """Check the parts of one prompt and return them in the form of `GenerateReq`."""
    if len(given) > MAX_PARTS:
        raise RequestError(f"{param} holds {len(given)} parts; at most {MAX_PARTS} are allowed", param=param)
    for i, part in enumerate(given):
        if isinstance(part, list) and part:
            check_ids(part, f"{param}[{i}]", info)
    return pack_parts(given, param)


def make_requests(
    prompts: list[Prompt], param: str, sampling: SamplingParams, info: EngineReady, options: dict[str, Any]
) -> list[GenerateReq]:
    """Build one request for each prompt, which stands for n completions."""
    if len(prompts) * sampling.n > MAX_COMPLETIONS:
        raise RequestError(f"{len(prompts)} prompts times n is more than {MAX_COMPLETIONS} completions", param="n")
    requests: list[GenerateReq] = []
    for i, prompt in enumerate(prompts):
        request = GenerateReq(sampling=sampling, **options)
        if len(prompts) > 1:
            request = msgspec.structs.replace(request, rid=f"{options['rid']}-p{i}")
        if isinstance(prompt, str):
            request = msgspec.structs.replace(request, prompt=prompt)
        else:
            check_ids(prompt, param, info)
            request = msgspec.structs.replace(request, input_ids=pack_i32(prompt))
        requests.append(request)
    return requests


def fill_in(request: GenerateReq, prompt: Prompt, suffix: str, tokens: FillInTokens) -> GenerateReq:
    """The request for the text between a prompt and a suffix. `FILL_IN_NAMES` are the client's names of its parts."""
    parts = pack_parts([
        "",  # what the tokenizer writes before a text, such as bos
        TemplateText(tokens.before_prefix), prompt,
        TemplateText(tokens.before_suffix), suffix,
        TemplateText(tokens.before_middle),
    ])  # fmt: skip
    sampling = request.sampling
    if not sampling.ignore_eos:
        ends = dict.fromkeys([*sampling.stop_token_ids, *tokens.end_ids])
        sampling = msgspec.structs.replace(sampling, stop_token_ids=tuple(ends))
    return msgspec.structs.replace(request, prompt=None, input_ids=None, parts=parts, sampling=sampling)


FILL_IN_NAMES = {"input_parts": "prompt", "input_parts[2]": "prompt", "input_parts[4]": "suffix"}


def read_input(given: str | list[str | int | list[int]], info: EngineReady) -> tuple[dict[str, Any], int, FieldNames]:
    """Read the prompts of an embedding or classification request.

    Returns:
        The engine's field with the prompts, their number, and the client's names for the engine's fields.
    """
    prompts = split_prompts(given, "input", MAX_POOLED)
    is_one = isinstance(given, str) or isinstance(given[0], int)
    names = dict.fromkeys(("prompts[0]", "input_ids[0]"), "input") if is_one else {}
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts:
        return {"prompts": texts}, len(prompts), names
    ids = [prompt for prompt in prompts if not isinstance(prompt, str)]
    for i, each in enumerate(ids):
        check_ids(each, "input" if is_one else f"input[{i}]", info)
    return {"input_ids": [pack_i32(each) for each in ids]}, len(prompts), names
