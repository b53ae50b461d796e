"""What the two OpenAI routes answer alike: finish reasons, usage, log-probabilities as JSON can hold them."""

from __future__ import annotations

from typing import Any

from radixrt.messages.parts import FINISH_ABORT, FINISH_LENGTH, Finish, Usage

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def finish_reason(finish: Finish) -> str:
    """OpenAI knows no "abort": an aborted completion is told as "length", which every client takes for "cut short".
    As "stop" it would pass for complete. (A native answer says "abort".)"""
    return FINISH_LENGTH if finish.reason == FINISH_ABORT else finish.reason


def clean_logprob(value: float | None) -> float | None:
    """Finite, and no lower than `LOWEST_LOGPROB`; also for NaN, which compares false and so loses against it."""
    return None if value is None else max(LOWEST_LOGPROB, value)


class UsageSum:
    """Usage of a whole response: each prompt counted once, though n completions share it; every completion counted.

    Args:
        n: completions per prompt; choice i belongs to prompt i // n.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompt = self._completion = self._cached = self._reasoning = 0

    def add(self, index: int, usage: Usage | None, reasoning_tokens: int = 0) -> None:
        if usage is None:
            return
        self._reasoning += reasoning_tokens
        self._completion += usage.completion_tokens
        if index % self._n == 0:
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
