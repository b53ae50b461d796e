"""Public answers of the offline API: `Completion` and `Chunk`, both of them `RequestOutput`s."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from radixrt.client.arguments import Asked
from radixrt.client.engine_client import raise_for_error
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import FINISH_ABORT, Finish, Timings, Usage


class Completion(RequestOutput, frozen=True, kw_only=True):
    """One finished completion.

    Attributes:
        text: the output, without its stop string or end token unless the request asked for it.
        token_ids: output token ids, the stop token included if one ended the request.
        prompt_token_ids: token ids of the prompt as the model received it.
        finish_reason: "stop", "length" or "abort".
        matched_stop: stop string or stop token id that ended the request.
        logprobs, prompt_logprobs: one entry for each token, if requested.
        usage: token counts, cached ones included.
        timings: seconds in the scheduler.
        forced_close: whether a constrained output was closed early along the grammar's shortest completion.
        constraint: how the constraint was enforced; None without a constraint.
        asked: reader of `parsed`; None without a constraint.
    """

    finish: Finish
    usage: Usage
    timings: Timings
    asked: Asked | None = None

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
        if self.asked is None or self.finish_reason == FINISH_ABORT:
            return None
        return self.asked.value_of(self.text)

    def __repr__(self) -> str:
        names = ("text", "token_ids", "finish_reason", "matched_stop", "usage", "timings", "forced_close", "constraint")
        return f"Completion({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Chunk(RequestOutput, frozen=True, kw_only=True):
    """Increment of a streamed completion: new `text` and `token_ids`; the last one carries the whole `completion`."""

    completion: Completion | None = None

    def __repr__(self) -> str:
        return f"Chunk(text={self.text!r}, token_ids={self.token_ids!r}, completion={self.completion!r})"


def as_completion(output: RequestOutput, asked: Asked | None = None, prompt_ids: bytes | None = None) -> Completion:
    """Convert a whole output to a Completion.

    Args:
        asked: reader of the completion's value; None without a constraint.
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
    return Completion(**fields, asked=asked)


def as_chunk(output: RequestOutput, completion: Completion | None) -> Chunk:
    """Convert an increment to a Chunk."""
    return Chunk(**_fields(output), completion=completion)


def _fields(output: RequestOutput) -> dict[str, Any]:
    return {name: getattr(output, name) for name in RequestOutput.__struct_fields__}
