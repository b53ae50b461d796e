"""`ScheduleBatch`: one step as the scheduler decided it; frozen from the moment it is submitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.messages.runner import ForwardStep, RowWrite, SamplingRow
from radixrt.messages.step_shape import StepShape, step_shape
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.kv_manager import DecodeSlots
from radixrt.scheduler.req import Req
from radixrt.scheduler.sharing import NOTHING, SharedColumns, SharingPlanner
from radixrt.scheduler.state_manager import StateStep

EXTEND = 1
DECODE = 2
"""Values of `radixrt.forward_batch.forward_batch.ForwardMode`, which needs torch and so cannot be imported here."""


@dataclass(frozen=True)
class Chunk:
    """Part of one request's input to compute in a step: positions [start, start + len(slots)) into `slots`.

    Attributes:
        slots: 0 for a token that is replayed.
        state: state slots that the chunk reads and writes; None if the model has no recurrent layers.
    """

    req: Req
    start: int
    slots: Int32Array
    is_last: bool
    state: StateStep | None = None

    @property
    def begins(self) -> bool:
        """True if this is the first chunk of its request, and nothing of the prompt was cached."""
        return self.start == 0

    @property
    def is_single(self) -> bool:
        """True if the chunk is one token behind others, like a decode row's."""
        return self.start > 0 and len(self.slots) == 1


@dataclass(frozen=True)
class ScheduleBatch:
    """Rows in step order: first the chunks of prompts, then the decode rows.

    Attributes:
        sampled: requests that get a token from this step, in the order of the step's sampling rows.
        step: the message to the runners.
        decided_at: time at which the scheduler began to decide the step, in the caller's seconds.
        grammar_rows: indices into `sampled` of constrained requests.
        reads: what the parts remember of the step until its answer comes; None for nothing.
    """

    step_id: int
    step: ForwardStep
    sampled: list[Req]
    requests: list[Req]
    decided_at: float
    grammar_rows: list[int] = field(default_factory=list)
    reads: Any = None

    @cached_property
    def shape(self) -> StepShape:
        """Amount of work of the step."""
        return step_shape(self.step)

    @property
    def num_tokens(self) -> int:
        """Number of new tokens that the step computes."""
        return len(self.step.out_cache_loc) // 4


def sampling_row(req: Req) -> SamplingRow:
    """The request's parameters for the runner's tables, with its history if penalties need it."""
    s = req.sampling
    held_back = s.min_tokens > 0
    return SamplingRow(
        req_pool_idx=req.kv.req_pool_idx,
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=max(s.top_k, 0),
        min_p=s.min_p,
        repetition_penalty=s.repetition_penalty,
        frequency_penalty=s.frequency_penalty,
        presence_penalty=s.presence_penalty,
        seed=req.seed,
        logit_bias=s.logit_bias,
        min_seq_len=req.prompt_len + s.min_tokens if held_back else 0,
        stop_ids=pack_i32(sorted(req.stop_ids)) if held_back else b"",
        prompt_ids=pack_i32(req.ids[: req.prompt_len]) if s.needs_penalties else b"",
        output_ids=pack_i32(req.ids[req.prompt_len : req.known_len]) if s.needs_penalties else b"",
        logprobs=-1 if s.logprobs is None else s.logprobs,
    )


def decode_batch(
    step_id: int, now: float, reqs: list[Req], slots: DecodeSlots, writes: list[RowWrite],
    shared: SharedColumns = NOTHING, *, gives_ids: bool = False,
) -> ScheduleBatch:  # fmt: skip
    """A DECODE step: one token for each row, its future token or, with gives_ids, its last one."""
    rows = [sampling_row(r) for r in reqs if r.sampling_row_due]
    grammar_rows = [i for i, r in enumerate(reqs) if r.constraint is not None]
    step = ForwardStep(
        step_id=step_id,
        mode=DECODE,
        req_pool_idx=pack_i32(slots.req_pool_idx),
        seq_lens=pack_i32(slots.seq_lens),
        out_cache_loc=pack_i32(slots.slots),
        input_ids=pack_i32(_decode_ids(reqs, gives_ids)) if gives_ids else b"",
        row_writes=writes,
        sampling_rows=rows,
        has_grammar=bool(grammar_rows),
        shared_segments=shared.segments,
        shared_rows=shared.rows,
        state_src=pack_i32(slots.state_src),
        state_dst=pack_i32(slots.state_dst),
    )
    return ScheduleBatch(step_id, step, reqs, reqs, now, grammar_rows)


