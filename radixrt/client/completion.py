"""What the offline API gives back: `Completion` and `Chunk`, put together from the engine's deltas."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from radixrt.client.arguments import Asked
from radixrt.client.engine_client import raise_for_error
from radixrt.messages.client import TextDelta, TokenLogprob
from radixrt.messages.parts import FINISH_ABORT, ConstraintInfo, Finish, Timings, Usage
from radixrt.messages.wire import unpack_i32


@dataclass(frozen=True)
class Completion:
    """One finished completion.

    Attributes:
        text: the output, without its stop string or end token unless asked for.
        token_ids: output token ids, the stop token included if one ended it.
        prompt_token_ids: the prompt as the model saw it.
        finish_reason: "stop", "length" or "abort".
        matched_stop: the stop string or token id that ended it.
        logprobs, prompt_logprobs: one entry for each token, when asked for.
        usage: token counts, cached ones included.
        timings: seconds in the scheduler.
        forced_close: the end was near, so a constrained output was brought to its end along the grammar's shortest way.
        constraint: how the constraint was enforced; None where none was asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    matched_stop: int | str | None
    usage: Usage
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    forced_close: bool = False
    constraint: ConstraintInfo | None = None
    _asked: Asked | None = field(default=None, repr=False, compare=False)
    _prompt_ids: bytes = field(default=b"", repr=False)

    @cached_property
    def prompt_token_ids(self) -> list[int]:  # made when asked for: of long prompts it takes longer than all the rest
        return unpack_i32(self._prompt_ids).tolist()  # type: ignore[no-any-return]

    @cached_property
    def parsed(self) -> Any:
        """The value that was asked for: of the type or schema for `json_schema`, the text for other constraints (what
        follows the reasoning, where there was some); None without a constraint, or if the request was aborted.

        Raises:
            ValueError: the type has a rule that its schema does not say, and the value breaks it (pydantic's
                ValidationError).
        """
        if self._asked is None or self.finish_reason == FINISH_ABORT:
            return None
        return self._asked.value_of(self.text)


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed completion; the last one carries `completion`."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None


class Collector:
    """Puts the deltas of one request together; `prompt_ids` is its int32 column where the caller brought it."""

    def __init__(self, asked: Asked | None, prompt_ids: bytes | None = None) -> None:
        self._asked = asked
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._prompt_ids = prompt_ids or b""
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt_logprobs: list[TokenLogprob] | None = None

    def add(self, delta: TextDelta) -> Chunk:
        """The delta as a chunk; raises RequestError if it ends the request with an error."""
        tokens = unpack_i32(delta.token_ids).tolist()
        self._text.append(delta.text)
        self._token_ids += tokens
        if delta.prompt_ids is not None:
            self._prompt_ids = delta.prompt_ids
        if delta.logprobs is not None:
            self._logprobs = (self._logprobs or []) + delta.logprobs
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        done = None if delta.finish is None else self._completion(delta, delta.finish)
        return Chunk(delta.text, tokens, done)

    def _completion(self, delta: TextDelta, finish: Finish) -> Completion:
        raise_for_error(finish)
        return Completion(
            text="".join(self._text),
            token_ids=self._token_ids,
            finish_reason=finish.reason,
            matched_stop=finish.matched,
            usage=delta.usage or Usage(),
            timings=delta.timings or Timings(),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            forced_close=finish.forced_close,
            constraint=delta.constraint,
            _asked=self._asked,
            _prompt_ids=self._prompt_ids,
        )
