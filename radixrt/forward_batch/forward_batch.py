"""`ForwardBatch`: the tensors of one step, made once from a `ForwardStep` by the ModelRunner, then frozen."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.upload import Uploader
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import I32, Int32Array, unpack_i32

MIN_SAVED_TOKENS = 64
"""Tokens that a narrowed batch must leave out: fewer save less than its plan and its copies cost. On one core,
SmolLM2's 30 layers take 1 % longer with it for a prompt of 16 tokens, 1 % less for 64, 3 % less for 512 and more."""


MIN_WRITES = 4
"""Rows that are written by one kernel instead of one by one: many requests that begin behind a long cached prefix."""


class ForwardMode(enum.IntEnum):
    """What a step does. A decode row may ride in an EXTEND step as one new token, so there is no mixed mode."""

    EXTEND = 1
    DECODE = 2
    IDLE = 3


START, LENGTH, FIRST, COUNT = range(4)
"""Columns of `SharedGroups.segments`."""


@dataclass(frozen=True)
class SharedGroups:
    """Positions [start, start + length) hold the same slots for rows[first : first + count], two or more: a group.

    Groups of one row are disjoint in positions and together cover a prefix of its sequence, without its new tokens.
    Groups nest, and `rows` are in depth-first order: the rows of two groups are apart, or those of the one that begins
    further down are a part of the other's. In an EXTEND step the rows of a group have either several new tokens each,
    or one each.

    Attributes:
        segments: int32 [G, 4], start, length, first, count; a group stands after those that it lies below.
        rows: int32 [N], indices of the step's rows.
    """

    segments: Int32Array
    rows: Int32Array

    @staticmethod
    def from_columns(segments: bytes, rows: bytes) -> SharedGroups | None:
        """From a `ForwardStep`'s columns; None if it shares nothing."""
        return SharedGroups(unpack_i32(segments).reshape(-1, 4), unpack_i32(rows)) if segments else None

    def between(self, first: int, end: int) -> SharedGroups | None:
        """The groups of the step's rows [first, end), numbered from 0; None if there are none. No group is cut."""
        kept = (self.rows >= first) & (self.rows < end)
        return self if first == 0 and kept.all() else self._of(kept, self.rows - first)

    def among(self, chosen: npt.NDArray[np.bool_]) -> SharedGroups | None:
        """The same for the step's rows that are set in `chosen` (bool [B]) alone; None if a group has others."""
        if (self.ends(len(chosen)) > 0)[~chosen].any():
            return None
        return self._of(chosen[self.rows], np.cumsum(chosen, dtype=I32)[self.rows] - 1)

    def _of(self, kept: npt.NDArray[np.bool_], places: Int32Array) -> SharedGroups | None:
        """The groups of the entries of `rows` that are kept (bool [N]), each with its row's new number (int32 [N])."""
        segments = self.segments[kept[self.segments[:, FIRST]]]
        if not len(segments):
            return None
        segments[:, FIRST] = (np.cumsum(kept, dtype=I32) - 1)[segments[:, FIRST]]
        return SharedGroups(segments, places[kept])

    def ends(self, num_rows: int) -> Int32Array:
        """int32 [num_rows], by row of the step: positions [0, end) are covered by groups; 0 for rows of none."""
        start, length, first, count = self.segments.T
        before = np.cumsum(count) - count
        members = self.rows[np.arange(count.sum()) + np.repeat(first - before, count)]
        ends = np.zeros(num_rows, I32)
        np.maximum.at(ends, members, np.repeat(start + length, count))
        return ends


