"""Scoring requests: log-probabilities of given tokens after shared prefixes, with nothing sampled.

A scoring request is a number of rows, each a `Req` of its own that ends when its targets are scored. One of them stands
in the queue at a time; when it is admitted the next one follows at once, so that as many as there is room for share a
step, and a request with thousands of rows still is one entry of the queue. The first row of a prefix computes it; the
others are held back until they find it in the cache, as any requests with a common prefix are.
"""

from __future__ import annotations

import numpy as np

from radixrt.messages.scheduler import TokenizedReq, TokenizedScoreReq
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.programs import Program
from radixrt.scheduler.req import Req, RowScores

NOTHING_SAMPLED = SamplingParams(max_tokens=0)


class ScoreGroup:
    """One scoring request inside the scheduler.

    Attributes:
        rid: the request's; its rows have ids of their own.
        live: its rows that wait or are active.
        hint, program: as a `Req` has them; its rows have only the second.
        prompt_tokens, cached_tokens: of the rows admitted so far; what rows share counts once.
    """

    def __init__(self, message: TokenizedScoreReq, *, seq: int, now: float, timeout_s: float) -> None:
        self.rid = message.rid
        self._message = message
        self.seq = seq
        self._timeout_s = timeout_s
        self._rows: list[RowScores] = []  # as far as they have been started
        self.arrived_at = now
        self.admitted_at: float | None = None
        self.retractions = 0
        self.live: list[Req] = []
        self.hint = message.program
        self.program: Program | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def next_row(self) -> Req | None:
        """Start the next row; None if all have been."""
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
            grammar=None,
            row=scores,
        )
        req.program = self.program
        self._rows.append(scores)
        self.live.append(req)
        return req

    def admitted(self, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """A row of it holds its slots now."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.admitted_at is None:
            self.admitted_at = now

    @property
    def prompt(self) -> Int32Array:
        """int32, what stands before the choices."""
        return unpack_i32(self._message.prefixes[0])

    @property
    def namespace(self) -> str:
        return self._message.cache_salt

    @property
    def is_done(self) -> bool:
        return not self.live and len(self._rows) == len(self._message.rows)

    def scores(self) -> bytes:
        """float32 column of all rows, in order. Read once it is done."""
        return b"".join([row.all_values() for row in self._rows])


def longest_row(message: TokenizedScoreReq) -> int:
    """Tokens of the request's longest row."""
    return max((len(message.prefixes[row.prefix]) + len(row.path)) // 4 for row in message.rows)
