"""Parts that answers share: finish reasons, usage, log-probabilities, and reports of constraints and of tokens."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from radixrt.messages import parts as engine
from radixrt.messages.client import RequestOutput
from radixrt.messages.reads import HiddenStates as StateColumns
from radixrt.messages.reads import TokenLogprob as LogprobRow
from radixrt.server.answers.base import Answer
from radixrt.tasks.run import add_usage

LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have."""


def finish_reason(finish: engine.Finish) -> Literal["stop", "length"]:
    """OpenAI's name of a finish reason. OpenAI has neither "abort" nor "timeout": such a completion is reported as
    "length", which every client takes for an incomplete one. (A native answer reports the reason itself.)"""
    return "stop" if finish.reason == engine.FINISH_STOP else "length"


def stop_reason(finish: engine.Finish) -> int | str | None:
    """Return the stop token or stop string, as vLLM's `stop_reason`; of an answer that its deadline cut, "timeout"."""
    return engine.FINISH_TIMEOUT if finish.reason == engine.FINISH_TIMEOUT else finish.matched


# --- usage ---


class CachedTokensDetails(Answer):
    """Cached tokens by the memory that had them: the KV pool of the device, host memory, files, another replica."""

    device: int
    host: int
    disk: int
    peer: int


def cached_tokens_details(usage: engine.Usage | None) -> CachedTokensDetails | UnsetType:
    """Return the cached tokens by tier; UNSET if the KV pool had all of them."""
    if usage is None or not usage.fetched_tokens:
        return UNSET
    host, disk, peer = (usage.fetched_tokens.get(tier, 0) for tier in ("host", "disk", "peer"))
    return CachedTokensDetails(usage.cached_tokens - host - disk - peer, host, disk, peer)


class CachedTokens(Answer):
    """Tokens of the prompt that came from the cache, by tier too unless the KV pool had all of them."""

    cached_tokens: int
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET


class ReasoningTokens(Answer):
    """Tokens of the output that are reasoning."""

    reasoning_tokens: int


class Usage(Answer):
    """Tokens of prompts and completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class PromptUsage(Answer, kw_only=True):
    """Tokens of an answer that generates nothing."""

    completion_tokens: int | UnsetType = UNSET
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class InputDetails(Answer):
    """Tokens of the input that came from the cache, as in `CachedTokens`, and tokens that went into the cache."""

    cached_tokens: int
    cache_write_tokens: int
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET


class InputUsage(Answer):
    """Usage as OpenAI's newer APIs report it."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


@dataclass(slots=True)
class UsageSum:
    """Usage of a whole response: each prompt counted once, though n completions share it; every completion counted.

    Args:
        n: completions per prompt; completion i belongs to prompt i // n.
    """

    n: int
    _prompts: list[engine.Usage] = field(default_factory=list)
    _completion: int = 0
    _reasoning: int = 0

    def add(self, index: int, usage: engine.Usage | None, reasoning_tokens: int = 0) -> None:
        if usage is None:
            return
        self._reasoning += reasoning_tokens
        self._completion += usage.completion_tokens
        if index % self.n == 0:
            # The first of the n completions pays for the prompt; the others find the prompt in the cache.
            self._prompts.append(usage)

    def total(self) -> Usage:
        prompts = add_usage(self._prompts)
        total = prompts.prompt_tokens + self._completion
        return Usage(
            prompts.prompt_tokens,
            self._completion,
            total,
            CachedTokens(prompts.cached_tokens, cached_tokens_details(prompts)),
            ReasoningTokens(self._reasoning),
        )


def prompt_usage(usage: engine.Usage | None, completion_tokens: int | UnsetType = UNSET) -> PromptUsage:
    """Return the usage of a response that generates nothing."""
    usage = usage or engine.Usage()
    return PromptUsage(
        completion_tokens=completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        total_tokens=usage.prompt_tokens,
        prompt_tokens_details=CachedTokens(usage.cached_tokens, cached_tokens_details(usage)),
    )


# --- constraints ---


class Enforcement(Answer):
    """Report of how a constraint was enforced."""

    backend: str
    forced_close: bool
    forced_tokens: int
    closing_tokens: int
    ignored: list[str]
    repetition: bool


