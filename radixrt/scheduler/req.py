"""`Req`: state of a request inside the scheduler. No other process sees a `Req`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from radixrt.messages.parts import (
    FINISH_LENGTH,
    FINISH_STOP,
    ConstraintInfo,
    Finish,
    FinishError,
    LogprobColumns,
    ReadValues,
)
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Int32Array
from radixrt.sampling_params import SamplingParams


class ReqState(enum.Enum):
    """State of a request. Requests in PREFILL and RUNNING hold a row and slots; other requests hold neither."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class KVState:
    """The request's row of req_to_token and the slots in it. Written by `KVManager` alone.

    Attributes:
        req_pool_idx: the row; 0 while the request is waiting.
        length: the slots row[:length] hold the keys and values of positions [0, length), once the steps in flight have
            run.
        protected_len: row[:protected_len] are slots of the radix tree, locked through `last_node`; the slots in
            row[protected_len:length] are private to this request.
        last_node: the `TreeNode` in which row[:protected_len] ends, locked; None while the request holds no lock.
        states: record of a `KVManager` subclass that keeps more than keys and values for a row; None otherwise.
    """

    req_pool_idx: int = 0
    length: int = 0
    protected_len: int = 0
    last_node: Any = None
    states: Any = None


@dataclass(slots=True, eq=False)
class ReqStats:
    """Times of a request, in the caller's seconds, and counts that its usage reports. Written by the scheduler.

    Attributes:
        deadline: time at which the request ends.
        cached_tokens: prompt tokens that the cache saved at the first admission; -1 before that.
        matched_tokens: prompt tokens whose keys and values were cached at that time. With recurrent layers the number
            exceeds `cached_tokens` if the nearest cached state is at an earlier position.
        fetched: see `note_fetched`; for each span its tier, first position and end.
    """

    arrived_at: float
    deadline: float
    last_token_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    retractions: int = 0
    cached_tokens: int = -1
    matched_tokens: int = 0
    fetched: tuple[tuple[str, int, int], ...] = ()

    def note_fetched(self, tier: str, start: int, end: int) -> None:
        """Note that a part has copied the keys and values of positions [start, end) from a tier into the tree for this
        request. Earlier copies count up to `start`. The call has no effect after the first admission."""
        if self.cached_tokens < 0:
            before = ((each, first, min(stop, start)) for each, first, stop in self.fetched if first < start)
            self.fetched = (*before, (tier, start, end))

    def fetched_tokens(self, start: int = 0) -> dict[str, int]:
        """Return the number of cached prompt tokens from position `start` on that were fetched, by tier."""
        counts: dict[str, int] = {}
        for tier, first, stop in self.fetched:
            count = min(stop, self.cached_tokens) - max(first, start)
            if count > 0:
                counts[tier] = counts.get(tier, 0) + count
        return counts


class Taker(Protocol):
    """Takes the sampled tokens of one request in place of the core.

    Attributes:
        may_take_back: the taker may drop tokens whose keys and values are computed already.
    """

    may_take_back: bool

    def refusal(self, room: int) -> FinishError | None:
        """Return the error of a request that cannot be served with `room` tokens after its prompt."""
        ...

    def start(self, req: Req, resumed: list[int]) -> Finish | None:
        """Append the first output tokens, which are resumed or forced; return a finish if they complete the request.

        Args:
            resumed: output tokens that come with the request.
        """
        ...

    def ignores(self) -> bool:
        """Return True, and count the sample as arrived, if the oldest sample in flight is void."""
        ...

    def take(self, req: Req, token: int, columns: LogprobColumns | None) -> Finish | None:
        """Append a sampled token and write the token to the output; return a finish if the request ends."""
        ...

    def requeued(self) -> None:
        """Note that all samples in flight are lost."""
        ...

    def expire(self, req: Req) -> Finish | None:
        """Return the finish of a request whose deadline has passed; None if it has no output to end with."""
        ...

    @property
    def info(self) -> ConstraintInfo | None:
        """Report that is sent with the finish."""
        ...


class Kin(Protocol):
    """Group of requests that are likely to have long common prefixes, such as the calls of one program.

    Attributes:
        number: position in the order of arrival.
    """

    number: int

    @property
    def has_begun(self) -> bool:
        """True once one of the requests was admitted."""
        ...


class Reach(NamedTuple):
    """Tokens that a chunk can have, in regard to a row's inputs.

    Attributes:
        tokens: number of tokens, at most as many as the caller wants.
        seconds: predicted time of the work that the step does for these inputs before its layers.
    """

    tokens: int
    seconds: float


class Inputs(Protocol):
    """Inputs of a row besides tokens, such as images. The row's ids hold keys below -1 at the positions of the inputs.

    Attributes:
        token: token id that the model reads at these positions.
    """

    token: int

    def usable(self, matched: int) -> int:
        """Return how many of the row's first `matched` tokens, which are cached, the row may reuse."""
        ...

    def reach(self, start: int, wanted: int, seconds: float, *, must: bool) -> Reach:
        """Return how many of `wanted` tokens from position `start` on the next step can compute, and begin the work
        that these tokens need.

        Args:
            seconds: time that the step has left for such work.
            must: begin some work even if it takes longer.
        """
        ...

    def seconds(self, cached: int) -> float:
        """Return the predicted seconds of the work for the inputs behind the row's first `cached` tokens."""
        ...

    def lost(self, number: int) -> FinishError | None:
        """Return the error of the row if it needs an input that a step could not read; None if the row does not.

        Args:
            number: see `StepFailed.lost_input`.
        """
        ...


