"""Forms of errors, and of the answers of completions, /generate and /v1/decisions, for the OpenAPI description.

Routes build their answers as plain dictionaries, because most parts of a stream are encoded once; these types describe
them, to the last member: tests hold real answers against them. A member that is not always there is UNSET by default.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all answers: they have no other members."""


# --- errors ---


class ErrorDetail(Answer, kw_only=True):
    """An error; `param` names the field of the request that is at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer, kw_only=True):
    """Body of an error, as in OpenAI's API."""

    error: ErrorDetail


class MessagesErrorDetail(Answer, kw_only=True):
    """An error in the form of Anthropic's API."""

    type: str
    message: str


class MessagesErrorBody(Answer, kw_only=True):
    """Body of an error of the Messages API."""

    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: str


# --- parts that answers share ---


class CachedTokens(Answer, kw_only=True):
    """Tokens of the prompt that came from the cache."""

    cached_tokens: int


class ReasoningTokens(Answer, kw_only=True):
    """Tokens of the output that are reasoning."""

    reasoning_tokens: int


class Usage(Answer, kw_only=True):
    """Tokens of prompts and completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class PromptUsage(Answer, kw_only=True):
    """Tokens of an answer that generates nothing."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens: int | UnsetType = UNSET


class Enforcement(Answer, kw_only=True):
    """Report of how a constraint was enforced."""

    backend: str
    forced_close: bool
    forced_tokens: int
    closing_tokens: int
    ignored: list[str]


class PromptLogprob(Answer, kw_only=True):
    """Log-probability of one alternative at a position of the prompt."""

    logprob: float | None
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt, its alternatives by token id; null for the first."""


class TokenReportAnswer(Answer, kw_only=True):
    """Members about tokens, which requests ask for."""

    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    hidden_states: list[list[float]] | UnsetType = UNSET


# --- completions ---


class LegacyLogprobs(Answer, kw_only=True):
    """Log-probabilities as parallel lists, one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(TokenReportAnswer, kw_only=True):
    """One completion, or a part of it in a stream."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    radixrt: Enforcement | UnsetType = UNSET


class Completion(Answer, kw_only=True):
    """Answer of /v1/completions; in a stream, `choices` holds what is new."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None


# --- /generate ---


class NativeFinish(Answer, kw_only=True):
    """End of a completion, and the stop string or token that ended it."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None


TokenRow = tuple[float | None, int, str]
"""Log-probability, token id and text."""


class NativeMeta(Answer, kw_only=True):
    """About a completion; in a stream, counts and times are in its last event."""

    id: str
    finish_reason: NativeFinish | None
    kept: int | UnsetType | None = UNSET
    tail: str | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET
    cached_tokens: int | UnsetType = UNSET
    missed: str | UnsetType = UNSET
    queue_s: float | UnsetType = UNSET
    prefill_s: float | UnsetType = UNSET
    decode_s: float | UnsetType = UNSET
    retractions: int | UnsetType = UNSET
    radixrt: Enforcement | UnsetType = UNSET
    output_token_logprobs: list[TokenRow] | UnsetType = UNSET
    output_top_logprobs: list[list[TokenRow]] | UnsetType = UNSET
    input_token_logprobs: list[TokenRow] | UnsetType = UNSET
    input_top_logprobs: list[list[TokenRow]] | UnsetType = UNSET
    hidden_states: list[list[float]] | str | UnsetType = UNSET


class Generation(Answer, kw_only=True):
    """One completion of /generate."""

    text: str
    output_ids: list[int]
    index: int
    meta_info: NativeMeta
    prompt_ids: list[int] | UnsetType = UNSET


# --- decisions ---


class ChoiceMeta(Answer, kw_only=True):
    """About scored choices."""

    id: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float
    prefill_s: float


class ScoredChoices(Answer, kw_only=True):
    """Scores of texts that may follow a prompt."""

    choice: int
    text: str
    probabilities: list[float]
    logprobs: list[float | None]
    scores: list[float | None]
    token_ids: list[list[int]]
    kept: int
    meta_info: ChoiceMeta
    prompt_ids: list[int] | UnsetType = UNSET


class ChoiceShare(Answer, kw_only=True):
    """Probability of one option of a question."""

    value: str | bool
    probability: float


class LevelShare(Answer, kw_only=True):
    """Probability of one level of a question."""

    value: int
    label: str
    probability: float


class PredicateDecision(Answer, tag_field="type", tag="predicate", kw_only=True):
    """Probability that a predicate is true."""

    name: str | None
    probability: float


class ChoiceDecision(Answer, tag_field="type", tag="choice", kw_only=True):
    """The most probable option."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceShare]


class ScoreDecision(Answer, tag_field="type", tag="score", kw_only=True):
    """The expected level."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelShare]


class InputDetails(Answer, kw_only=True):
    """Tokens of the input that came from the cache, and those that went into it."""

    cached_tokens: int
    cache_write_tokens: int


class InputUsage(Answer, kw_only=True):
    """Usage as OpenAI's newer APIs report it."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Decisions(Answer, kw_only=True):
    """Answers to questions."""

    model: str
    answers: list[PredicateDecision | ChoiceDecision | ScoreDecision]
    usage: InputUsage
