"""`Req`: one request inside the scheduler, which alone reads and writes it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from radixrt.constrained.grammar import Grammar
from radixrt.messages.parts import ConstraintInfo, Finish
from radixrt.messages.scheduler import TokenizedReq
from radixrt.messages.wire import Int32Array
from radixrt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixrt.scheduler.programs import Program


class RowScores:
    """What one row of a scoring request has still to score, and what it has; see `messages.ScoreRow`.

    Attributes:
        rid: of the scoring request.
        shared_len: leading tokens that an earlier row of the same request has too.
        positions, targets: int32[q].
    """

    __slots__ = ("_answered", "_values", "positions", "rid", "shared_len", "targets")

    def __init__(self, rid: str, positions: Int32Array, targets: Int32Array, shared_len: int) -> None:
        self.rid = rid
        self.positions = positions
        self.targets = targets
        self.shared_len = shared_len
        self._answered = 0
        self._values: list[bytes] = []

    @property
    def first_open(self) -> int:
        """Position of the first target without an answer. Read only while there is one."""
        return int(self.positions[self._answered])

    @property
    def is_done(self) -> bool:
        return self._answered == len(self.positions)

    def within(self, start: int, end: int) -> slice:
        """The targets without an answer at positions [start, end)."""
        first, last = np.searchsorted(self.positions, [start, end])
        return slice(max(int(first), self._answered), max(int(last), self._answered))

    def take(self, values: bytes) -> None:
        """The next answers, float32 column."""
        self._values.append(values)
        self._answered += len(values) // 4

    def all_values(self) -> bytes:
        return b"".join(self._values)


class ReqState(enum.Enum):
    """Where a request stands. WAITING holds no row and no slot; PREFILL and RUNNING hold a row; FINISHED nothing."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    FINISHED = "finished"


class Req:
    """One request.

    Attributes:
        ids: int32, prompt and then output tokens, as far as they are known; grown in place (see `known_len`).
        num_pending: tokens sampled by steps that are in flight: their number is known, their ids are not yet.
        kv_len: positions [0, kv_len) have, or will have once the steps in flight have run, keys and values in the slots
            row[:kv_len] of req_to_token.
        protected_len: row[:protected_len] are slots of the radix tree, locked through `last_node`; the slots in
            row[protected_len:kv_len] are private to this request.
        cached_tokens: prompt tokens found in the cache when first admitted; -1 before that.
        stale_samples: of the steps in flight, the oldest so many samples of this request are to be ignored: what came
            after them was decided without sampling.
        hint: where it stands in its program; `program` is what the scheduler knows of that, None where hints are of no
            use or there is none.
        lease_len: leading tokens to be leased for the program's fork once they are in the tree; 0 for none, or done.
        row: what this request scores, as one row of a scoring request; None for one that generates.
        jumps: forced continuations of its grammar are appended without sampling (jump-forward).
        forced_tokens, closing_tokens: output tokens that were not sampled: those that the grammar left no choice about,
            and those that ended the output early.
        sampling_row_due: the runner's sampling tables do not hold this request's parameters yet.
    """

    __slots__ = (
        "admitted_at",
        "arrived_at",
        "cached_tokens",
        "closing_tokens",
        "constraint_info",
        "deadline",
        "finish",
        "first_token_at",
        "forced_tokens",
        "grammar",
        "hint",
        "ids",
        "jumps",
        "known_len",
        "kv_len",
        "last_node",
        "last_token_at",
        "lease_len",
        "max_len",
        "namespace",
        "num_pending",
        "priority",
        "program",
        "prompt_len",
        "protected_len",
        "req_pool_idx",
        "retractions",
        "rid",
        "row",
        "sampling",
        "sampling_row_due",
        "seed",
        "seq",
        "stale_samples",
        "state",
        "stop_ids",
    )  # fmt: skip

    def __init__(
        self, message: TokenizedReq, ids: Int32Array, *, seq: int, seed: int, eos_ids: frozenset[int], max_len: int,
        now: float, timeout_s: float, grammar: Grammar | None, constraint_info: ConstraintInfo | None = None,
        row: RowScores | None = None,
    ) -> None:  # fmt: skip
        self.rid = message.rid
        self.sampling: SamplingParams = message.sampling
        self.prompt_len = len(ids)
        self.known_len = len(ids)
        self.ids: Int32Array = np.empty(len(ids) + 64, np.int32)
        self.ids[: len(ids)] = ids
        self.num_pending = 0
        self.kv_len = 0
        self.req_pool_idx = 0
        self.last_node: Any = None
        self.protected_len = 0
        self.namespace = message.cache_salt
        self.priority = message.priority
        self.seq = seq
        self.seed = seed
        self.deadline = now + timeout_s
        self.state = ReqState.WAITING
        self.finish: Finish | None = None
        self.grammar = grammar
        self.row = row
        self.hint = message.program
        self.program: Program | None = None
        self.lease_len = 0
        self.constraint_info = constraint_info
        self.stale_samples = 0
        self.forced_tokens = 0
        self.closing_tokens = 0
        scored = self.sampling.logprobs is not None or self.sampling.prompt_logprobs is not None
        self.jumps = grammar is not None and self.sampling.structured.jump_forward and not scored
        self.cached_tokens = -1
        self.sampling_row_due = row is None
        stop = frozenset(self.sampling.stop_token_ids)
        self.stop_ids = stop if self.sampling.ignore_eos else stop | eos_ids
        most = self.sampling.max_tokens
        self.max_len = max_len if most is None else min(max_len, self.prompt_len + most)
        self.arrived_at = now
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = now
        self.retractions = 0

    @property
    def seq_len(self) -> int:
        """Length of the sequence with the tokens that are still in flight."""
        return self.known_len + self.num_pending

    @property
    def num_output(self) -> int:
        return self.known_len - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens that may still be sampled by steps not yet submitted."""
        return self.max_len - self.seq_len

    @property
    def computes_whole_prompt(self) -> bool:
        """Log-probabilities of the prompt need its logits, so no part of it may come from the cache."""
        return self.sampling.prompt_logprobs is not None and self.num_output == 0

    @property
    def reusable_ids(self) -> Int32Array:
        """int32 view of the tokens that may come from the cache: those before the first whose own logits are wanted."""
        if self.row is not None:
            return self.ids[: self.row.first_open]
        return self.ids[: 0 if self.computes_whole_prompt else self.known_len - 1]

    @property
    def known_ids(self) -> Int32Array:
        """int32 view [known_len]."""
        return self.ids[: self.known_len]

    def take_back(self) -> None:
        """Drop the last output token."""
        self.known_len -= 1

    def append(self, token: int) -> None:
        if self.known_len == len(self.ids):
            grown = np.empty(2 * len(self.ids), np.int32)
            grown[: self.known_len] = self.ids
            self.ids = grown
        self.ids[self.known_len] = token
        self.known_len += 1
