"""`DeltaWriter`: accumulates the output of requests until the loop sends it to the tokenizer."""

from __future__ import annotations

import numpy as np

from radixrt.messages.parts import Finish, LogprobColumns, ReadValues, Timings, Usage
from radixrt.messages.scheduler import TokenBatch, TokenDelta
from radixrt.messages.wire import pack_f32, pack_i32
from radixrt.scheduler.req import Req
from radixrt.scheduler.request_group import RequestGroup


class _Open:
    """Unsent output of a request."""

    __slots__ = ("columns", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.columns: list[LogprobColumns] = []


class DeltaWriter:
    """See the module's docstring. A request's last tokens and its finish are sent in one delta.

    Nearly every request has one new token and no other output. Such a token is an entry of `_plain`, without an object
    per request.
    """

    def __init__(self) -> None:
        self._deltas: list[TokenDelta] = []
        self._plain: dict[str, int] = {}
        self._open: dict[str, _Open] = {}  # requests that are not in _plain
        self._values: dict[str, ReadValues] = {}

    def values(self, req: Req, values: ReadValues) -> None:
        """Add the values that a request reads; they are sent with its first token."""
        self._values[req.rid] = values

    def token(self, req: Req, token: int, logprobs: LogprobColumns | None) -> None:
        """Add a sampled token."""
        rid = req.rid
        if logprobs is None and rid not in self._plain and rid not in self._open:
            self._plain[rid] = token
            return
        opened = self._opened(rid)
        opened.tokens.append(token)
        if logprobs is not None:
            opened.columns.append(logprobs)

    def _opened(self, rid: str) -> _Open:
        opened = self._open.get(rid)
        if opened is None:
            opened = self._open[rid] = _Open()
            if rid in self._plain:
                opened.tokens.append(self._plain.pop(rid))
        return opened

    def take_back(self, req: Req) -> None:
        """Drop the last token of a request, which has not been sent."""
        self._opened(req.rid).tokens.pop()

    def unsampled(self, req: Req, tokens: list[int]) -> None:
        """Add tokens that were not sampled, because each was the only allowed token. Their log-probabilities, if
        requested, are -inf."""
        for token in tokens:
            self.token(req, token, None)
        if tokens and req.sampling.logprobs is not None:
            self._opened(req.rid).columns.append(_no_logprobs(tokens, req.sampling.logprobs))

    def finish(self, req: Req, finish: Finish, now: float) -> None:
        opened = self._opened(req.rid)
        del self._open[req.rid]
        if req.num_output == 0:
            opened = _Open()  # max_tokens 0: the last prefill step samples a token that nobody asked for
        stats = req.stats
        first = stats.first_token_at
        values = self._values.pop(req.rid, None)
        admitted = now if stats.admitted_at is None else stats.admitted_at
        self._deltas.append(
            TokenDelta(
                req.rid,
                token_ids=pack_i32(opened.tokens),
                finish=finish,
                usage=Usage(
                    req.prompt_len,
                    req.num_output,
                    max(stats.cached_tokens, 0),
                    stats.matched_tokens,
                    stats.fetched_tokens() if stats.fetched else {},
                ),
                timings=Timings(
                    queue_s=admitted - stats.arrived_at,
                    prefill_s=(now if first is None else first) - admitted,
                    decode_s=0.0 if first is None else stats.last_token_at - first,
                    retractions=stats.retractions,
                    arrived_at=stats.arrived_at,
                ),
                logprobs=_joined(opened.columns),
                constraint=None if req.taker is None else req.taker.info,
                values=None if first is None else values,  # all values are read before the first token is sampled
            )
        )

    def refuse(self, rid: str, finish: Finish, prompt_tokens: int) -> None:
        """Write the finish of a request that was never queued."""
        self._deltas.append(TokenDelta(rid, finish=finish, usage=Usage(prompt_tokens), timings=Timings()))

    def answered(self, group: RequestGroup, values: ReadValues | None, finish: Finish, now: float) -> None:
        """Write the only answer of a request that samples nothing; `values` is None if the request was cut short."""
        admitted = now if group.admitted_at is None else group.admitted_at
        self._deltas.append(
            TokenDelta(
                group.rid,
                finish=finish,
                usage=Usage(group.prompt_tokens, 0, group.cached_tokens, 0, dict(group.fetched_tokens)),
                timings=Timings(admitted - group.arrived_at, now - admitted, 0.0, group.retractions, group.arrived_at),
                values=values,
            )
        )

    def take(self) -> TokenBatch | None:
        """Return all output since the last call; None without output."""
        for rid in self._plain.keys() & self._values.keys():
            self._opened(rid)  # the first token is sent together with the values
        for rid, opened in self._open.items():
            values = self._values.pop(rid, None)
            self._deltas.append(
                TokenDelta(rid, pack_i32(opened.tokens), logprobs=_joined(opened.columns), values=values)
            )
        if not self._deltas and not self._plain:
            return None
        batch = TokenBatch(self._deltas, list(self._plain), pack_i32(list(self._plain.values())))
        self._deltas = []
        self._plain.clear()
        self._open.clear()
        return batch


def _joined(parts: list[LogprobColumns]) -> LogprobColumns | None:
    return LogprobColumns.join(parts) if parts else None


def _no_logprobs(tokens: list[int], k: int) -> LogprobColumns:
    nothing = np.full(len(tokens) * max(k, 1), -np.inf, np.float32)
    return LogprobColumns(
        pack_f32(nothing[: len(tokens)]),
        pack_i32(np.repeat(tokens, k)),
        pack_f32(nothing[: len(tokens) * k]),
        k,
        allowed=pack_i32(np.ones(len(tokens))),
        forced=b"\1" * len(tokens),
    )
