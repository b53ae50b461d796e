"""`ScheduleBatch`: one step as the scheduler decided it; frozen from the moment it is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.messages.runner import ForwardStep, RowWrite, SamplingRow, StepOutput
from radixrt.messages.step_shape import StepShape, step_shape
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.group_rows import PooledRow, ScoredRow
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
        scored: rows of scoring requests that the step scores, with the number of their targets, in row order.
        pooled: rows of embedding requests that the step pools, and requests whose hidden states it returns, with the
            number of their positions, in row order.
        prompt_logprobs: requests whose prompt log-probabilities come with this step, in row order.
        step: the message to the runners.
        decided_at: time at which the scheduler began to decide the step, in the caller's seconds.
        grammar_rows: indices into `sampled` of constrained requests.
    """

    step_id: int
    step: ForwardStep
    sampled: list[Req]
    prompt_logprobs: list[Req]
    requests: list[Req]
    decided_at: float
    grammar_rows: list[int] = field(default_factory=list)
    scored: list[tuple[Req, int]] = field(default_factory=list)
    pooled: list[tuple[Req, int]] = field(default_factory=list)

    @cached_property
    def shape(self) -> StepShape:
        """Amount of work of the step."""
        return step_shape(self.step)

    @property
    def num_tokens(self) -> int:
        """Number of new tokens that the step computes."""
        return len(self.step.out_cache_loc) // 4

    def values(self, output: StepOutput) -> Iterator[tuple[Req, int, bytes]]:
        """Yield (request, number of targets or positions, their values) of the requests that the step reads for."""
        at = 0
        for req, count in self.scored:
            yield req, count, output.scores[at : at + 4 * count]
            at += 4 * count
        size = len(output.hidden) // max(len(self.step.pool_spans) // 8, 1)
        at = 0
        for req, count in self.pooled:
            end = at + size * (count if req.row is None else 1)
            yield req, count, output.hidden[at:end]
            at = end


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
        prompt_logprobs=s.prompt_logprobs if req.scores_prompt and s.prompt_logprobs is not None else -1,
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
    return ScheduleBatch(step_id, step, reqs, [], reqs, now, grammar_rows)


def extend_batch(
    step_id: int, now: float, chunks: list[Chunk], decode: list[Req], slots: DecodeSlots, writes: list[RowWrite],
    shared: SharedColumns = NOTHING, *, gives_ids: bool = False,
) -> ScheduleBatch:  # fmt: skip
    """An EXTEND step: chunks in the order of `ByKind`, then decode rows with one token each, as in `decode_batch`."""
    reqs = [c.req for c in chunks] + decode
    samples = [c.is_last and c.req.row is None for c in chunks]
    sampled = [c.req for c, is_sampled in zip(chunks, samples, strict=True) if is_sampled] + decode
    scores, pooled = _Scores(chunks), _Pooled(chunks)
    scored = [i for i, c in enumerate(chunks) if c.req.scores_prompt]
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
        logprob_rows=pack_i32(scored),
        logprob_targets=pack_i32(np.concatenate([_targets(chunks[i]) for i in scored])) if scored else b"",
        score_index=scores.index,
        score_targets=scores.targets,
        pool_spans=pooled.spans,
        has_grammar=bool(grammar_rows),
        shared_segments=shared.segments,
        shared_rows=shared.rows,
        state_src=pack_i32([state.src for state in states]) + pack_i32(slots.state_src),
        state_dst=pack_i32([state.dst for state in states]) + pack_i32(slots.state_dst),
        state_cuts=_state_cuts(chunks),
    )
    return ScheduleBatch(
        step_id, step, sampled, [chunks[i].req for i in scored], reqs, now, grammar_rows, scores.rows, pooled.rows
    )  # fmt: skip


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


class _Scores:
    """Targets that the chunks of scoring requests score: columns of `ForwardStep`, and the requests they belong to."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.rows: list[tuple[Req, int]] = []
        index, targets = [], []
        first = 0  # index of the chunk's first token in the step
        for chunk in chunks:
            row = chunk.req.row
            if isinstance(row, ScoredRow):
                open_ = row.within(chunk.start, chunk.start + len(chunk.slots))
                self.rows.append((chunk.req, open_.stop - open_.start))
                index.append(row.positions[open_] + (first - chunk.start))
                targets.append(row.targets[open_])
            first += len(chunk.slots)
        self.index = pack_i32(np.concatenate(index)) if index else b""
        self.targets = pack_i32(np.concatenate(targets)) if targets else b""


class _Pooled:
    """Positions that the chunks of embedding requests pool, and those whose hidden states requests want as they are:
    column of `ForwardStep`, and their requests."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.rows: list[tuple[Req, int]] = []
        spans: list[int] = []
        first = 0  # index of the chunk's first token in the step
        for chunk in chunks:
            row = chunk.req.row
            if isinstance(row, PooledRow):
                positions = row.within(chunk.start, chunk.start + len(chunk.slots))
                if positions:
                    self.rows.append((chunk.req, len(positions)))
                    spans += [first + positions.start - chunk.start, len(positions)]
            elif wanted := chunk.req.hidden_wanted(chunk.start, chunk.start + len(chunk.slots)):
                self.rows.append((chunk.req, len(wanted)))
                for position in wanted:
                    spans += [first + position - chunk.start, 1]
            first += len(chunk.slots)
        self.spans = pack_i32(spans)


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


def _targets(chunk: Chunk) -> Int32Array:
    """The next prompt token at each position of the chunk; -1 where the prompt ends."""
    end = chunk.start + len(chunk.slots)
    following = chunk.req.ids[chunk.start + 1 : min(end + 1, chunk.req.prompt_len)]
    return np.concatenate([following, np.full(len(chunk.slots) - len(following), -1, np.int32)])