class Reads(Protocol):
    """Values that a request reads from forward passes over its tokens."""

    @property
    def is_done(self) -> bool:
        """True once every value has been read."""
        ...

    @property
    def first(self) -> int:
        """Position of the first token whose hidden state is still needed: the tokens from this position on must be
        computed although they may be cached. Defined until `is_done`."""
        ...

    def answer(self) -> ReadValues:
        """Return the values. Callable once `is_done`."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """Place of a request that is one row of a group (`radixrt.scheduler.request_group`).

    Attributes:
        group: id of the group.
        shared_len: number of leading tokens that the row has in common with an earlier row of the same group.
    """

    group: str
    shared_len: int = 0


class Req:
    """A row of tokens: a request that samples, or a row of a `RequestGroup`. The docstrings of the classes of `kv`,
    `stats`, `reads` and `taker` name the only writer of each record.

    Attributes:
        seq: position in the order of arrival.
        max_len: length of the sequence at which the request ends.
        stop_ids: tokens that end the output.
        turn_len: length of the prompt of a conversation without its generation prompt; 0 if unknown.
        ids: int32[capacity], prompt tokens and then output tokens; ids[:known_len] are known.
        num_pending: number of tokens that steps in flight sample.
        last_step: number of the last step that samples for the request; -1 before the first such step.
        tenant: name of the API key that the request came with; "" for none.
        taker: takes the sampled tokens; None if the core appends them.
        fork_len: number of leading tokens that other requests are known to have in common with this request; 0 if
            unknown.
        fork_uses: number of requests with these leading tokens, this request included; 0 if unknown.
        kin: requests with the same kin are likely to share prefixes; None for a request without kin.
        reads: values that the request reads; None without values.
        inputs: inputs besides tokens; None for a row of tokens alone.
        member: group that the row belongs to; None for a request that samples.
        sampling_row_due: the runner's sampling tables do not hold this request's parameters yet.
    """

    __slots__ = (
        "finish",
        "fork_len",
        "fork_uses",
        "ids",
        "inputs",
        "kin",
        "known_len",
        "kv",
        "last_step",
        "max_len",
        "member",
        "namespace",
        "num_pending",
        "priority",
        "prompt_len",
        "reads",
        "rid",
        "sampling",
        "sampling_row_due",
        "seed",
        "seq",
        "state",
        "stats",
        "stop_ids",
        "taker",
        "tenant",
        "turn_len",
    )

    def __init__(
        self,
        envelope: Envelope,
        ids: Int32Array,
        sampling: SamplingParams,
        *,
        seq: int,
        seed: int,
        eos_ids: frozenset[int],
        max_len: int,
        now: float,
        timeout_s: float,
        turn_len: int = 0,
        reads: Reads | None = None,
        member: Member | None = None,
    ) -> None:
        self.rid = envelope.rid
        self.seq = seq
        self.priority = envelope.priority
        self.namespace = envelope.cache_salt
        self.tenant = envelope.tenant
        self.sampling = sampling
        self.seed = seed
        self.prompt_len = len(ids)
        self.turn_len = turn_len
        self.max_len = max_len if sampling.max_tokens is None else min(max_len, len(ids) + sampling.max_tokens)
        stop = frozenset(sampling.stop_token_ids)
        self.stop_ids = stop if sampling.ignore_eos else stop | eos_ids
        self.ids: Int32Array = np.empty(len(ids) + 64, np.int32)
        self.ids[: len(ids)] = ids
        self.known_len = len(ids)
        self.num_pending = 0
        self.last_step = -1
        self.state = ReqState.WAITING
        self.finish: Finish | None = None
        self.sampling_row_due = member is None
        self.kv = KVState()
        self.stats = ReqStats(arrived_at=now, deadline=now + timeout_s, last_token_at=now)
        self.reads = reads
        self.inputs: Inputs | None = None
        self.member = member
        self.taker: Taker | None = None
        self.kin: Kin | None = None
        self.fork_len = self.fork_uses = 0

    @property
    def seq_len(self) -> int:
        """Length of the sequence with the tokens that are still in flight."""
        return self.known_len + self.num_pending

    @property
    def num_output(self) -> int:
        return self.known_len - self.prompt_len

    @property
    def remaining(self) -> int:
        """Number of tokens that steps not yet submitted may sample."""
        return self.max_len - self.seq_len

    @property
    def reusable_ids(self) -> Int32Array:
        """int32 view of the leading tokens that may come from the cache. The last known token must be computed, and so
        must tokens that the request reads values at."""
        end, reads = self.known_len - 1, self.reads
        if reads is not None and not reads.is_done:
            end = min(end, reads.first)
        return self.ids[:end]

    @property
    def known_ids(self) -> Int32Array:
        """int32 view [known_len]."""
        return self.ids[: self.known_len]

    def tokens(self, start: int, stop: int) -> Int32Array:
        """Return int32 [stop - start], the token ids that the model reads at positions [start, stop)."""
        ids = self.ids[start:stop]
        return ids if self.inputs is None else np.where(ids < -1, np.int32(self.inputs.token), ids)

    def take_back(self) -> None:
        """Drop the last output token."""
        self.known_len -= 1

    def append(self, token: int) -> None:
        length, ids = self.known_len, self.ids
        if length == len(ids):
            grown = np.empty(2 * length, np.int32)
            grown[:length] = ids
            self.ids = ids = grown
        ids[length] = token
        self.known_len = length + 1

    def take(self, token: int) -> Finish | None:
        """Append an output token; return the request's finish if the token is its last."""
        if self.prompt_len == self.max_len:  # max_tokens 0: only the prompt was to be read
            return Finish(FINISH_LENGTH)
        self.append(token)
        if token in self.stop_ids:
            return Finish(FINISH_STOP, matched=token)
        return Finish(FINISH_LENGTH) if self.known_len >= self.max_len else None
