"""`Req`: one request inside the scheduler, which alone reads and writes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from radixrt.constrained.grammar import Grammar
from radixrt.messages.parts import ConstraintInfo, Finish
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Int32Array
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.program import Program, ProgramCall


class ReqState(enum.Enum):
    """State of a request. WAITING holds no row and no slot; PREFILL and RUNNING hold a row; FINISHED nothing."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class KVState:
    """The request's row of req_to_token and the slots in it. Written by `KVManager` alone, and the fields about states
    of recurrent layers by its `StateManager`, for a model that has them.

    Attributes:
        req_pool_idx: the row; 0 while the request is waiting.
        length: positions [0, length) have, or will have once the steps in flight have run, keys and values in the slots
            row[:length].
        protected_len: row[:protected_len] are slots of the radix tree, locked through `last_node`; the slots in
            row[protected_len:length] are private to this request.
        last_node: the `TreeNode` in which row[:protected_len] ends, locked; None while the request holds no lock.
        state_slot: slot that holds, or will hold once the steps in flight have run, the state after the first
            `state_len` tokens; slot 0 (zeros) after none.
        state_len: see `state_slot`. It is less than `length` behind a match: the tokens in [state_len, length) are
            computed again for the state's sake.
        state_node: node whose state that is, pinned; None if the slot is the request's own, or slot 0.
        spare_slot: second slot of its own, between which and `state_slot` decode steps alternate; 0 for none.
        spare_len: number of tokens after which the spare slot holds the state.
        cuts: lengths at which a chunk leaves its state to the cache -> number of requests that are expected to use it.
            Written by `Checkpoints`.
    """

    req_pool_idx: int = 0
    length: int = 0
    protected_len: int = 0
    last_node: Any = None
    state_slot: int = 0
    state_len: int = 0
    state_node: Any = None
    spare_slot: int = 0
    spare_len: int = 0
    cuts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ConstraintState:
    """The grammar of a constrained request and what it did to the output. Written by `ConstrainedRequests`, but for
    `stale_samples`, which the scheduler counts down as the samples arrive.

    Attributes:
        info: how the constraint was compiled.
        jumps: forced continuations are appended without sampling (jump-forward).
        forced_tokens: output tokens about which the grammar left no choice.
        closing_tokens: output tokens that ended the output early.
        stale_samples: number of the oldest samples in flight to ignore: the tokens after them are forced already.
    """

    grammar: Grammar
    info: ConstraintInfo | None
    jumps: bool
    forced_tokens: int = 0
    closing_tokens: int = 0
    stale_samples: int = 0


@dataclass(slots=True, eq=False)
class ReqStats:
    """Times of a request, in the caller's seconds, and counts that its usage reports. Written by the scheduler.

    Attributes:
        deadline: time at which the request ends with an error, or a constrained one with what it has.
        cached_tokens: prompt tokens that the cache saved at the first admission; -1 before that.
        matched_tokens: prompt tokens whose keys and values it had; more only if the nearest state is further up.
    """

    arrived_at: float
    deadline: float
    last_token_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    retractions: int = 0
    cached_tokens: int = -1
    matched_tokens: int = 0


class Reads(Protocol):
    """Values that a request reads from forward passes over its tokens."""

    @property
    def is_done(self) -> bool:
        """True once every value has been read."""
        ...

    @property
    def first(self) -> int:
        """Position of the first token whose hidden state is still needed, so that it must not come from the cache; read
        only until `is_done`."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """Place of a request that is one row of a group (`radixrt.scheduler.request_group`).

    Attributes:
        group: id of the group.
        shared_len: number of leading tokens that an earlier row of the same group has too.
        fork_len: number of leading tokens that later rows of the same group have too.
    """

    group: str
    shared_len: int = 0
    fork_len: int = 0


class Req:
    """One row of tokens: a request that samples, or one row of a group. The records `kv`, `constraint`, `stats`, `call`
    and `reads` each have one writer, named in their docstrings.

    Attributes:
        seq: position in the order of arrival.
        max_len: length of the sequence at which the request ends.
        stop_ids: tokens that end the output.
        turn_len: length of the prompt of a conversation without its generation prompt; 0 if unknown.
        ids: int32, prompt and then output tokens, as far as they are known; grown in place (see `known_len`).
        num_pending: number of tokens sampled by steps in flight, whose ids are not known yet.
        last_step: number of the last step that samples for the request; -1 before the first one.
        call: the call of a program that this request is; None outside of programs.
        reads: values that the request reads; None for nothing.
        member: place of one row of a group; None for a request that samples.
        sampling_row_due: the runner's sampling tables do not hold this request's parameters yet.
    """

    __slots__ = (
        "call",
        "constraint",
        "finish",
        "ids",
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
        "turn_len",
    )  # fmt: skip

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
        grammar: Grammar | None = None,
        constraint_info: ConstraintInfo | None = None,
        call: ProgramCall | None = None,
        reads: Reads | None = None,
        member: Member | None = None,
    ) -> None:
        self.rid = envelope.rid
        self.seq = seq
        self.priority = envelope.priority
        self.namespace = envelope.cache_salt
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
        self.call = call
        self.reads = reads
        self.member = member
        self.constraint: ConstraintState | None = None
        if grammar is not None:
            # Log-probabilities of each output token are due, and a prompt before forced tokens may come from the cache
            # to its end, so that nothing would be read from it.
            jumps = sampling.structured.jump_forward and sampling.logprobs is None and reads is None
            self.constraint = ConstraintState(grammar, constraint_info, jumps)

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
        """int32 view of the tokens that may come from the cache: those before the first one that must be computed."""
        end, reads = self.known_len - 1, self.reads
        if reads is not None and not reads.is_done:
            end = min(end, reads.first)
        return self.ids[:end]

    @property
    def known_ids(self) -> Int32Array:
        """int32 view [known_len]."""
        return self.ids[: self.known_len]

    @property
    def program(self) -> Program | None:
        """The program that the request is a call of, if it is one."""
        return None if self.call is None else self.call.program

    @property
    def hint_names(self) -> tuple[str, str]:
        """Program and branch of the request's hint; empty without one."""
        hint = None if self.call is None else self.call.hint
        return ("", "") if hint is None else (hint.program, hint.branch)

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
