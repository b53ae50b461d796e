"""Scoring and embedding requests: values read from forward passes over given tokens, with nothing sampled.

Such a request is a group of rows, each a `Req` of its own that ends when everything it wants has been read. One row is
in the queue at a time; when it is admitted the next one follows at once, so that as many as there is room for share a
step, and a request with thousands of rows still is one entry of the queue. The first row of a prefix computes it; the
others are deferred until they find it in the cache, as any requests with a common prefix are (`PrefillPrefixes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from radixrt.messages.scheduler import TokenizedEmbedReq, TokenizedReq, TokenizedScoreReq
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.group_rows import GroupRow, PooledRow, ScoredRow
from radixrt.scheduler.program import ProgramCall
from radixrt.scheduler.req import Req

NOTHING_SAMPLED = SamplingParams(max_tokens=0)

GroupMessage = TokenizedScoreReq | TokenizedEmbedReq


class RequestGroup(ABC):
    """One scoring or embedding request inside the scheduler.

    Attributes:
        rid: id of the request; its rows have ids of their own.
        live: rows that are waiting or active.
        call: the call of a program that this request is, as in `Req`.
        prompt_tokens, cached_tokens: totals of the rows admitted so far; a shared prefix counts once.
    """

    def __init__(self, message: GroupMessage, *, seq: int, now: float, timeout_s: float) -> None:
        self.rid = message.rid
        self.namespace = message.cache_salt
        self._priority = message.priority
        self.seq = seq
        self._timeout_s = timeout_s
        self._rows: list[GroupRow] = []  # those started so far
        self.arrived_at = now
        self.admitted_at: float | None = None
        self.retractions = 0
        self.live: list[Req] = []
        self.call: ProgramCall | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def _row(self, index: int) -> tuple[Int32Array, GroupRow]:
        """Return the tokens of a row, and what it reads."""

    @property
    @abstractmethod
    def prompt(self) -> Int32Array:
        """int32, the first row's tokens that another call of the program may go on from."""

    @property
    def num_started(self) -> int:
        return len(self._rows)

    @property
    @abstractmethod
    def tokens_left(self) -> int:
        """Number of tokens of the rows that have not been started, shared prefixes excluded."""

    def next_row(self) -> Req | None:
        """Start the next row; None if all have been started."""
        index = self.num_started
        if index == len(self):
            return None
        ids, row = self._row(index)
        req = Req(
            TokenizedReq(f"{self.rid}\0{index}", b"", NOTHING_SAMPLED, self._priority, self.namespace),
            ids,
            seq=self.seq,
            seed=0,
            eos_ids=frozenset(),
            max_len=len(ids),
            now=self.arrived_at,
            timeout_s=self._timeout_s,
            call=None if self.call is None else ProgramCall(self.call.program, None),
            row=row,
        )
        self._rows.append(row)
        self.live.append(req)
        return req

    def admitted(self, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Count a row that was just admitted."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.admitted_at is None:
            self.admitted_at = now

    @property
    def is_done(self) -> bool:
        return not self.live and self.num_started == len(self)

    def answer(self) -> bytes:
        """float32 column of all rows, in order. Read once `is_done`."""
        return b"".join([row.answer() for row in self._rows])


class ScoreGroup(RequestGroup):
    """A scoring request: log-probabilities of given tokens after shared prefixes."""

    def __init__(self, message: TokenizedScoreReq, *, seq: int, now: float, timeout_s: float) -> None:
        super().__init__(message, seq=seq, now=now, timeout_s=timeout_s)
        self._message = message

    def __len__(self) -> int:
        return len(self._message.rows)

    def _row(self, index: int) -> tuple[Int32Array, GroupRow]:
        message, row = self._message, self._message.rows[index]
        prefix = unpack_i32(message.prefixes[row.prefix])
        is_first = index == 0 or message.rows[index - 1].prefix != row.prefix
        is_last = index + 1 == len(message.rows) or message.rows[index + 1].prefix != row.prefix
        scored = ScoredRow(
            self.rid,
            unpack_i32(row.positions),
            unpack_i32(row.targets),
            shared_len=0 if is_first else len(prefix),
            fork_len=0 if is_last or not is_first else len(prefix),
        )
        return np.concatenate([prefix, unpack_i32(row.path)]), scored

    @property
    def prompt(self) -> Int32Array:
        """int32, the tokens before the choices."""
        return unpack_i32(self._message.prefixes[0])

    @property
    def tokens_left(self) -> int:
        return sum(len(row.path) for row in self._message.rows[self.num_started :]) // 4


class EmbedGroup(RequestGroup):
    """An embedding request: one row for each prompt, whose final hidden states are pooled."""

    def __init__(self, message: TokenizedEmbedReq, *, seq: int, now: float, timeout_s: float) -> None:
        super().__init__(message, seq=seq, now=now, timeout_s=timeout_s)
        self._message = message

    def __len__(self) -> int:
        return len(self._message.prompts)

    def _row(self, index: int) -> tuple[Int32Array, GroupRow]:
        ids = unpack_i32(self._message.prompts[index])
        return ids, PooledRow(self.rid, len(ids), self._message.pooling)

    @property
    def prompt(self) -> Int32Array:
        """int32, the first prompt."""
        return unpack_i32(self._message.prompts[0])

    @property
    def tokens_left(self) -> int:
        return sum(map(len, self._message.prompts[self.num_started :])) // 4


def make_group(message: GroupMessage, *, seq: int, now: float, timeout_s: float) -> RequestGroup:
    """Create the group of a message."""
    kind = EmbedGroup if isinstance(message, TokenizedEmbedReq) else ScoreGroup
    return kind(message, seq=seq, now=now, timeout_s=timeout_s)  # type: ignore[arg-type]  # each takes its own message


def longest_row(message: GroupMessage) -> int:
    """Length of the request's longest row, in tokens."""
    if isinstance(message, TokenizedEmbedReq):
        return max(map(len, message.prompts)) // 4
    return max((len(message.prefixes[row.prefix]) + len(row.path)) // 4 for row in message.rows)
