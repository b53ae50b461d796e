"""`RequestOutput`: one live request's way from token ids to text, and what its client has not been sent yet."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from radixrt.messages.client import TextDelta, TokenLogprob
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError, LogprobColumns, Usage
from radixrt.messages.scheduler import TokenDelta
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.detokenizer import IdsOnly
from radixrt.tokenizer.stop_strings import StopMatcher
from radixrt.tokenizer.tokenizer import Tokenizer


class RequestOutput:
    """Turns a request's TokenDeltas into TextDeltas: one for each if it streams, else one at the end.

    After a stop string the request is over towards its client, but the scheduler goes on until it is told: tokens that
    come after it are dropped, and the finish waits for the scheduler's own, which brings usage and timings.

    Attributes:
        stop_found: a stop string ended the text; its last delta is sent once the scheduler has finished the request.
        closed: an error has been sent; whatever comes now is dropped.
        takes_plain: single tokens may come through `push`.
    """

    __slots__ = (
        "_detokenizer",
        "_ids",
        "_logprobs",
        "_matcher",
        "_num_tokens",
        "_prompt_ids",
        "_prompt_logprobs",
        "_prompt_tokens",
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
        return_prompt_ids: bool = True,
    ) -> None:  # fmt: skip
        self._rid = rid
        self._sampling = sampling
        self._stream = stream
        self._tokenizer = tokenizer
        special = sampling.skip_special_tokens
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=special) if sampling.detokenize else IdsOnly()
        include = sampling.include_stop_str_in_output
        self._matcher = StopMatcher(sampling.stop, include=include) if sampling.stop else None
        scores_prompt = sampling.prompt_logprobs is not None
        self._prompt_ids: bytes | None = prompt_ids if return_prompt_ids or scores_prompt else None
        self._prompt_tokens = len(prompt_ids) // 4
        self._num_tokens = 0
        # Not yet sent:
        self._text: list[str] = []
        self._ids: list[bytes] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self.stop_found = False
        self.closed = False
        self.takes_plain = self._matcher is None

    def push(self, token_id: int) -> TextDelta | None:
        """`take` for one token and nothing else, of a request that `takes_plain`."""
        text = self._detokenizer.push((token_id,))
        if text:
            self._text.append(text)
        self._num_tokens += 1
        self._ids.append(token_id.to_bytes(4, "little", signed=True))
        return self._unsent() if self._stream else None

    def take(self, delta: TokenDelta) -> TextDelta | None:
        """What goes to the client now; None if that is nothing."""
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
            cached = usage.cached_tokens if usage is not None else 0
            usage = Usage(self._prompt_tokens, self._num_tokens, cached)
        return self._delta(finish, delta, usage)

    def fail(self, message: str) -> TextDelta:
        """End the request with an error (status 500), with the text that is unsent."""
        self.closed = True
        self.takes_plain = False
        return self._delta(Finish("error", error=FinishError(message)), None, None)

    def _read(self, delta: TokenDelta) -> None:
        """Detokenize new tokens up to a stop string, and add what they bring to the unsent."""
        data = delta.token_ids
        if len(data) == 4:
            ids: Sequence[int] = (int.from_bytes(data, "little", signed=True),)
        else:
            ids = unpack_ids(data)
        cut_short = delta.finish is not None and delta.finish.reason in ("abort", "error")
        if delta.prompt_logprobs is not None and not cut_short:  # a prompt that was not computed to its end lacks rows
            self._prompt_logprobs = self._rows_of_prompt(delta.prompt_logprobs)
        text_ids = ids
        if delta.finish is not None and self._leaves_out_last(ids, delta.finish):
            text_ids = ids[:-1]
        kept = len(ids)
        if self._matcher is None:
            text = self._detokenizer.push(text_ids) if text_ids else ""
            if delta.finish is not None:
                text += self._detokenizer.flush()
        else:
            text, read = self._read_until_stop(text_ids, self._matcher, final=delta.finish is not None)
            if self.stop_found:
                kept = read
        self._num_tokens += kept
        if text:
            self._text.append(text)
        if kept:
            self._ids.append(data if kept == len(ids) else data[: 4 * kept])
        if delta.logprobs is not None:
            self._logprobs += token_logprobs(self._tokenizer, ids, delta.logprobs)[:kept]

    def _read_until_stop(self, ids: Sequence[int], matcher: StopMatcher, *, final: bool) -> tuple[str, int]:
        """The text of the tokens up to a stop string, and how many of them that took."""
        text = ""
        # Before min_tokens the text may hold stop strings; they are not looked for.
        unchecked = max(self._sampling.min_tokens - 1 - self._num_tokens, 0)
        for read, token_id in enumerate(ids, 1):
            piece = self._detokenizer.push((token_id,))
            text += piece if read <= unchecked else matcher.push(piece)
            if matcher.matched is not None:
                self.stop_found = True
                return text, read
        if final:
            text += matcher.push(self._detokenizer.flush())
            self.stop_found = matcher.matched is not None
            text += matcher.flush()
        return text, len(ids)

    def _leaves_out_last(self, ids: Sequence[int], finish: Finish) -> bool:
        """Whether the last token ended the request and is no part of its text."""
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

    def _unsent(self) -> TextDelta | None:
        if not self._text and not self._ids and self._prompt_logprobs is None:
            return None
        return self._delta(None, None, None)

    def _delta(self, finish: Finish | None, last: TokenDelta | None, usage: Usage | None) -> TextDelta:
        """Everything unsent, as one message."""
        result = TextDelta(
            self._rid,
            "".join(self._text),
            b"".join(self._ids),
            finish,
            usage,
            None if last is None else last.timings,
            self._logprobs if self._sampling.logprobs is not None else None,
            self._prompt_logprobs,
            self._prompt_ids,
            None if last is None else last.constraint,
        )
        self._text, self._ids = [], []
        if self._logprobs:
            self._logprobs = []
        self._prompt_logprobs = self._prompt_ids = None
        return result


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """An int32 column as Python integers (faster than numpy for the few tokens of a decode step)."""
    return struct.unpack(f"<{len(data) // 4}i", data)


def token_logprobs(tokenizer: Tokenizer, ids: Sequence[int], columns: LogprobColumns) -> list[TokenLogprob]:
    """One entry for each of `ids`, whose rows the columns hold; raises ValueError if they hold another number."""
    n, k = len(ids), columns.k
    sizes = (len(columns.token_logprobs), len(columns.top_ids), len(columns.top_logprobs))
    if sizes != (4 * n, 4 * n * k, 4 * n * k):
        raise ValueError(f"log-probability columns do not hold {n} rows of {k}")
    chosen = struct.unpack(f"<{n}f", columns.token_logprobs)
    top_ids = struct.unpack(f"<{n * k}i", columns.top_ids)
    top = struct.unpack(f"<{n * k}f", columns.top_logprobs)
    text, data = tokenizer.token_text, tokenizer.token_bytes
    return [
        TokenLogprob(
            token,
            text(token),
            data(token),
            chosen[i],
            [TokenLogprob(t, text(t), data(t), top[j]) for j, t in enumerate(top_ids[i * k : i * k + k], i * k)],
        )
        for i, token in enumerate(ids)
    ]
