"""Answers of the offline API: `Completion` and `Chunk`, both of them `RequestOutput`s, and `Decision`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from radixrt.client.requests import OutputReader
from radixrt.errors import EngineError, RequestError
from radixrt.messages.client import RequestOutput, ScoreReq
from radixrt.messages.parts import FINISH_ABORT, Finish, Timings, Usage

ENGINE_DEAD = "engine_dead"
"""Code of the error of requests that ended with a process of the engine."""


def raise_for_error(finish: Finish) -> None:
    """Raise the RequestError that an "error" finish carries; otherwise do nothing."""
    if finish.error is not None:
        e = finish.error
        raise RequestError(e.message, param=e.param, code=e.code, status=e.status, retry_after_s=e.retry_after_s)


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Raise EngineError for requests that ended because the engine failed."""
    try:
        yield
    except RequestError as error:
        if error.code == ENGINE_DEAD:
            raise EngineError(error.message) from None
        raise


class Completion(RequestOutput, frozen=True, kw_only=True):
    """One finished completion.

    Attributes:
        text: the output, without its stop string or end token unless the request asked for it.
        token_ids: output token ids, the stop token included if one ended the request.
        prompt_token_ids: token ids of the prompt as the model received it.
        finish_reason: "stop", "length" or "abort".
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


def as_chunk(output: RequestOutput, completion: Completion | None) -> Chunk:
    """Convert an increment to a Chunk."""
    return Chunk(**_fields(output), completion=completion)


def _fields(output: RequestOutput) -> dict[str, Any]:
    return {name: getattr(output, name) for name in RequestOutput.__struct_fields__}


@dataclass(frozen=True)
class Decision:
    """Scored choices, in the order in which they were given.

    Attributes:
        choice, text: index and text of the selected choice.
        logprobs: natural logarithm of the probability of each choice's tokens after the prompt.
        scores: value of each choice that the method compares; the highest is selected.
        probabilities: softmax of `scores`.
        token_ids: token ids of each choice as scored, after the prompt's first `kept` tokens.
        kept: number of prompt tokens before the choices; fewer than the prompt has if the end of its last text is
            tokenized differently together with a choice.
        prompt_token_ids: token ids of the prompt without a choice.
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


def as_decision(request: ScoreReq, output: RequestOutput) -> Decision:
    """Convert the output of a scoring request that did not end with an error; raises RequestError if it was aborted."""
    found = output.decision
    if found is None or output.prompt_ids is None:
        raise RequestError("the request was aborted", code="aborted", status=499)
    return Decision(
        choice=found.choice,
        text=request.choices[found.choice],
        logprobs=found.logprobs,
        scores=found.scores,
        probabilities=found.probabilities,
        token_ids=found.token_ids,
        kept=found.kept,
        prompt_token_ids=output.prompt_token_ids,
        usage=output.usage or Usage(),
        timings=output.timings or Timings(),
    )
