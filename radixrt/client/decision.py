"""Scoring choices offline: from the arguments of a call to its request, and from the answer to a `Decision`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.client.arguments import NO_DEADLINE_S
from radixrt.client.engine_client import new_rid
from radixrt.client.prompt_parts import Part, pack_parts, token_ids
from radixrt.errors import RequestError, shown
from radixrt.messages.client import RequestOutput, ScoreReq, TokenizeReq
from radixrt.messages.parts import ProgramHint, SelectMethod, Timings, Usage
from radixrt.messages.wire import pack_i32, unpack_i32

ScoredPrompt = str | Sequence[int] | Sequence[Part]
"""A text, token ids, or parts (see `GenerateReq.parts`)."""


@dataclass(frozen=True)
class Decision:
    """Scored choices, in the order in which they were given.

    Attributes:
        choice, text: the selected one, as index and text.
        logprobs: natural logarithm of the probability of each choice's tokens after the prompt.
        scores: what the method compares, higher is better.
        probabilities: softmax of `scores`.
        token_ids: of each choice, as scored: what follows the prompt's first `kept` tokens.
        kept: prompt tokens before the choices; fewer than the prompt's where its last text is tokenized otherwise with
            a choice behind it.
        prompt_token_ids: of the prompt without a choice.
    """

    choice: int
    text: str
    logprobs: list[float]
    scores: list[float]
    probabilities: list[float]
    token_ids: list[list[int]]
    kept: int
    prompt_token_ids: list[int]
    usage: Usage
    timings: Timings


def score_request(
    prompt: ScoredPrompt, choices: Sequence[str], method: SelectMethod, *, priority: int = 0, cache_salt: str = "",
    timeout_s: float = NO_DEADLINE_S, program: ProgramHint | None = None,
) -> ScoreReq:  # fmt: skip
    """Raises RequestError: the prompt or the choices are of a wrong type."""
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
    """Raises RequestError: the prompt is of a wrong type."""
    return TokenizeReq(new_rid(), **prompt_fields(prompt))


def prompt_fields(prompt: ScoredPrompt) -> dict[str, Any]:
    """The request's field for a prompt of this form."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if hasattr(prompt, "__iter__") and any(hasattr(part, "__len__") or hasattr(part, "template") for part in prompt):
        return {"parts": pack_parts(prompt)}  # type: ignore[arg-type]  # by its first part, not by its type
    return {"input_ids": pack_i32(token_ids(prompt, "prompt"))}


def as_decision(request: ScoreReq, delta: RequestOutput) -> Decision:
    """The answer to a scoring request that did not end with an error."""
    found, prompt_ids = delta.decision, delta.prompt_ids
    if found is None or prompt_ids is None:
        raise RequestError("the request was aborted", code="aborted", status=499)
    return Decision(
        choice=found.choice,
        text=request.choices[found.choice],
        logprobs=found.logprobs,
        scores=found.scores,
        probabilities=found.probabilities,
        token_ids=found.token_ids,
        kept=found.kept,
        prompt_token_ids=unpack_i32(prompt_ids).tolist(),
        usage=delta.usage or Usage(),
        timings=delta.timings or Timings(),
    )
