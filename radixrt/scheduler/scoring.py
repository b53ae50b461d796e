"""Scoring requests: log-probabilities of given tokens after shared prefixes, with nothing sampled.

A scoring request is a list of rows, each a `Req` of its own that ends when its targets are scored. One row is in the
queue at a time; when it is admitted the next one follows at once, so that as many as there is room for share a step,
and a request with thousands of rows still is one entry of the queue. The first row of a prefix computes it; the others
are deferred until they find it in the cache, as any requests with a common prefix are (`PrefillPrefixes`).
"""

from __future__ import annotations

import numpy as np

from radixrt.messages.scheduler import TokenizedReq, TokenizedScoreReq
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.programs import ProgramCall
from radixrt.scheduler.req import Req, RowScores

NOTHING_SAMPLED = SamplingParams(max_tokens=0)


class ScoreGroup:
    """One scoring request inside the scheduler.

    Attributes:
        rid: id of the request; its rows have ids of their own.
        live: rows that are waiting or active.
        call: the call of a program that this request is, as in `Req`.
        prompt_tokens, cached_tokens: totals of the rows admitted so far; a shared prefix counts once.
    """

    def __init__(self, message: TokenizedScoreReq, *, seq: int, now: float, timeout_s: float) -> None:
        self.rid = message.rid
        self._message = message
        self.seq = seq
        self._timeout_s = timeout_s
        self._rows: list[RowScores] = []  # those started so far
        self.arrived_at = now
        self.admitted_at: float | None = None
        self.retractions = 0
        self.live: list[Req] = []
        self.call: ProgramCall | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def next_row(self) -> Req | None:
        """Start the next row; None if all have been started."""
        message, index = self._message, len(self._rows)
        if index == len(message.rows):
            return None
        row = message.rows[index]
        prefix = unpack_i32(message.prefixes[row.prefix])
        is_first = index == 0 or message.rows[index - 1].prefix != row.prefix
        scores = RowScores(
            self.rid, unpack_i32(row.positions), unpack_i32(row.targets), shared_len=0 if is_first else len(prefix)
        )
        ids = np.concatenate([prefix, unpack_i32(row.path)])
        req = Req(
            TokenizedReq(f"{self.rid}\0{index}", b"", NOTHING_SAMPLED, message.priority, message.cache_salt),
            ids,
            seq=self.seq,
            seed=0,
            eos_ids=frozenset(),
            max_len=len(ids),
            now=self.arrived_at,
            timeout_s=self._timeout_s,
            call=None if self.call is None else ProgramCall(self.call.program, None),
            scores=scores,
        )
        self._rows.append(scores)
        self.live.append(req)
        return req

    def admitted(self, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Count a row that was just admitted."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.admitted_at is None:
            self.admitted_at = now

    @property
    def tokens_left(self) -> int:
        """Number of tokens of the rows that have not been started, without their prefixes."""
        return sum(len(row.path) for row in self._message.rows[len(self._rows) :]) // 4

    @property
    def prompt(self) -> Int32Array:
        """int32, the tokens before the choices."""
        return unpack_i32(self._message.prefixes[0])

    @property
    def namespace(self) -> str:
        return self._message.cache_salt

    @property
    def is_done(self) -> bool:
        return not self.live and len(self._rows) == len(self._message.rows)

    def scores(self) -> bytes:
        """float32 column of all rows, in order. Read once `is_done`."""
        return b"".join([row.all_values() for row in self._rows])


def longest_row(message: TokenizedScoreReq) -> int:
    """Length of the request's longest row, in tokens."""
    return max((len(message.prefixes[row.prefix]) + len(row.path)) // 4 for row in message.rows)
