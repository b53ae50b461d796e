"""`ScheduleBatch`: one step as the scheduler has decided it, with the message to the runner; frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.messages.runner import ForwardStep, RowWrite, SamplingRow
from radixrt.messages.step_shape import StepShape, step_shape
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.sampling_params import DrawParams
from radixrt.scheduler.kv_manager import DecodeRows
from radixrt.scheduler.part import Part, Parts
from radixrt.scheduler.req import Req

EXTEND = 1
DECODE = 2
"""Values of `radixrt.forward_batch.forward_batch.ForwardMode`. That module imports torch, the scheduler does not."""


@dataclass(frozen=True)
class Chunk:
    """Input tokens of one request to compute in a step: positions [start, start + len(slots)).

    Attributes:
        slots: int32[n], slots for the tokens' keys and values; 0 for a token whose keys and values the row already has.
        is_last: the chunk ends with the last known token of the request.
        states: see `radixrt.scheduler.kv_manager.ChunkSlots`.
    """

    req: Req
    start: int
    slots: Int32Array
    is_last: bool
    states: Any = None

    @property
    def begins(self) -> bool:
        """True if this is the first chunk of its request, and nothing of the prompt was cached."""
        return self.start == 0

    @property
    def samples(self) -> bool:
        """True if a token is sampled after the chunk."""
        return self.is_last and self.req.member is None

    @property
    def is_single(self) -> bool:
        """True if the chunk is one token behind earlier tokens, as in a decode row."""
        return self.start > 0 and len(self.slots) == 1


class ByKind(NamedTuple):
    """The chunks of a step in the order in which `radixrt.forward_batch.extend_parts` splits them.

    Each kind has its own attention kernel. A step without chunks has three empty lists (`NO_CHUNKS`).

    Attributes:
        prompts: chunks of several tokens behind earlier tokens, the longest first.
        fresh: chunks without earlier tokens. If these chunks have fewer than MIN_FRESH_TOKENS tokens together, they are
            in `prompts` instead.
        single: chunks of one token behind earlier tokens.
    """

    prompts: list[Chunk]
    fresh: list[Chunk]
    single: list[Chunk]

    @property
    def chunks(self) -> list[Chunk]:
        """All chunks in this order, which is the order of their rows."""
        return [*self.prompts, *self.fresh, *self.single]


NO_CHUNKS = ByKind([], [], [])


@dataclass(frozen=True)
class ScheduleBatch:
    """Rows in step order: first the chunks of prompts, then the decode rows.

    Attributes:
        sampled: requests that get a token from this step, in the order of the step's sampling rows.
        step: the message to the runners.
        decided_at: time at which the scheduler began to decide the step, in the caller's seconds.
        masked_rows: indices into `sampled` of requests with a taker (`Req.taker`); each gets a mask of allowed tokens.
        kept: (part, `Section.kept`) of the parts that read the step's answer.
        added_s: predicted seconds of the parts' work, besides that on tokens.
    """

    step_id: int
    step: ForwardStep
    sampled: list[Req]
    requests: list[Req]
    decided_at: float
    masked_rows: list[int] = field(default_factory=list)
    kept: Sequence[tuple[Part, Any]] = ()
    added_s: float = 0.0

    @cached_property
    def shape(self) -> StepShape:
        """Amount of work of the step."""
        return step_shape(self.step)

    @property
    def num_tokens(self) -> int:
        """Number of new tokens that the step computes."""
        return len(self.step.out_cache_loc) // 4


def sampling_row(req: Req) -> SamplingRow:
    """Return a request's parameters for the runner's sampling tables, with the tokens that penalties are counted from.

    Stop tokens are sent only while `min_tokens` forbids them.
    """
    s = req.sampling
    held_back = s.min_tokens > 0
    return SamplingRow(
        req_pool_idx=req.kv.req_pool_idx,
        draw=msgspec.convert(s, DrawParams, from_attributes=True),
        seed=req.seed,
        logit_bias=s.logit_bias,
        min_seq_len=req.prompt_len + s.min_tokens if held_back else 0,
        stop_ids=pack_i32(sorted(req.stop_ids)) if held_back else b"",
        prompt_ids=pack_i32(req.tokens(0, req.prompt_len)) if s.needs_penalties else b"",
        output_ids=pack_i32(req.ids[req.prompt_len : req.known_len]) if s.needs_penalties else b"",
        logprobs=-1 if s.logprobs is None else s.logprobs,
    )


def make_batch(
    step_id: int,
    now: float,
    kinds: ByKind,
    decode: DecodeRows,
    writes: list[RowWrite],
    parts: Parts,
    *,
    gives_ids: bool,
) -> ScheduleBatch:
    """Create the step of these rows, with the sections of the parts.

    Args:
        writes: changes of rows other than the step's own slots.
        gives_ids: put the last token of each decode row into the step; otherwise the runner takes the token from the
            previous step, which may not have been answered yet.
    """
    # Columns of all rows. A step without chunks has shorter columns, and captured graphs can compute it.
    chunks = kinds.chunks
    if chunks:
        columns = _extend_columns(chunks, decode, gives_ids=gives_ids)
        requests = [chunk.req for chunk in chunks] + decode.requests
        sampled = [chunk.req for chunk in chunks if chunk.samples] + decode.requests
    else:
        columns = _decode_columns(decode, gives_ids=gives_ids)
        requests = sampled = decode.requests
    # Masks are sent behind the step, once the tokens that they depend on are known; the step only announces them.
    masked = [i for i, req in enumerate(sampled) if req.taker is not None]
    # Each part encodes its input for its own end in the runner. A plain decode step has no section.
    asked = parts.sections if chunks else parts.decode_sections
    found = [(part, section) for part in asked if (section := part.section(kinds, decode)) is not None]
    step = ForwardStep(
        step_id=step_id,
        **columns,
        row_writes=writes,
        sampling_rows=[sampling_row(req) for req in requests if req.sampling_row_due],
        has_mask=bool(masked),
        sections={part.name: section.data for part, section in found},
    )
    kept = [(part, section.kept) for part, section in found if section.kept is not None]
    added_s = sum(section.seconds for _, section in found)
    return ScheduleBatch(step_id, step, sampled, requests, now, masked, kept, added_s)


def _decode_columns(decode: DecodeRows, *, gives_ids: bool) -> dict[str, Any]:
    """Return the columns of a DECODE step: one token for each row."""
    return {
        "mode": DECODE,
        "req_pool_idx": pack_i32(decode.req_pool_idx),
        "seq_lens": pack_i32(decode.seq_lens),
        "out_cache_loc": pack_i32(decode.slots),
        "input_ids": pack_i32(_decode_ids(decode.requests, gives_ids)) if gives_ids else b"",
    }


def _extend_columns(chunks: list[Chunk], decode: DecodeRows, *, gives_ids: bool) -> dict[str, Any]:
    """Return the columns of an EXTEND step: chunks in the order of `ByKind`, then decode rows with one token each."""
    samples = [chunk.samples for chunk in chunks]
    ones = np.ones(len(decode.requests), np.int32)
    chunk_rows = [chunk.req.kv.req_pool_idx for chunk in chunks]
    chunk_lens = [chunk.start + len(chunk.slots) for chunk in chunks]
    return {
        "mode": EXTEND,
        "req_pool_idx": pack_i32(np.concatenate([np.array(chunk_rows, np.int32), decode.req_pool_idx])),
        "seq_lens": pack_i32(np.concatenate([np.array(chunk_lens, np.int32), decode.seq_lens])),
        "out_cache_loc": pack_i32(np.concatenate([*(chunk.slots for chunk in chunks), decode.slots])),
        "extend_lens": pack_i32(np.concatenate([np.array([len(chunk.slots) for chunk in chunks], np.int32), ones])),
        "input_ids": pack_i32(
            np.concatenate([*(_chunk_ids(chunk) for chunk in chunks), _decode_ids(decode.requests, gives_ids)])
        ),
        "samples": bytes([*samples, *[1] * len(decode.requests)]),
    }


def by_kind(chunks: list[Chunk]) -> ByKind:
    """Split a step's chunks by kind, into the order of their rows."""
    single = [chunk for chunk in chunks if chunk.is_single]
    fresh = [chunk for chunk in chunks if chunk.begins]
    prompts = [chunk for chunk in chunks if not chunk.begins and not chunk.is_single]
    if sum(len(chunk.slots) for chunk in fresh) < MIN_FRESH_TOKENS:
        prompts, fresh = prompts + fresh, []
    return ByKind(sorted(prompts, key=lambda chunk: -len(chunk.slots)), fresh, single)


def _chunk_ids(chunk: Chunk) -> Int32Array:
    return chunk.req.tokens(chunk.start, chunk.start + len(chunk.slots))


def _decode_ids(reqs: list[Req], gives_ids: bool) -> Int32Array:
    """Return the input ids of decode rows: the last known tokens, or -1 for tokens that the device still holds."""
    return np.array([req.ids[req.known_len - 1] if gives_ids else -1 for req in reqs], np.int32)
