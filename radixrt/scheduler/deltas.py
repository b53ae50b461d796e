"""`DeltaWriter`: gathers what requests produced until the loop sends it to the tokenizer."""

from __future__ import annotations

from radixrt.messages import (
    FINISH_ERROR,
    Finish,
    FinishError,
    LogprobColumns,
    Timings,
    TokenDelta,
    Usage,
    pack_i32,
)
from radixrt.scheduler.req import Req


class DeltaWriter:
    """At most one token of a request is open at a time; one that ends its request leaves in one delta with the end."""

    def __init__(self) -> None:
        self._deltas: list[TokenDelta] = []
        self._open: dict[str, tuple[int, LogprobColumns | None]] = {}
        self._prompt_logprobs: dict[str, list[LogprobColumns]] = {}

    def store_prompt_logprobs(self, reqs: list[Req], columns: list[LogprobColumns]) -> None:
        """Keep a chunk's columns until the request's first token leaves."""
        for req, part in zip(reqs, columns, strict=True):
            if req.finish is None:
                self._prompt_logprobs.setdefault(req.rid, []).append(part)

    def drop_prompt_logprobs(self, req: Req) -> None:
        self._prompt_logprobs.pop(req.rid, None)

    def token(self, req: Req, token: int, logprobs: LogprobColumns | None) -> None:
        self._open[req.rid] = (token, logprobs)

    def finish(self, req: Req, finish: Finish, now: float) -> None:
        token, logprobs = self._open.pop(req.rid, (None, None))
        if req.num_output == 0:
            token = logprobs = None  # max_tokens 0 samples a token that nobody asked for
        first = req.first_token_at
        scores = self._take_prompt_logprobs(req.rid)
        admitted = now if req.admitted_at is None else req.admitted_at
        self._deltas.append(
            TokenDelta(
                req.rid,
                token_ids=b"" if token is None else pack_i32([token]),
                finish=finish,
                usage=Usage(req.prompt_len, req.num_output, max(req.cached_tokens, 0)),
                timings=Timings(
                    queue_s=admitted - req.arrived_at,
                    prefill_s=(now if first is None else first) - admitted,
                    decode_s=0.0 if first is None else req.last_token_at - first,
                    retractions=req.retractions,
                ),
                logprobs=logprobs,
                prompt_logprobs=None if first is None else scores,  # a prompt cut short has only some of its scores
            )
        )

    def refuse(self, rid: str, error: FinishError, prompt_tokens: int) -> None:
        """The end of a request that was never taken in."""
        finish = Finish(FINISH_ERROR, error=error)
        self._deltas.append(TokenDelta(rid, finish=finish, usage=Usage(prompt_tokens), timings=Timings()))

    def take(self) -> list[TokenDelta]:
        for rid, (token, logprobs) in self._open.items():
            prompt = self._take_prompt_logprobs(rid) if self._prompt_logprobs else None
            self._deltas.append(TokenDelta(rid, pack_i32([token]), logprobs=logprobs, prompt_logprobs=prompt))
        self._open.clear()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _take_prompt_logprobs(self, rid: str) -> LogprobColumns | None:
        parts = self._prompt_logprobs.pop(rid, None)
        if parts is None:
            return None
        if len(parts) == 1:
            return parts[0]
        return LogprobColumns(
            b"".join(p.token_logprobs for p in parts),
            b"".join(p.top_ids for p in parts),
            b"".join(p.top_logprobs for p in parts),
            parts[0].k,
        )
