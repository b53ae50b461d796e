"""Requests of a client, each by one call."""

from __future__ import annotations

from typing import Any

from radixrt.messages.client import ClientRequest, Input, InputRow, PartsInput, TextInput, TokenInput
from radixrt.messages.parts import ChatPrompt, Pooling, PromptPart, SelectMethod
from radixrt.messages.request import Envelope
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.score import Score
from radixrt.tasks.tokenize import Tokenize


def given(
    *,
    prompt: str | None = None,
    input_ids: bytes | None = None,
    chat: ChatPrompt | None = None,
    parts: list[PromptPart] | None = None,
) -> Input:
    """The input for a prompt in one of these forms."""
    if prompt is not None:
        return TextInput(prompt)
    if input_ids is not None:
        return TokenInput(input_ids)
    if chat is not None:
        return chat
    assert parts is not None
    return PartsInput(parts)


def generating(
    rid: str,
    sampling: SamplingParams | None = None,
    *,
    stream: bool = False,
    return_prompt_ids: bool = True,
    keep_last: int | None = None,
    prompt: str | None = None,
    input_ids: bytes | None = None,
    chat: ChatPrompt | None = None,
    parts: list[PromptPart] | None = None,
    **envelope: Any,
) -> ClientRequest:
    """A request for one completion."""
    row = InputRow(given(prompt=prompt, input_ids=input_ids, chat=chat, parts=parts), keep_last=keep_last)
    return ClientRequest(Envelope(rid, **envelope), [row], sampling or SamplingParams(), stream, return_prompt_ids)


def scoring(
    rid: str,
    choices: list[str],
    method: SelectMethod = "token_length_normalized",
    *,
    prompt: str | None = None,
    input_ids: bytes | None = None,
    chat: ChatPrompt | None = None,
    parts: list[PromptPart] | None = None,
    **envelope: Any,
) -> ClientRequest:
    """A request to score choices."""
    prompt_input = given(prompt=prompt, input_ids=input_ids, chat=chat, parts=parts)
    return Score(prompt_input, choices, Envelope(rid, **envelope), method).requests[0]


def tokenizing(rid: str, **prompt: Any) -> ClientRequest:
    """A request for the token ids of a prompt."""
    return Tokenize(given(**prompt), Envelope(rid)).requests[0]


def detokenizing(rid: str, ids: bytes, skip_special_tokens: bool = True) -> ClientRequest:
    """A request for the text of token ids."""
    row = InputRow(TokenInput(ids, "tokens"), decode=skip_special_tokens)
    return ClientRequest(Envelope(rid), [row], return_prompt_ids=False, task="tokenize")


def pooling(rid: str, inputs: list[Input], kind: Pooling = "last", **envelope: Any) -> ClientRequest:
    """A request for pooled hidden states."""
    return ClientRequest(Envelope(rid, **envelope), [InputRow(each, kind) for each in inputs], task="embed")
