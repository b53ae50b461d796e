"""`TokenRows`: form of a step for captured decode steps, with a row for each new token."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from radixrt.forward_batch.forward_batch import COUNT, FIRST, ForwardMode, SharedGroups
from radixrt.messages.runner import ForwardStep
from radixrt.messages.sections import MEDIA, READS, STATES, StateSection, decode
from radixrt.messages.wire import I32, Int32Array, unpack_i32

_ROWS = {STATES, MEDIA}
"""Sections with inputs for each row or token of an EXTEND step."""


@dataclass(frozen=True)
class TokenRows:
    """T rows with one new token each. The S rows that sample come first, in the order of the step's sampling rows.

    A layer stores the keys and values of all rows before any row attends. So several tokens of a sequence can be
    separate rows, each of which attends to all positions up to its own.

    Attributes:
        req_pool_idx: int32 [T], row of req_to_token of each token's sequence.
        seq_lens: int32 [T], number of positions that each token attends to, its own position included.
        slots: int32 [T], slots for the new keys and values.
        given: int32 [T], token ids; -1 stands for the future token of the sequence. None if all are future tokens.
        num_samples: S.
        order: int [T], index of each row's token in the step; None if the rows are in the step's order.
        shared: groups of rows whose common prefix should be computed once; None without such groups.
        reread: number of repeated reads of a position by several tokens of the same sequence; the first read of each
            position is not counted.
        state_src, state_dst: int32 [T], slots of recurrent states in a DECODE step; empty for a model without recurrent
            layers. Several tokens of a sequence update its state in turn, so they cannot be separate rows.
    """

    req_pool_idx: Int32Array
    seq_lens: Int32Array
    slots: Int32Array
    given: Int32Array | None
    num_samples: int
    shared: SharedGroups | None
    reread: int = 0
    state_src: Int32Array = field(default_factory=lambda: np.zeros(0, I32))
    state_dst: Int32Array = field(default_factory=lambda: np.zeros(0, I32))
    order: npt.NDArray[np.integer] | None = None

    @staticmethod
    def of(step: ForwardStep) -> TokenRows | None:
        """Return the rows of a step. Steps that read values, steps without sampling rows, and EXTEND steps of a model
        with recurrent layers or with a section for images return None."""
        if step.sections and (
            READS in step.sections or (step.mode != ForwardMode.DECODE and _ROWS & step.sections.keys())
        ):
            return None
        req_pool_idx, seq_lens = unpack_i32(step.req_pool_idx), unpack_i32(step.seq_lens)
        slots = unpack_i32(step.out_cache_loc)
        shared = SharedGroups.of(step)
        if step.mode == ForwardMode.DECODE:
            section = decode(step.sections, STATES, StateSection)
            states = () if section is None else (unpack_i32(section.src), unpack_i32(section.dst))
            ids = unpack_i32(step.input_ids) if step.input_ids else None
            return TokenRows(req_pool_idx, seq_lens, slots, ids, len(slots), shared, 0, *states)
        sampled = np.frombuffer(step.samples, np.uint8).astype(bool)
        if not sampled.any():
            return None
        if len(slots) == len(req_pool_idx) and sampled.all():  # decode rows, some of whose tokens were forced
            given = unpack_i32(step.input_ids)
            return TokenRows(req_pool_idx, seq_lens, slots, given, len(slots), shared)
        # Rows that sample come first, so that the graph's logits are the first rows of its hidden states.
        extend_lens = unpack_i32(step.extend_lens)
        ends = np.cumsum(extend_lens, dtype=I32)
        last = (ends - 1)[sampled]
        rest = np.ones(len(slots), bool)
        rest[last] = False
        order = np.concatenate([last, np.flatnonzero(rest)])
        attended = np.arange(1, len(slots) + 1, dtype=I32) + np.repeat(seq_lens - ends, extend_lens)
        return TokenRows(
            np.repeat(req_pool_idx, extend_lens)[order],
            attended[order],
            slots[order],
            unpack_i32(step.input_ids)[order],
            len(last),
            None if shared is None else _of_tokens(shared, extend_lens, ends, order),
            int(attended.sum()) - int(seq_lens.sum()),
            order=order,
        )


def _of_tokens(shared: SharedGroups, extend_lens: Int32Array, ends: Int32Array, order: Int32Array) -> SharedGroups:
    """Return the groups of token rows: each row of a group is replaced by the rows of its tokens.

    Args:
        extend_lens: int32 [B], number of new tokens of each row.
        ends: int32 [B], cumulative sums of `extend_lens`.
        order: int [T], index of each token row's token in the step.
    """
    number = np.empty(len(order), I32)
    number[order] = np.arange(len(order), dtype=I32)
    counts = extend_lens[shared.rows]
    before = np.concatenate([[0], np.cumsum(counts)]).astype(I32)
    tokens = np.arange(before[-1], dtype=I32) + np.repeat((ends - extend_lens)[shared.rows] - before[:-1], counts)
    segments = shared.segments.copy()
    first, count = shared.segments[:, FIRST], shared.segments[:, COUNT]
    segments[:, FIRST] = before[first]
    segments[:, COUNT] = before[first + count] - before[first]
    return SharedGroups(segments, number[tokens])
