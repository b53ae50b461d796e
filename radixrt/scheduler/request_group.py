"""`RequestGroup`: a request without sampling, which reads values from forward passes over its rows.

Each row is a `Req`, which ends when all of its values have been read. The queue holds one row of a group at a time, so
that a request with thousands of rows is one entry of the queue. When the row is admitted, the next row of the group is
queued and tried at once, so that a step gets all rows that fit. The first row of a prefix computes the prefix; the
other rows are deferred until the prefix is cached, like all requests with a common prefix (`PrefillPrefixes`).
"""

from __future__ import annotations

from collections import Counter

import msgspec

from radixrt.messages.request import Request, Row
from radixrt.messages.wire import Int32Array
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.req import Member, Reads, Req

NOTHING_SAMPLED = SamplingParams(max_tokens=0)


class RequestGroup:
    """State of a request without sampling inside the scheduler.

    Attributes:
        rid: id of the request; its rows have ids of their own.
        live: rows that are waiting or active.
        reads: values of each row that was started, in row order.
        prompt_tokens, cached_tokens: totals of the rows admitted so far; a shared prefix counts once.
        fetched_tokens: the cached tokens that were fetched from a tier, by tier.
    """

    def __init__(self, message: Request, *, seq: int, now: float, timeout_s: float) -> None:
        self.message = message
        self.rid = message.rid
        self.namespace = message.envelope.cache_salt
        self.seq = seq
        self._timeout_s = timeout_s
        self.arrived_at = now
        self.admitted_at: float | None = None
        self.retractions = 0
        self.live: list[Req] = []
        self.reads: list[Reads] = []
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.fetched_tokens: Counter[str] = Counter()

    @property
    def num_started(self) -> int:
        """Number of rows that have been queued."""
        return len(self.reads)

    @property
    def prompt(self) -> Int32Array:
        """int32 view of the first row's tokens that another call of the program may continue from."""
        row = self.message.rows[0]
        return self.message.tokens(0)[: self._prefix_len(0) or len(row.ids) // 4]

    def next_row(self) -> tuple[Row | None, Req | None]:
        """Return the next row and a `Req` that computes the row; (None, None) if all rows have been started."""
        index, message = self.num_started, self.message
        if index == len(message.rows):
            return None, None
        ids, row = message.tokens(index), message.rows[index]
        prefix = self._prefix_len(index)
        is_first, is_last = not self._shares(index - 1, index), not self._shares(index, index + 1)
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
            member=Member(self.rid, shared_len=0 if is_first else prefix),
        )
        if is_first and not is_last:
            req.fork_len, req.fork_uses = min(prefix, message.first_read(index)), 2
        return row, req

    def started(self, req: Req) -> None:
        """Note that the request of `next_row` is in the queue."""
        assert req.reads is not None  # the intake refuses rows that read nothing
        self.reads.append(req.reads)
        self.live.append(req)

    def _prefix_len(self, index: int) -> int:
        row = self.message.rows[index]
        return len(self.message.prefixes[row.prefix]) // 4 if row.prefix >= 0 else 0

    def _shares(self, index: int, other: int) -> bool:
        """Return True if both rows exist and begin with the same prefix."""
        rows = self.message.rows
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
        return not self.live and self.num_started == len(self.message.rows)