@dataclass(frozen=True)
class ForwardBatch:
    """B rows and T new tokens (T == B in DECODE). Index tensors are int64 on the runner's device.

    Attributes:
        input_ids: [T].
        positions: [T], 0-based position of each new token in its sequence.
        req_pool_indices: [B], row of each sequence in req_to_token.
        seq_lens: [B], length of each sequence including its new tokens.
        out_cache_loc: [T], slots for the new keys and values.
        extend_lens: [B], new tokens of each row (all 1 in DECODE).
        prefix_lens: [B], seq_lens - extend_lens.
        logits_index: [P], which of the T positions need logits; from S on it is padding, the first position.
        sample_rows: [S], the req_pool_idx of the rows that sample.
        req_to_token: int32 [max_requests + 1, max_context_len], the runner's mirror, current for this step.
        seq_lens_cpu, extend_lens_cpu, req_pool_indices_cpu: the same numbers as int32 numpy arrays, for planning on the
            host.
        shared: what rows have in common and should be computed once; None if nothing.
        narrowed: what the last layer needs to compute beside keys and values: a DECODE batch of the S rows that sample,
            in the order of logits_index, whose queries are their last positions and whose keys and values come with
            this batch's; and of P - S rows of padding, one token in row and slot 0 each. None if the hidden states of
            all T tokens are wanted.
    """

    mode: ForwardMode
    input_ids: torch.Tensor
    positions: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    extend_lens: torch.Tensor
    prefix_lens: torch.Tensor
    logits_index: torch.Tensor
    sample_rows: torch.Tensor
    req_to_token: torch.Tensor
    seq_lens_cpu: Int32Array
    extend_lens_cpu: Int32Array
    req_pool_indices_cpu: Int32Array
    shared: SharedGroups | None = None
    narrowed: ForwardBatch | None = None

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def max_seq_len(self) -> int:
        return int(np.max(self.seq_lens_cpu))


