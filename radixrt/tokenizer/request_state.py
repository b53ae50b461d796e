"""`RequestState`: state of one live request in the tokenizer process, from token ids to text."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile

import msgspec

from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError, LogprobColumns, ReadValues, Usage
from radixrt.messages.reads import PromptValues, TokenLogprob
from radixrt.messages.scheduler import TokenDelta
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.detokenizer import Detokenizer, IdsOnly
from radixrt.tokenizer.stop_scope import Matcher, scoped_matcher
from radixrt.tokenizer.tokenizer import Tokenizer


class RequestState:
    """Converts the `TokenDelta`s of a request to `RequestOutput`s: an output per delta if the request streams, or a
    single output at the end.

    After a stop string the request is finished for its client, but the scheduler continues until it gets an `AbortReq`.
    Tokens after the stop string are dropped, and the last output waits for the scheduler's own finish, which carries
    usage and timings.

    Attributes:
        stop_found: a stop string ended the text; the last output is sent once the scheduler has finished the request.
        closed: an error has been sent; every later delta is dropped.
        takes_plain: single tokens may be passed to `push`.
    """

    __slots__ = (
        "_detokenizer",
        "_ids",
        "_last_excluded",
        "_logprobs",
        "_matcher",
        "_may_hide",
        "_num_chars",
        "_num_tokens",
        "_output_ids",
        "_prompt_ids",
        "_prompt_tokens",
        "_prompt_values",
        "_reported_ids",
        "_rid",
        "_sampling",
        "_stream",
        "_text",
        "_tokenizer",
        "closed",
        "stop_found",
        "takes_plain",
    )

    def __init__(
        self, rid: str, sampling: SamplingParams, prompt_ids: bytes, *, stream: bool, tokenizer: Tokenizer,
        return_prompt_ids: bool = True, reported_ids: bytes | None = None,
    ) -> None:  # fmt: skip
        self._rid = rid
        self._sampling = sampling
        self._stream = stream
        self._tokenizer = tokenizer
        special = sampling.skip_special_tokens
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=special) if sampling.detokenize else IdsOnly()
        include = sampling.include_stop_str_in_output
        stops = sampling.watched_stops
        self._matcher = scoped_matcher(stops, sampling, tokenizer, include=include) if stops else None
        scores_prompt = sampling.prompt_logprobs is not None
        self._prompt_ids: bytes | None = prompt_ids if return_prompt_ids or scores_prompt else None
        self._reported_ids = prompt_ids if reported_ids is None else reported_ids  # `RequestOutput.prompt_ids`
        self._prompt_tokens = len(prompt_ids) // 4
        self._num_tokens = 0
        self._last_excluded = False  # the last output token ended the request and is not part of its text
        self._may_hide = False  # some token added no text: it may be a special token that the text hides
        # Sent:
        self._output_ids = bytearray()  # int32 column
        self._num_chars = 0
        # Not yet sent:
        self._text: list[str] = []
        self._ids: list[bytes] = []
        self._logprobs: list[TokenLogprob] | None = None if sampling.logprobs is None else []
        self._prompt_values: PromptValues | None = None
        self.stop_found = False
        self.closed = False
        self.takes_plain = self._matcher is None

    def push(self, token_id: int) -> RequestOutput | None:
        """`take` for a delta of one token and nothing else; the request must have `takes_plain`."""
        text = self._detokenizer.push((token_id,))
        if text:
            self._text.append(text)
        else:
            self._may_hide = True
        self._num_tokens += 1
        self._ids.append(token_id.to_bytes(4, "little", signed=True))
        return self._unsent() if self._stream else None

    def take(self, delta: TokenDelta) -> RequestOutput | None:
        """Process new tokens. Returns the output to send to the client now, or None."""
        if self.closed:
            return None
        if not self.stop_found:
            self._read(delta)
        finish = delta.finish
        if finish is None:
            return self._unsent() if self._stream else None
        usage = delta.usage
        if self.stop_found and self._matcher is not None:
            finish = Finish("stop", self._matcher.matched)
            usage = msgspec.structs.replace(
                usage or Usage(), prompt_tokens=self._prompt_tokens, completion_tokens=self._num_tokens
            )
        return self._last(finish, delta, usage)

    def fail(self, message: str) -> RequestOutput:
        """End the request with an error (status 500); the output carries the unsent text."""
        self.closed = True
        self.takes_plain = False
        return msgspec.structs.replace(self._increment(), finish=Finish("error", error=FinishError(message)))

    def _read(self, delta: TokenDelta) -> None:
        """Detokenize new tokens up to a stop string, and append their text, ids and log-probabilities to the unsent."""
        data = delta.token_ids
        if len(data) == 4:
            ids: Sequence[int] = (int.from_bytes(data, "little", signed=True),)
        else:
            ids = unpack_ids(data)
        cut_short = delta.finish is not None and delta.finish.reason in ("abort", "error")
        if delta.values is not None and not cut_short:  # a prompt that was not computed to its end lacks values
            self._read_values(delta.values)
        text_ids = ids
        if delta.finish is not None and self._excludes_last(ids, delta.finish):
            text_ids = ids[:-1]
            self._last_excluded = True
        num_read = len(ids)
        if self._matcher is None:
            text = self._detokenizer.push(text_ids) if text_ids else ""
            if len(text_ids) > 1 or not text:
                self._may_hide = True
            if delta.finish is not None:
                text += self._detokenizer.flush()
        else:
            text, until_stop = self._read_until_stop(text_ids, self._matcher, final=delta.finish is not None)
            if self.stop_found:
                num_read = until_stop
                self._last_excluded = False
        if text:
            self._text.append(text)
        self._num_tokens += num_read
        if num_read:
            self._ids.append(data if num_read == len(ids) else data[: 4 * num_read])
        if delta.logprobs is not None and self._logprobs is not None:
            self._logprobs += token_logprobs(self._tokenizer, ids, delta.logprobs)[:num_read]

    def _read_values(self, values: ReadValues) -> None:
        """Keep the values of the prompt for the next output."""
        logprobs = self._rows_of_prompt(values.logprobs[0]) if values.logprobs else None
        self._prompt_values = PromptValues.of(values, logprobs, self._sampling, self._prompt_tokens)

    def _read_until_stop(self, ids: Sequence[int], matcher: Matcher, *, final: bool) -> tuple[str, int]:
        """Text of the tokens up to a stop string, and the number of tokens read to find it."""
        text = ""
        # Before min_tokens the text may contain stop strings; they are not searched for.
        unchecked = max(self._sampling.min_tokens - 1 - self._num_tokens, 0)
        for read, token_id in enumerate(ids, 1):
            piece = self._detokenizer.push((token_id,))
            if not piece:
                self._may_hide = True
            text += matcher.push(piece, token_id, search=read > unchecked)
            if matcher.matched is not None:
                self.stop_found = True
                return text, read
        if final:
            text += matcher.push(self._detokenizer.flush())
            self.stop_found = matcher.matched is not None
            text += matcher.flush()
        return text, len(ids)

    def _excludes_last(self, ids: Sequence[int], finish: Finish) -> bool:
        """Return True if the last token ended the request and is not part of its text."""
        if finish.reason != FINISH_STOP or not ids or self._sampling.include_stop_str_in_output:
            return False
        if finish.matched is not None:
            return finish.matched == ids[-1]
        return ids[-1] in self._tokenizer.eos_ids

    def _rows_of_prompt(self, columns: LogprobColumns) -> list[TokenLogprob]:
        if self._prompt_ids is None:
            raise ValueError("prompt log-probabilities came after the first output")
        ids = unpack_ids(self._prompt_ids)
        tokenizer = self._tokenizer
        first = TokenLogprob(ids[0], tokenizer.token_text(ids[0]), tokenizer.token_bytes(ids[0]), None)
        return [first, *token_logprobs(tokenizer, ids[1:], columns)]

    def _unsent(self) -> RequestOutput | None:
        """Return all unsent output as an increment; None if all output was sent."""
        if not self._text and not self._ids and self._prompt_values is None:
            return None
        return self._increment()

    def _increment(self) -> RequestOutput:
        text = "".join(self._text)
        output_ids = b"".join(self._ids)
        self._text, self._ids = [], []
        self._num_chars += len(text)
        self._output_ids += output_ids
        logprobs = self._logprobs
        if logprobs is not None:
            self._logprobs = []
        prompt_values, prompt_ids = self._prompt_values, None if self._prompt_ids is None else self._reported_ids
        self._prompt_values = self._prompt_ids = None
        return RequestOutput(self._rid, text, output_ids, None, None, None, logprobs, prompt_values, prompt_ids)

    def _last(self, finish: Finish, delta: TokenDelta, usage: Usage | None) -> RequestOutput:
        """Everything unsent, as the last increment."""
        output = self._increment()
        kept, tail = self._kept()
        return msgspec.structs.replace(
            output, finish=finish, usage=usage, timings=delta.timings, constraint=delta.constraint, kept=kept, tail=tail
        )

    def _kept(self) -> tuple[int | None, str]:
        """`kept` and `tail` of the finished output; detokenizes again only after a stop string or a hidden token."""
        if not self._sampling.detokenize:
            return None, ""
        num_shown = self._num_tokens - self._last_excluded
        hidden = self._tokenizer.special_ids if self._sampling.skip_special_tokens else frozenset()
        if not self.stop_found and not (self._may_hide and hidden):
            return num_shown, ""
        shown = unpack_ids(self._output_ids)[:num_shown]
        if not self.stop_found and hidden.isdisjoint(shown):
            return num_shown, ""

        def new_detokenizer() -> Detokenizer:
            return self._tokenizer.detokenizer(skip_special_tokens=bool(hidden))

        detokenizer = new_detokenizer()
        text = (detokenizer.push(shown) + detokenizer.flush())[: self._num_chars]
        return kept_tokens(new_detokenizer, tuple(takewhile(lambda token: token not in hidden, shown)), text)


def kept_tokens(new_detokenizer: Callable[[], Detokenizer], ids: Sequence[int], text: str) -> tuple[int, str]:
    """Largest number of leading tokens whose text, completed by `flush`, is a prefix of `text`; and the rest of `text`.

    Args:
        ids: output token ids, none of them hidden.
    """
    detokenizer = new_detokenizer()
    ends = list(accumulate(len(detokenizer.push((token_id,))) for token_id in ids))
    for kept in range(bisect_right(ends, len(text)), 0, -1):  # fails only where the text ends inside a character
        detokenizer = new_detokenizer()
        prefix = detokenizer.push(ids[:kept]) + detokenizer.flush()
        if text.startswith(prefix):
            return kept, text[len(prefix) :]
    return 0, text


def unpack_ids(data: bytes | bytearray) -> tuple[int, ...]:
    """Decode an int32 column to Python integers (faster than numpy for the few tokens of a decode step)."""
    return struct.unpack(f"<{len(data) // 4}i", data)


def token_logprobs(tokenizer: Tokenizer, ids: Sequence[int], columns: LogprobColumns) -> list[TokenLogprob]:
    """One entry for each of `ids`; raises ValueError if the columns hold another number of rows."""
    n, k = len(ids), columns.k
    sizes = (len(columns.token_logprobs), len(columns.top_ids), len(columns.top_logprobs))
    if sizes != (4 * n, 4 * n * k, 4 * n * k):
        raise ValueError(f"log-probability columns do not hold {n} rows of {k}")
    chosen = struct.unpack(f"<{n}f", columns.token_logprobs)
    top_ids = struct.unpack(f"<{n * k}i", columns.top_ids)
    top = struct.unpack(f"<{n * k}f", columns.top_logprobs)
    text, data = tokenizer.token_text, tokenizer.token_bytes
    constrained = len(columns.allowed) == 4 * n and len(columns.forced) == n
    allowed = unpack_ids(columns.allowed) if constrained else [None] * n
    return [
        TokenLogprob(
            token,
            text(token),
            data(token),
            chosen[i],
            [TokenLogprob(t, text(t), data(t), top[j]) for j, t in enumerate(top_ids[i * k : i * k + k], i * k)],
            allowed[i],
            constrained and columns.forced[i] == 1,
        )
        for i, token in enumerate(ids)
    ]