def extend_batch(
    step_id: int, now: float, chunks: list[Chunk], decode: list[Req], slots: DecodeSlots, writes: list[RowWrite],
    shared: SharedColumns = NOTHING, *, gives_ids: bool = False, sections: dict[str, bytes] | None = None,
    reads: Any = None,
) -> ScheduleBatch:  # fmt: skip
    """An EXTEND step: chunks in the order of `ByKind`, then decode rows with one token each, as in `decode_batch`."""
    reqs = [c.req for c in chunks] + decode
    samples = [c.is_last and c.req.member is None for c in chunks]
    sampled = [c.req for c, is_sampled in zip(chunks, samples, strict=True) if is_sampled] + decode
    grammar_rows = [i for i, r in enumerate(sampled) if r.constraint is not None]
    ones = np.ones(len(decode), np.int32)
    states = [c.state for c in chunks if c.state is not None]
    chunk_rows = [c.req.kv.req_pool_idx for c in chunks]
    chunk_lens = [c.start + len(c.slots) for c in chunks]
    step = ForwardStep(
        step_id=step_id,
        mode=EXTEND,
        req_pool_idx=pack_i32(np.concatenate([np.array(chunk_rows, np.int32), slots.req_pool_idx])),
        seq_lens=pack_i32(np.concatenate([np.array(chunk_lens, np.int32), slots.seq_lens])),
        out_cache_loc=pack_i32(np.concatenate([*(c.slots for c in chunks), slots.slots])),
        extend_lens=pack_i32(np.concatenate([np.array([len(c.slots) for c in chunks], np.int32), ones])),
        input_ids=pack_i32(np.concatenate([*(_chunk_ids(c) for c in chunks), _decode_ids(decode, gives_ids)])),
        samples=bytes([*samples, *[1] * len(decode)]),
        row_writes=writes,
        sampling_rows=[sampling_row(r) for r in reqs if r.sampling_row_due],
        sections=sections or {},
        has_grammar=bool(grammar_rows),
        shared_segments=shared.segments,
        shared_rows=shared.rows,
        state_src=pack_i32([state.src for state in states]) + pack_i32(slots.state_src),
        state_dst=pack_i32([state.dst for state in states]) + pack_i32(slots.state_dst),
        state_cuts=_state_cuts(chunks),
    )
    return ScheduleBatch(step_id, step, sampled, reqs, now, grammar_rows, reads)


class ByKind(NamedTuple):
    """The chunks of a step in the order in which `radixrt.forward_batch.extend_parts` splits them.

    Each kind has its own attention kernel.

    Attributes:
        prompts: chunks behind earlier tokens, the longest first. Chunks without earlier tokens are among them if they
            have fewer than MIN_FRESH_TOKENS tokens together.
        fresh: chunks without earlier tokens, otherwise.
        single: chunks of one token behind earlier tokens.
    """

    prompts: list[Chunk]
    fresh: list[Chunk]
    single: list[Chunk]

    @property
    def chunks(self) -> list[Chunk]:
        return [*self.prompts, *self.fresh, *self.single]


def by_kind(chunks: list[Chunk]) -> ByKind:
    """Sort a step's chunks by kind."""
    single = [chunk for chunk in chunks if chunk.is_single]
    fresh = [chunk for chunk in chunks if chunk.begins]
    prompts = [chunk for chunk in chunks if not chunk.begins and not chunk.is_single]
    if sum(len(chunk.slots) for chunk in fresh) < MIN_FRESH_TOKENS:
        prompts, fresh = prompts + fresh, []
    return ByKind(sorted(prompts, key=lambda chunk: -len(chunk.slots)), fresh, single)


def shared_in_extend(sharing: SharingPlanner, chunks: ByKind, decode: list[Req]) -> SharedColumns:
    """The prefixes that rows of an EXTEND step share."""
    behind = [*chunks.prompts, *chunks.single]
    return sharing.extend_columns(
        [chunk.req for chunk in chunks.prompts], [len(chunk.slots) for chunk in chunks.prompts],
        [chunk.req for chunk in chunks.single] + decode, len(chunks.prompts) + len(chunks.fresh),
        {chunk.req: chunk.start for chunk in behind if chunk.start < chunk.req.kv.protected_len},
    )  # fmt: skip


def _state_cuts(chunks: list[Chunk]) -> bytes:
    """Column of `ForwardStep`: the states that chunks leave inside."""
    cuts = [
        number
        for row, chunk in enumerate(chunks)
        for cut in (chunk.state.cuts if chunk.state is not None else ())
        for number in (row, cut.length - chunk.start, cut.slot)
    ]
    return pack_i32(cuts)


def _chunk_ids(chunk: Chunk) -> Int32Array:
    return chunk.req.ids[chunk.start : chunk.start + len(chunk.slots)]


def _decode_ids(reqs: list[Req], gives_ids: bool) -> Int32Array:
    """Input ids of decode rows: -1 for future tokens, else the last known tokens, behind which nothing is in flight."""
    return np.array([req.ids[req.known_len - 1] if gives_ids else -1 for req in reqs], np.int32)
