"""`ForwardBatch`: the tensors of one step, frozen. `radixrt.forward_batch.batch_builder` creates it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.state_rows import StateRows
from radixrt.messages.runner import ForwardStep
from radixrt.messages.sections import SHARING, SharedSection, decode
from radixrt.messages.wire import I32, Int32Array, unpack_i32


class ForwardMode(enum.IntEnum):
    """Kind of a step. A decode row may ride in an EXTEND step as one new token, so there is no mixed mode."""

    EXTEND = 1
    DECODE = 2
    IDLE = 3


START, LENGTH, FIRST, COUNT = range(4)
"""Columns of `SharedGroups.segments`."""


@dataclass(frozen=True)
class SharedGroups:
    """Groups of a step's rows that share positions; attention backends may read the keys and values of each group once.

    Positions [start, start + length) hold the same slots for rows[first : first + count], two or more rows: a group.
    The groups of one row are disjoint in positions and together cover a prefix of its sequence, without its new tokens.
    Groups nest, and `rows` are in depth-first order: the rows of two groups are disjoint, or the rows of the group that
    begins at the later position are a subset of the other's. In an EXTEND step the rows of a group have either several
    new tokens each, or one each.

    Attributes:
        segments: int32 [G, 4], start, length, first, count; a group comes after the groups that contain its rows.
        rows: int32 [N], indices of the step's rows.
    """

    segments: Int32Array
    rows: Int32Array

    @staticmethod
    def of(step: ForwardStep) -> SharedGroups | None:
        """Return the groups of a step; None if its rows share nothing."""
        section = decode(step.sections, SHARING, SharedSection)
        if section is None:
            return None
        return SharedGroups(unpack_i32(section.segments).reshape(-1, 4), unpack_i32(section.rows))

    def between(self, first: int, end: int) -> SharedGroups | None:
        """Return the groups of the step's rows [first, end), numbered from 0; None if there are none.

        The caller's range must not divide a group.
        """
        kept = (self.rows >= first) & (self.rows < end)
        return self if first == 0 and kept.all() else self._select(kept, self.rows - first)

    def among(self, chosen: npt.NDArray[np.bool_]) -> SharedGroups | None:
        """Return the groups of the chosen rows, renumbered; None if a group contains a row that is not chosen.

        Args:
            chosen: bool [B], the chosen rows.
        """
        if (self.ends(len(chosen)) > 0)[~chosen].any():
            return None
        return self._select(chosen[self.rows], np.cumsum(chosen, dtype=I32)[self.rows] - 1)

    def _select(self, kept: npt.NDArray[np.bool_], numbers: Int32Array) -> SharedGroups | None:
        """Return the groups of the entries of `rows` that are kept (bool [N]), with new row numbers (int32 [N])."""
        segments = self.segments[kept[self.segments[:, FIRST]]]
        if not len(segments):
            return None
        segments[:, FIRST] = (np.cumsum(kept, dtype=I32) - 1)[segments[:, FIRST]]
        return SharedGroups(segments, numbers[kept])

    def ends(self, num_rows: int) -> Int32Array:
        """Return int32 [num_rows], the length of each row's prefix that groups cover; 0 for rows in no group."""
        start, length, first, count = self.segments.T
        before = np.cumsum(count) - count
        members = self.rows[np.arange(count.sum()) + np.repeat(first - before, count)]
        ends = np.zeros(num_rows, I32)
        np.maximum.at(ends, members, np.repeat(start + length, count))
        return ends


@dataclass(frozen=True)
class StepInputs:
    """Inputs of a step besides tokens. Index tensors are int64 on the runner's device.

    Attributes:
        places: [m], ascending indices of the new tokens whose embeddings `rows` replace.
        source: [m], their rows of `pool`.
        pool: [n, hidden * (1 + k)]; the rows may be written until the step's layers run. None on a pipeline stage
            behind the first.
        hidden: size of the hidden states.
        positions: [3, T], rotary positions on three axes; None if a token has one position, that of the batch.
    """

    places: torch.Tensor
    source: torch.Tensor
    pool: torch.Tensor | None
    hidden: int
    positions: torch.Tensor | None = None

    @cached_property
    def _read(self) -> tuple[torch.Tensor, ...]:
        assert self.pool is not None, "the first stage has the inputs"
        return torch.split(self.pool[self.source], self.hidden, dim=1)

    @property
    def rows(self) -> torch.Tensor:
        """[m, hidden], read from the pool at the first use."""
        return self._read[0]

    @property
    def added(self) -> tuple[torch.Tensor, ...]:
        """For each of the first k layers, [m, hidden]: added to the hidden states of `places` after the layer."""
        return self._read[1:]


