"""`RequestGroup`: a request that samples nothing, whose rows are computed for the values that they read.

Each row is a `Req` that ends when everything it reads has been read. One row is in the queue at a time; when it is
admitted the next one follows at once, so that as many rows as there is room for share a step, and a request with
thousands of rows is still one entry of the queue. The first row of a prefix computes the prefix; the other rows are
deferred until they find it in the cache, as any requests with a common prefix are (`PrefillPrefixes`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from radixrt.messages.request import Request, Row
from radixrt.messages.wire import Int32Array
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.program import ProgramCall
from radixrt.scheduler.req import Member, Reads, Req

NOTHING_SAMPLED = SamplingParams(max_tokens=0)


class RequestGroup:
    """One request without sampling inside the scheduler.

    Args:
        reads_of: creates the record of what a row reads.

    Attributes:
        rid: id of the request; its rows have ids of their own.
        live: rows that are waiting or active.
        reads: what each row that was started reads, in row order.
        call: the call of a program that this request is, as in `Req`.
        prompt_tokens, cached_tokens: totals of the rows admitted so far; a shared prefix counts once.
    """

    def __init__(
        self, message: Request, reads_of: Callable[[Row], Reads | None], *, seq: int, now: float, timeout_s: float
    ) -> None:
        self._message = message
        self._reads_of = reads_of
        self.rid = message.rid
        self.namespace = message.envelope.cache_salt
        self.seq = seq
        self._timeout_s = timeout_s
        self.arrived_at = now
        self.admitted_at: float | None = None
        self.retractions = 0
        self.live: list[Req] = []
        self.reads: list[Reads | None] = []
        self.call: ProgramCall | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def num_started(self) -> int:
        """Number of rows that have been queued."""
        return len(self.reads)

    @property
    def tokens_left(self) -> int:
        """Number of tokens of the rows that have not been started, shared prefixes excluded."""
        return sum(len(row.ids) for row in self._message.rows[self.num_started :]) // 4

    @property
    def prompt(self) -> Int32Array:
        """int32, the first row's tokens that another call of the program may go on from."""
        row = self._message.rows[0]
        return self._message.tokens(0)[: self._prefix_len(0) or len(row.ids) // 4]

    def next_row(self) -> Req | None:
        """Start the next row; None if all have been started."""
        index, message = self.num_started, self._message
        if index == len(message.rows):
            return None
        ids, row = message.tokens(index), message.rows[index]
        prefix = self._prefix_len(index)
        is_first, is_last = not self._shares(index - 1, index), not self._shares(index, index + 1)
        reads = self._reads_of(row)
        req = Req(
            msgspec.structs.replace(message.envelope, rid=f"{self.rid}\0{index}"),
            ids,
            NOTHING_SAMPLED,
            seq=self.seq,
            seed=0,
            eos_ids=frozenset(),
            max_len=len(ids),
            now=self.arrived_at,
            timeout_s=self._timeout_s,
            call=None if self.call is None else ProgramCall(self.call.program, None),
            reads=reads,
            member=Member(
                self.rid,
                shared_len=0 if is_first else prefix,
                fork_len=0 if is_last or not is_first else prefix,
            ),
        )
        self.reads.append(reads)
        self.live.append(req)
        return req

    def _prefix_len(self, index: int) -> int:
        row = self._message.rows[index]
        return len(self._message.prefixes[row.prefix]) // 4 if row.prefix >= 0 else 0

    def _shares(self, index: int, other: int) -> bool:
        """Return True if both rows exist and begin with the same prefix."""
        rows = self._message.rows
        return index >= 0 and other < len(rows) and rows[index].prefix == rows[other].prefix >= 0

    def admitted(self, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Count a row that was just admitted."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.admitted_at is None:
            self.admitted_at = now

    @property
    def is_done(self) -> bool:
        """True once every row has ended."""
        return not self.live and self.num_started == len(self._message.rows)