class BatchBuilder:
    """Makes batches, and keeps the two tables that steps write: req_to_token and the future tokens.

    Args:
        sample_sizes: ascending, to which the rows that sample in an EXTEND step are padded. On CUDA a product with a
            new number of rows may wait until the device has done all its work, while cuBLAS loads a kernel for it.

    Attributes:
        req_to_token: int32 [max_requests + 1, context_length].
        future_token_ids: int64 [max_requests + 1], by req_pool_idx, what each row sampled last; -1 (CUDA: 0) if
            nothing yet.
    """

    def __init__(
        self, max_requests: int, context_length: int, device: torch.device, sample_sizes: Sequence[int] = ()
    ) -> None:
        self._device = device
        self._sample_sizes = sample_sizes
        self._uploader = Uploader(device)
        self.req_to_token = torch.zeros(max_requests + 1, context_length, dtype=torch.int32, device=device)
        # After a failed step a later one may gather what was never sampled. On the CPU that raises and ends the step;
        # on CUDA it would end the process, and the answer is dropped anyway.
        nothing = 0 if device.type == "cuda" else -1
        self.future_token_ids = torch.full((max_requests + 1,), nothing, dtype=torch.int64, device=device)
        self._write_many = _write_kernel() if device.type == "cuda" else None

    def write_rows(self, writes: list[RowWrite]) -> None:
        """What a step changes in req_to_token beside its new slots."""
        if not writes:
            return
        packed = np.frombuffer(b"".join(w.slots for w in writes), "<i4").copy()
        rows = [w.req_pool_idx for w in writes]
        # A row that changed hands is written twice, and the last must win.
        if self._write_many is not None and len(writes) >= MIN_WRITES and len(set(rows)) == len(rows):
            indptr = np.cumsum([0] + [len(w.slots) // 4 for w in writes], dtype=np.int32)
            columns = [np.array(rows, np.int32), np.array([w.start for w in writes], np.int32), indptr, packed]
            self._write_many(self.req_to_token, *self._uploader.upload(columns))
            return
        (slots,) = self._uploader.upload([packed])
        first = 0
        for write in writes:
            count = len(write.slots) // 4
            self.req_to_token[write.req_pool_idx, write.start : write.start + count] = slots[first : first + count]
            first += count

    def build(self, step: ForwardStep, *, narrow: bool = False) -> ForwardBatch:
        """The batch of a step, whose new slots are entered into req_to_token.

        Args:
            narrow: whether the model can do with `ForwardBatch.narrowed` in its last layer. It is made where the step
                scores no tokens and enough of them are left out.
        """
        idx, seq_lens = unpack_i32(step.req_pool_idx), unpack_i32(step.seq_lens)
        out_cache_loc = unpack_i32(step.out_cache_loc)
        shared = SharedGroups.from_columns(step.shared_segments, step.shared_rows)
        if step.mode == ForwardMode.DECODE:
            return self.prepare_forward_batch_decode(idx, seq_lens, out_cache_loc, shared)
        sampled = np.frombuffer(step.samples, np.uint8).astype(bool)
        return self.prepare_forward_batch_extend(
            unpack_i32(step.input_ids), idx, seq_lens, unpack_i32(step.extend_lens), out_cache_loc, sampled, shared,
            narrow=narrow and not step.logprob_rows and not step.score_index,
        )  # fmt: skip

    def prepare_forward_batch_extend(
        self, input_ids: Int32Array, req_pool_idx: Int32Array, seq_lens: Int32Array, extend_lens: Int32Array,
        out_cache_loc: Int32Array, sampled: npt.NDArray[Any], shared: SharedGroups | None = None, *,
        narrow: bool = False,
    ) -> ForwardBatch:  # fmt: skip
        """A batch of prompt chunks and decode rows riding along (shapes: see `ForwardStep`; sampled: bool [B]).

        narrow: see `build`; nobody reads hidden states but those at logits_index.
        """
        ends = np.cumsum(extend_lens)
        prefix_lens = seq_lens - extend_lens
        last = (ends - 1)[sampled]
        narrow = narrow and len(input_ids) - len(last) >= MIN_SAVED_TOKENS
        lens, rows, slots = seq_lens[sampled], req_pool_idx[sampled], out_cache_loc[last]
        samples = len(last)
        size = bucket_for(samples, self._sample_sizes) if samples else None
        if size is not None:
            last, rows, slots, lens = padded(last, size), padded(rows, size), padded(slots, size), padded(lens, size, 1)
        of_narrowed = [rows, lens, slots, np.ones_like(lens), lens - 1, np.arange(len(lens))] if narrow else []
        positions = np.arange(len(input_ids)) + np.repeat(prefix_lens - (ends - extend_lens), extend_lens)
        ids, token_rows, *rest = self._upload(
            input_ids, np.repeat(req_pool_idx, extend_lens), positions, req_pool_idx, seq_lens, out_cache_loc,
            extend_lens, prefix_lens, last, rows[:samples], *of_narrowed,
        )  # fmt: skip
        if (input_ids < 0).any():
            ids = torch.where(ids < 0, self.future_token_ids[token_rows], ids)
        batch = self._make(ForwardMode.EXTEND, ids, token_rows, rest[:8], req_pool_idx, seq_lens, extend_lens, shared)
        return replace(batch, narrowed=_narrowed(batch, sampled, lens, rows, rest[8:])) if narrow else batch

    def prepare_forward_batch_decode(
        self, req_pool_idx: Int32Array, seq_lens: Int32Array, out_cache_loc: Int32Array,
        shared: SharedGroups | None = None,
    ) -> ForwardBatch:  # fmt: skip
        """A batch in which every row extends by its future token."""
        ones = np.ones_like(seq_lens)
        positions, rows, lens, slots, extend_lens, index = self._upload(
            seq_lens - 1, req_pool_idx, seq_lens, out_cache_loc, ones, np.arange(len(seq_lens))
        )
        rest = [positions, rows, lens, slots, extend_lens, positions, index, rows]
        ids = self.future_token_ids[rows]
        return self._make(ForwardMode.DECODE, ids, rows, rest, req_pool_idx, seq_lens, ones, shared)

    def _make(
        self, mode: ForwardMode, ids: torch.Tensor, token_rows: torch.Tensor, rest: list[torch.Tensor],
        req_pool_idx: Int32Array, seq_lens: Int32Array, extend_lens: Int32Array, shared: SharedGroups | None,
    ) -> ForwardBatch:  # fmt: skip
        positions, rows, lens, slots, extends, prefixes, logits_index, sample_rows = rest
        self.req_to_token[token_rows, positions] = slots.to(torch.int32)
        return ForwardBatch(
            mode=mode,
            input_ids=ids,
            positions=positions,
            req_pool_indices=rows,
            seq_lens=lens,
            out_cache_loc=slots,
            extend_lens=extends,
            prefix_lens=prefixes,
            logits_index=logits_index,
            sample_rows=sample_rows,
            req_to_token=self.req_to_token,
            seq_lens_cpu=seq_lens,
            extend_lens_cpu=extend_lens,
            req_pool_indices_cpu=req_pool_idx,
            shared=shared,
        )

    def _upload(self, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
        return self._uploader.upload([array.astype(np.int64) for array in arrays])


def _write_kernel() -> Callable[..., None] | None:
    """The Triton kernel for `BatchBuilder.write_rows`, where Triton is installed."""
    try:
        from radixrt.kernels.triton.write_rows import write_rows
    except ImportError:
        return None
    return write_rows


def _narrowed(
    batch: ForwardBatch, sampled: npt.NDArray[Any], lens: Int32Array, req_pool_idx: Int32Array,
    columns: list[torch.Tensor],
) -> ForwardBatch:  # fmt: skip
    """`batch.narrowed`, of the rows that are set in `sampled` and of padding (lens and req_pool_idx: int32 [P]).

    Args:
        columns: int64 [P] each, what the batch has not got.
    """
    rows, seq_lens, out_cache_loc, ones, positions, index = columns
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=batch.input_ids[batch.logits_index],
        positions=positions,
        req_pool_indices=rows,
        seq_lens=seq_lens,
        out_cache_loc=out_cache_loc,
        extend_lens=ones,
        prefix_lens=positions,
        logits_index=index,
        sample_rows=batch.sample_rows,
        req_to_token=batch.req_to_token,
        seq_lens_cpu=lens,
        extend_lens_cpu=np.ones_like(lens),
        req_pool_indices_cpu=req_pool_idx,
        shared=None if batch.shared is None else batch.shared.among(sampled),
    )


# --- padding ---


def graph_buckets(max_rows: int) -> list[int]:
    """Ascending numbers of rows, the last one max_rows: a step is padded by an eighth at most, or by seven rows.

    Padding rows cost what other rows cost in the matrix products, and nothing in attention; a graph costs a quarter of
    a second to capture and a few megabytes.
    """
    buckets, n = [], 1
    while n < max_rows:
        buckets.append(n)
        if n < 8:
            n *= 2
        elif n < 64:
            n += 8
        else:
            n += 2 ** (n.bit_length() - 4)
    return [*buckets, max_rows]


def token_buckets(max_tokens: int) -> list[int]:
    """Ascending numbers of prompt tokens, the last one max_tokens: a step is padded by an eighth at most, or by 15."""
    buckets, n = [], 16
    while n < max_tokens:
        buckets.append(n)
        n += max(16, 2 ** (n.bit_length() - 4))
    return [*buckets, max_tokens]


def bucket_for(rows: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds that many rows; None if none does."""
    at = bisect.bisect_left(buckets, rows)
    return buckets[at] if at < len(buckets) else None


def padded(values: npt.NDArray[Any], rows: int, fill: int = 0, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """The values, [n] for n <= rows, and `fill` behind them, [rows]; of their own dtype if none is given. It takes a
    tenth of the time of numpy's pad."""
    made = np.full(rows, fill, values.dtype if dtype is None else dtype)
    made[: len(values)] = values
    return made