@dataclass(frozen=True)
class ForwardBatch:
    """B rows and T new tokens (T == B in DECODE). Index tensors are int64 on the runner's device.

    Attributes:
        input_ids: [T].
        positions: [T], rotary position of each new token: its position in its sequence, plus the offset of a row with
            images.
        req_pool_indices: [B], row of each sequence in req_to_token.
        seq_lens: [B], length of each sequence including its new tokens.
        out_cache_loc: [T], slots for the new keys and values.
        logits_index: [P], indices of the T tokens whose logits are needed; in a narrowed step, of the tokens whose
            hidden states are needed (`wanted_tokens`). Entries after them are padding and name the first token.
        sample_rows: [S], the req_pool_idx of the rows that sample.
        req_to_token: int32 [max_requests + 1, max_context_len], the runner's mirror, current for this step.
        seq_lens_cpu, extend_lens_cpu, req_pool_indices_cpu: int32 [B] on the host, for planning: lengths, new tokens of
            each row (all 1 in DECODE) and rows of req_to_token.
        shared: groups of rows whose common prefix should be computed once; None if there are none.
        narrowed: DECODE batch for the last layer, which computes only keys and values of this batch's tokens. The rows
            are the rows that sample or whose last token is read, in the order of logits_index, and then padding rows of
            one token in row 0 and slot 0. Each query is the last position of its row, whose keys and values are stored
            with this batch. None if hidden states of further tokens are needed.
        states: slots of recurrent states for the rows of the batch, divided where rows leave states; None for a model
            without recurrent layers, and in a narrowed batch.
        sample_index: [S or more, then padding], entries of logits_index that sample; None if all entries sample.
        wanted_tokens: int32 on the host, ascending, tokens of the rows of `narrowed`; None without `narrowed`.
        inputs: inputs besides tokens; None for a step of tokens alone.
    """

    mode: ForwardMode
    input_ids: torch.Tensor
    positions: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    logits_index: torch.Tensor
    sample_rows: torch.Tensor
    req_to_token: torch.Tensor
    seq_lens_cpu: Int32Array
    extend_lens_cpu: Int32Array
    req_pool_indices_cpu: Int32Array
    shared: SharedGroups | None = None
    narrowed: ForwardBatch | None = None
    states: StateRows | None = None
    sample_index: torch.Tensor | None = None
    wanted_tokens: Int32Array | None = None
    inputs: StepInputs | None = None

    @staticmethod
    def of_decode_rows(
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        out_cache_loc: torch.Tensor,
        logits_index: torch.Tensor,
        req_to_token: torch.Tensor,
        *,
        seq_lens_cpu: Int32Array,
        req_pool_indices_cpu: Int32Array,
        sample_rows: torch.Tensor | None = None,
        shared: SharedGroups | None = None,
        states: StateRows | None = None,
    ) -> ForwardBatch:
        """Create a DECODE batch from columns of B numbers each; every row samples unless `sample_rows` is given."""
        return ForwardBatch(
            ForwardMode.DECODE,
            input_ids,
            positions,
            req_pool_indices,
            seq_lens,
            out_cache_loc,
            logits_index,
            req_pool_indices if sample_rows is None else sample_rows,
            req_to_token,
            seq_lens_cpu,
            np.ones_like(seq_lens_cpu),
            req_pool_indices_cpu,
            shared,
            states=states,
        )

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def max_seq_len(self) -> int:
        return int(np.max(self.seq_lens_cpu))

    @property
    def attended(self) -> tuple[ForwardBatch, ...]:
        """Batches for which attention is planned in this step: this batch and, if it has rows, the narrowed batch."""
        return (self,) if self.narrowed is None or not self.narrowed.num_tokens else (self, self.narrowed)
