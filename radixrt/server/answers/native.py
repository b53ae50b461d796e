"""Answers of /generate, and `NativeEncoder`, which makes them from the outputs of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Timings, Usage
from radixrt.messages.reads import TokenLogprob
from radixrt.server.answers.base import DONE, Answer, data_event
from radixrt.server.answers.parts import (
    CachedTokensDetails,
    Enforcement,
    HiddenStates,
    cached_tokens_details,
    clean_logprob,
    enforcement,
    hidden_states,
)


class NativeFinish(Answer):
    """End of a completion, and the stop string or token that ended it."""

    type: Literal["stop", "length", "timeout", "abort", "error"]
    matched: int | str | None


TokenRow = tuple[float | None, int, str]
"""Log-probability, token id and text. A prompt's first token has the log-probability null."""


class NativeMeta(Answer, kw_only=True):
    """About a completion; in a stream, counts and times are in its last event.

    `cached_tokens_details` is missing if the KV pool had all cached tokens. The text is the text of the first `kept`
    output_ids (of the whole answer), and `tail`. `missed` is only there with recurrent layers: "KV matched m, nearest
    state at c", if c < m. `radixrt` is there with a constraint; the log-probabilities and hidden states, a row for each
    token, if the request asks for them.
    """

    id: str
    finish_reason: NativeFinish | None
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET
    cached_tokens: int | UnsetType = UNSET
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET
    queue_s: float | UnsetType = UNSET
    prefill_s: float | UnsetType = UNSET
    decode_s: float | UnsetType = UNSET
    retractions: int | UnsetType = UNSET
    missed: str | UnsetType = UNSET
    kept: int | UnsetType = UNSET
    tail: str | UnsetType = UNSET
    radixrt: Enforcement | UnsetType = UNSET
    output_token_logprobs: list[TokenRow] | UnsetType = UNSET
    output_top_logprobs: list[list[TokenRow]] | UnsetType = UNSET
    input_token_logprobs: list[TokenRow] | UnsetType = UNSET
    input_top_logprobs: list[list[TokenRow]] | UnsetType = UNSET
    hidden_states: HiddenStates | str | UnsetType = UNSET


class Generation(Answer, kw_only=True):
    """One completion of /generate.

    An event of a stream holds an increment (SGLang repeats the whole text): text, output_ids and log-probabilities are
    to be appended; prompt_ids, if the request asks for them, are in the first event.
    """

    text: str
    output_ids: list[int]
    index: int
    prompt_ids: list[int] | UnsetType = UNSET
    meta_info: NativeMeta


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts of the prompt in the answer: the first token whose log-probability is shown, whether its ids are, and
    whether hidden states are base64."""

    logprobs_from: int = 0
    prompt_ids: bool = False
    as_base64: bool = False


@dataclass(frozen=True, slots=True)
class NativeEncoder:
    """Encodes the outputs of a native request.

    Args:
        rids: ids of the engine's requests, in order.
        single: the whole answer is an object instead of a list.
    """

    rids: list[str]
    shown: Shown
    single: bool

    def body(self, outputs: list[RequestOutput]) -> Generation | list[Generation]:
        answers = [self.generation(i, output) for i, output in enumerate(outputs)]
        return answers[0] if self.single else answers

    def event(self, index: int, output: RequestOutput) -> bytes:
        return data_event(self.generation(index, output))

    def last_event(self) -> bytes:
        return DONE

    def generation(self, index: int, output: RequestOutput) -> Generation:
        """Return the answer, or the event, for one output."""
        shown, finish = self.shown, output.finish
        meta = NativeMeta(id=self.rids[index], finish_reason=None)
        if finish is not None:
            meta.finish_reason = NativeFinish(finish.reason, finish.matched)
            _add_counts(meta, output)
        if output.logprobs:
            meta.output_token_logprobs, meta.output_top_logprobs = _logprobs(output.logprobs)
        of_prompt = (output.prompt_logprobs or [])[shown.logprobs_from :]
        if of_prompt:
            meta.input_token_logprobs, meta.input_top_logprobs = _logprobs(of_prompt)
        if output.hidden_states is not None:
            meta.hidden_states = hidden_states(output.hidden_states, as_base64=shown.as_base64)
        ids = output.prompt_token_ids if shown.prompt_ids and output.prompt_ids is not None else UNSET
        return Generation(text=output.text, output_ids=output.token_ids, index=index, prompt_ids=ids, meta_info=meta)


def _add_counts(meta: NativeMeta, output: RequestOutput) -> None:
    usage, timings = output.usage or Usage(), output.timings or Timings()
    meta.prompt_tokens = usage.prompt_tokens
    meta.completion_tokens = usage.completion_tokens
    meta.cached_tokens, meta.cached_tokens_details = usage.cached_tokens, cached_tokens_details(usage)
    meta.queue_s = timings.queue_s
    meta.prefill_s = timings.prefill_s
    meta.decode_s = timings.decode_s
    meta.retractions = timings.retractions
    if usage.matched_tokens > usage.cached_tokens:
        meta.missed = f"KV matched {usage.matched_tokens}, nearest state at {usage.cached_tokens}"
    if output.kept is not None:
        meta.kept, meta.tail = output.kept, output.tail
    meta.radixrt = enforcement(output)


def _logprobs(rows: list[TokenLogprob]) -> tuple[list[TokenRow], list[list[TokenRow]]]:
    return [_row(row) for row in rows], [[_row(top) for top in row.top] for row in rows]


def _row(row: TokenLogprob) -> TokenRow:
    return clean_logprob(row.logprob), row.token_id, row.text
