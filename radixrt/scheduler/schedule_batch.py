"""`ScheduleBatch`: one step as the scheduler decided it; frozen from the moment it is submitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.messages.runner import ForwardStep, RowWrite, SamplingRow
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.req import Req
from radixrt.scheduler.sharing import NOTHING, SharedColumns, SharingPlanner

EXTEND = 1
DECODE = 2
"""Values of `radixrt.forward_batch.forward_batch.ForwardMode`, which needs torch and so cannot be imported here."""


@dataclass(frozen=True)
class Chunk:
    """Part of one request's input to compute in a step: positions [start, start + len(slots)) into `slots`."""

    req: Req
    start: int
    slots: Int32Array
    is_last: bool

    @property
    def begins(self) -> bool:
        """It is its request's first, and nothing of the prompt was cached."""
        return self.start == 0

    @property
    def is_single(self) -> bool:
        """One token behind others, like a decode row's."""
        return self.start > 0 and len(self.slots) == 1


@dataclass(frozen=True)
class ScheduleBatch:
    """Rows in step order: first the chunks of prompts, then the decode rows.

    Attributes:
        sampled: requests that get a token from this step, in the order of the step's sampling rows.
        scored: rows of scoring requests that the step scores, with the number of their targets, in row order.
        prompt_logprobs: requests whose prompt log-probabilities come with this step, in row order.
        step: what the runners are sent.
        grammar_rows: indices into `sampled` of constrained requests.
    """

    step_id: int
    step: ForwardStep
    sampled: list[Req]
    prompt_logprobs: list[Req]
    requests: list[Req]
    grammar_rows: list[int] = field(default_factory=list)
    scored: list[tuple[Req, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """New tokens that the step computes."""
        return len(self.step.out_cache_loc) // 4


def sampling_row(req: Req) -> SamplingRow:
    """The request's parameters for the runner's tables, with its history if penalties need it."""
    s = req.sampling
    held_back = s.min_tokens > 0
    return SamplingRow(
        req_pool_idx=req.req_pool_idx,
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
        prompt_logprobs=s.prompt_logprobs if req.computes_whole_prompt and s.prompt_logprobs is not None else -1,
    )


def decode_batch(
    step_id: int, reqs: list[Req], idx: Int32Array, slots: Int32Array, writes: list[RowWrite],
    shared: SharedColumns = NOTHING,
) -> ScheduleBatch:  # fmt: skip
    """A DECODE step: one future token for each row. The requests' kv_len already counts the new slot."""
    rows = [sampling_row(r) for r in reqs if r.sampling_row_due]
    grammar_rows = [i for i, r in enumerate(reqs) if r.grammar is not None]
    step = ForwardStep(
        step_id=step_id,
        mode=DECODE,
        req_pool_idx=pack_i32(idx),
        seq_lens=pack_i32([r.kv_len for r in reqs]),
        out_cache_loc=pack_i32(slots),
        row_writes=writes,
        sampling_rows=rows,
        has_grammar=bool(grammar_rows),
        shared_segments=shared.segments,
        shared_rows=shared.rows,
    )
    return ScheduleBatch(step_id, step, reqs, [], reqs, grammar_rows)


def extend_batch(
    step_id: int, chunks: list[Chunk], decode: list[Req], decode_slots: Int32Array, writes: list[RowWrite],
    shared: SharedColumns = NOTHING,
) -> ScheduleBatch:  # fmt: skip
    """An EXTEND step: chunks in the order of `ByKind`, and the decode rows riding along as one future token each."""
    reqs = [c.req for c in chunks] + decode
    samples = [c.is_last and c.req.row is None for c in chunks]
    sampled = [c.req for c, is_sampled in zip(chunks, samples, strict=True) if is_sampled] + decode
    scores = _Scores(chunks)
    scored = [i for i, c in enumerate(chunks) if c.req.computes_whole_prompt]
    grammar_rows = [i for i, r in enumerate(sampled) if r.grammar is not None]
    ones = np.ones(len(decode), np.int32)
    step = ForwardStep(
        step_id=step_id,
        mode=EXTEND,
        req_pool_idx=pack_i32([r.req_pool_idx for r in reqs]),
        seq_lens=pack_i32([c.start + len(c.slots) for c in chunks] + [r.kv_len for r in decode]),
        out_cache_loc=pack_i32(np.concatenate([*(c.slots for c in chunks), decode_slots])),
        extend_lens=pack_i32(np.concatenate([np.array([len(c.slots) for c in chunks], np.int32), ones])),
        input_ids=pack_i32(np.concatenate([*(_chunk_ids(c) for c in chunks), -ones])),
        samples=bytes([*samples, *[1] * len(decode)]),
        row_writes=writes,
        sampling_rows=[sampling_row(r) for r in reqs if r.sampling_row_due],
        logprob_rows=pack_i32(scored),
        logprob_targets=pack_i32(np.concatenate([_targets(chunks[i]) for i in scored])) if scored else b"",
        score_index=scores.index,
        score_targets=scores.targets,
        has_grammar=bool(grammar_rows),
        shared_segments=shared.segments,
        shared_rows=shared.rows,
    )
    return ScheduleBatch(step_id, step, sampled, [chunks[i].req for i in scored], reqs, grammar_rows, scores.rows)


class ByKind(NamedTuple):
    """The chunks of a step in the order that `radixrt.forward_batch.extend_parts` cuts: each kind has its kernel.

    Attributes:
        prompts: those that go on, the ones with many tokens before the ones with few; and among them, if they have few
            tokens together, those that begin, which share their kernels then.
        fresh: those that begin, else.
        single: one token each.
    """

    prompts: list[Chunk]
    fresh: list[Chunk]
    single: list[Chunk]

    @property
    def chunks(self) -> list[Chunk]:
        return [*self.prompts, *self.fresh, *self.single]


def by_kind(chunks: list[Chunk]) -> ByKind:
    """Put a step's chunks in order."""
    single = [chunk for chunk in chunks if chunk.is_single]
    fresh = [chunk for chunk in chunks if chunk.begins]
    prompts = [chunk for chunk in chunks if not chunk.begins and not chunk.is_single]
    if sum(len(chunk.slots) for chunk in fresh) < MIN_FRESH_TOKENS:
        prompts, fresh = prompts + fresh, []
    return ByKind(sorted(prompts, key=lambda chunk: -len(chunk.slots)), fresh, single)


def shared_in_extend(sharing: SharingPlanner, chunks: ByKind, decode: list[Req]) -> SharedColumns:
    """What the rows of an EXTEND step share."""
    return sharing.extend_columns(
        [chunk.req for chunk in chunks.prompts], [len(chunk.slots) for chunk in chunks.prompts],
        [chunk.req for chunk in chunks.single] + decode, len(chunks.prompts) + len(chunks.fresh),
    )  # fmt: skip


class _Scores:
    """What the chunks of scoring requests score: columns of `ForwardStep`, and whose they are."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.rows: list[tuple[Req, int]] = []
        index, targets = [], []
        first = 0  # of the chunk's tokens among the step's
        for chunk in chunks:
            row = chunk.req.row
            if row is not None:
                open_ = row.within(chunk.start, chunk.start + len(chunk.slots))
                self.rows.append((chunk.req, open_.stop - open_.start))
                index.append(row.positions[open_] + (first - chunk.start))
                targets.append(row.targets[open_])
            first += len(chunk.slots)
        self.index = pack_i32(np.concatenate(index)) if index else b""
        self.targets = pack_i32(np.concatenate(targets)) if targets else b""


def _chunk_ids(chunk: Chunk) -> Int32Array:
    return chunk.req.ids[chunk.start : chunk.start + len(chunk.slots)]


def _targets(chunk: Chunk) -> Int32Array:
    """The next prompt token at each position of the chunk; -1 where the prompt ends."""
    end = chunk.start + len(chunk.slots)
    following = chunk.req.ids[chunk.start + 1 : min(end + 1, chunk.req.prompt_len)]
    return np.concatenate([following, np.full(len(chunk.slots) - len(following), -1, np.int32)])