def enforcement(output: RequestOutput) -> Enforcement | UnsetType:
    """Return how the constraint of an output was enforced, the member "radixrt"; UNSET without a constraint."""
    info = output.constraint
    if info is None:
        return UNSET
    forced, closing = info.forced_tokens, info.closing_tokens
    return Enforcement(info.backend, output.forced_close, forced, closing, info.ignored, info.repetition)


# --- tokens ---


class TokenLogprob(Answer):
    """Log-probability of a token; `bytes` are the bytes of its text."""

    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprobs(TokenLogprob):
    """Log-probability of an output token, and of its alternatives.

    With a constraint, `allowed` is the number of tokens that it allowed there, and `forced` says whether it determined
    the text.
    """

    top_logprobs: list[TokenLogprob]
    allowed: int | UnsetType = UNSET
    forced: bool | UnsetType = UNSET


class PromptLogprob(Answer):
    """Log-probability of one alternative at a position of the prompt."""

    logprob: float | None
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt, its alternatives by token id; null for the first."""

HiddenStates = list[list[float]]
"""Numbers of each token."""


class PromptMembers(Answer, kw_only=True):
    """Members of an answer about its prompt, if the request asks for them; see `TokenReport.about_prompt`."""

    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    hidden_states: HiddenStates | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Selection of the members of an answer about tokens besides their text, named as in vLLM.

    Attributes:
        ids: report the token ids of prompt and output.
        as_ids: log-probabilities name a token by its id, "token_id:17", instead of by its text.
        of_prompt: report the log-probabilities of the prompt.
    """

    ids: bool = False
    as_ids: bool = False
    of_prompt: bool = False

    def name(self, row: LogprobRow) -> str:
        return f"token_id:{row.token_id}" if self.as_ids else row.text

    def token_logprobs(self, rows: list[LogprobRow]) -> list[TokenLogprobs]:
        """Return the log-probabilities of output tokens and of their alternatives, as in OpenAI's API."""
        return [
            TokenLogprobs(
                self.name(row),
                clean_logprob(row.logprob),
                list(row.data),
                [TokenLogprob(self.name(top), clean_logprob(top.logprob), list(top.data)) for top in row.top],
                UNSET if row.allowed is None else row.allowed,
                UNSET if row.allowed is None else row.forced,
            )
            for row in rows
        ]

    def of_output(self, output: RequestOutput) -> list[int] | UnsetType:
        """Return the member `token_ids` of an output."""
        return output.token_ids if self.ids else UNSET

    def about_prompt(self, output: RequestOutput) -> dict[str, Any]:
        """Return the `PromptMembers` of an answer."""
        members: dict[str, Any] = {}
        if self.ids and output.prompt_ids is not None:
            members["prompt_token_ids"] = output.prompt_token_ids
        if self.of_prompt:
            members["prompt_logprobs"] = [self._alternatives(row) for row in output.prompt_logprobs or []]
        if output.hidden_states is not None:
            members["hidden_states"] = hidden_states(output.hidden_states)
        return members

    def _alternatives(self, row: LogprobRow) -> dict[str, PromptLogprob] | None:
        """Log-probabilities by token id; the token's own has no rank if it is not among the alternatives."""
        if row.logprob is None:
            return None
        ranked: list[tuple[int | None, LogprobRow]] = list(enumerate(row.top, 1))
        if all(top.token_id != row.token_id for top in row.top):
            ranked.append((None, row))
        return {
            str(one.token_id): PromptLogprob(clean_logprob(one.logprob), rank, self.name(one)) for rank, one in ranked
        }


def clean_logprob(value: float | None) -> float | None:
    """Clamp a log-probability to at least `LOWEST_LOGPROB`; NaN, which compares false, becomes that too."""
    return None if value is None else max(LOWEST_LOGPROB, value)


def hidden_states(states: StateColumns, *, as_base64: bool = False) -> HiddenStates | str:
    """Return hidden states as numbers, or as the base64 of their float32 column."""
    if as_base64:
        return base64.b64encode(states.data).decode()
    return states.array.tolist()  # type: ignore[no-any-return]
