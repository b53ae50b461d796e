"""Parts that answers share: finish reasons, usage, log-probabilities in JSON, and reports of constraints."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from radixrt.messages.client import RequestOutput, TokenLogprob
from radixrt.messages.parts import FINISH_ABORT, FINISH_LENGTH, Finish, HiddenStates, Usage

LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have."""


def finish_reason(finish: Finish) -> str:
    """OpenAI's name of a finish reason. OpenAI has no "abort": an aborted completion is reported as "length", which
    every client takes for an incomplete one. (A native answer reports "abort".)"""
    return FINISH_LENGTH if finish.reason == FINISH_ABORT else finish.reason


def clean_logprob(value: float | None) -> float | None:
    """Clamp a log-probability to at least `LOWEST_LOGPROB`; NaN, which compares false, becomes that too."""
    return None if value is None else max(LOWEST_LOGPROB, value)


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

    def name(self, row: TokenLogprob) -> str:
        return f"token_id:{row.token_id}" if self.as_ids else row.text

    def prompt_body(self, output: RequestOutput) -> dict[str, Any]:
        """The members of an answer about its prompt."""
        body: dict[str, Any] = {}
        if self.ids and output.prompt_ids is not None:
            body["prompt_token_ids"] = output.prompt_token_ids
        if self.of_prompt:
            body["prompt_logprobs"] = [self._alternatives(row) for row in output.prompt_logprobs or []]
        if output.hidden_states is not None:
            body["hidden_states"] = hidden_states_body(output.hidden_states)
        return body

    def _alternatives(self, row: TokenLogprob) -> dict[str, Any] | None:
        """Log-probabilities by token id; the token's own has no rank if it is not among the alternatives."""
        if row.logprob is None:
            return None
        ranked: list[tuple[int | None, TokenLogprob]] = list(enumerate(row.top, 1))
        if all(top.token_id != row.token_id for top in row.top):
            ranked.append((None, row))
        return {
            str(one.token_id): {"logprob": clean_logprob(one.logprob), "rank": rank, "decoded_token": self.name(one)}
            for rank, one in ranked
        }


@dataclass(slots=True)
class UsageSum:
    """Usage of a whole response: each prompt counted once, though n completions share it; every completion counted.

    Args:
        n: completions per prompt; completion i belongs to prompt i // n.
    """

    n: int
    _prompt: int = 0
    _completion: int = 0
    _cached: int = 0
    _reasoning: int = 0

    def add(self, index: int, usage: Usage | None, reasoning_tokens: int = 0) -> None:
        if usage is None:
            return
        self._reasoning += reasoning_tokens
        self._completion += usage.completion_tokens
        if index % self.n == 0:
            # The first of the n is what the prompt cost; the others find in the cache what it has just computed.
            self._prompt += usage.prompt_tokens
            self._cached += usage.cached_tokens

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


def hidden_states_body(states: HiddenStates, *, as_base64: bool = False) -> list[list[float]] | str:
    """Hidden states in JSON: a list of numbers for each token, or the base64 of their float32 column."""
    if as_base64:
        return base64.b64encode(states.data).decode()
    return states.array.tolist()  # type: ignore[no-any-return]


def prompt_usage(usage: Usage | None) -> dict[str, Any]:
    """Usage of a response that generates nothing."""
    usage = usage or Usage()
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def constraint_body(output: RequestOutput) -> dict[str, Any] | None:
    """The member "radixrt" of an answer: how its constraint was enforced; None without a constraint."""
    info = output.constraint
    if info is None:
        return None
    return {
        "backend": info.backend,
        "forced_close": output.forced_close,
        "forced_tokens": info.forced_tokens,
        "closing_tokens": info.closing_tokens,
        "ignored": info.ignored,
    }


def chat_logprobs(rows: list[TokenLogprob], report: TokenReport) -> dict[str, Any]:
    """The `logprobs` of a choice of a chat answer."""
    return {"content": token_logprobs(rows, report), "refusal": None}


def token_logprobs(rows: list[TokenLogprob], report: TokenReport) -> list[dict[str, Any]]:
    """Log-probabilities of tokens and of their alternatives, as in OpenAI's API."""
    return [
        {**_logprob(row, report), "top_logprobs": [_logprob(top, report) for top in row.top], **_choice(row)}
        for row in rows
    ]


def _choice(row: TokenLogprob) -> dict[str, Any]:
    """Beyond OpenAI's API: the number of tokens that the constraint allowed, and whether it determined the text."""
    return {} if row.allowed is None else {"allowed": row.allowed, "forced": row.forced}


def _logprob(row: TokenLogprob, report: TokenReport) -> dict[str, Any]:
    return {"token": report.name(row), "logprob": clean_logprob(row.logprob), "bytes": list(row.data)}
