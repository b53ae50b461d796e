"""`BatchBuilder`: creates the batches of a runner. No other code of the engine creates a `ForwardBatch`.

A batch is created from a `ForwardStep`, around the static buffers of a CUDA graph, or as a dummy for a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups, StepInputs
from radixrt.forward_batch.padding import bucket_for, padded
from radixrt.forward_batch.state_rows import StateColumns, StateRows
from radixrt.forward_batch.upload import Uploader
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.sections import READS, STATES, ReadSection, StateSection, decode
from radixrt.messages.state_slots import SCRATCH_STATE
from radixrt.messages.wire import I32, Int32Array, unpack_i32

MIN_SAVED_TOKENS = 64
"""Minimum number of tokens that a narrowed batch must exclude; fewer save less than its plan and its copies cost. On
one core, SmolLM2's 30 layers take 1 % longer with a narrowed batch for a prompt of 16 tokens, 1 % less for 64 and 3 %
less for 512 and more."""

MIN_WRITES = 4
"""Minimum number of row writes for which a single kernel replaces a copy per row, as for many requests that start
behind a long cached prefix."""


class BatchBuilder:
    """Creates the batches of a runner, and owns the two tables that steps write: req_to_token and the future tokens.

    Args:
        sample_sizes: ascending sizes to which the number of sampling rows of an EXTEND step is padded. On CUDA, a GEMM
            with a new number of rows may wait until the device is idle while cuBLAS loads a kernel for that size.
        max_given: maximum number of input ids for `give`.
        has_offsets: rows may have rotary positions that differ from their positions.

    Attributes:
        req_to_token: int32 [max_requests + 1, context_length], slots of each row's positions.
        future_token_ids: int64 [max_requests + 1 + max_given], the last sampled token of each row, by req_pool_idx; -1
            (CUDA: 0) before the first token. The last max_given entries hold the ids of `give`.
        rotary_offsets: int64 [max_requests + 1], rotary position minus position of each row's next tokens; None for a
            model whose rows have none.
    """

    def __init__(
        self,
        max_requests: int,
        context_length: int,
        device: torch.device,
        sample_sizes: Sequence[int] = (),
        max_given: int = 0,
        *,
        has_offsets: bool = False,
    ) -> None:
        self.sample_sizes = sample_sizes
        self._uploader = Uploader(device)
        self.req_to_token = torch.zeros(max_requests + 1, context_length, dtype=torch.int32, device=device)
        # A step after a failed step may gather a token that was never sampled. On the CPU the id -1 raises, and only
        # the step fails. On CUDA the id -1 would end the process, so 0 is used; the step's answer is dropped anyway.
        nothing = 0 if device.type == "cuda" else -1
        size = max_requests + 1 + max_given
        self.future_token_ids = torch.full((size,), nothing, dtype=torch.int64, device=device)
        self.rotary_offsets: torch.Tensor | None = None
        if has_offsets:
            self.rotary_offsets = torch.zeros(max_requests + 1, dtype=torch.int64, device=device)
        self._given = self.future_token_ids[max_requests + 1 :].view(torch.uint8)
        self._write_many = _write_kernel() if device.type == "cuda" else None

    def mirror_rows(self, rows: Int32Array, lens: Int32Array) -> Int32Array:
        """Return req_to_token[row, :len] of each row, concatenated (tests)."""
        table = self.req_to_token.cpu().numpy()
        parts = [table[r, :n] for r, n in zip(rows.tolist(), lens.tolist(), strict=True)]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def write_rows(self, writes: list[RowWrite]) -> None:
        """Apply a step's changes of req_to_token other than its new slots."""
        if not writes:
            return
        packed = np.frombuffer(b"".join(w.slots for w in writes), "<i4").copy()
        rows = [w.req_pool_idx for w in writes]
        # A row that one request released and another took is written twice, in order, which the kernel cannot do.
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

    def set_offsets(self, rows: Int32Array, offsets: Int32Array) -> None:
        """Set the rotary offsets of rows (int32 [k] each)."""
        assert self.rotary_offsets is not None
        index, values = self._upload(rows, offsets)
        self.rotary_offsets[index] = values

    @torch.inference_mode()
    def reset_offsets(self) -> None:
        """Set the rotary offsets of all rows to 0."""
        if self.rotary_offsets is not None:
            self.rotary_offsets.zero_()

    def rotary_positions(self, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return int64 [n], the rotary positions of tokens at positions of rows of req_to_token (int64 [n] each)."""
        return positions if self.rotary_offsets is None else positions + self.rotary_offsets[rows]

    def give(self, ids: Int32Array) -> Int32Array:
        """Store input ids behind the future tokens, for a captured step that gathers its ids there (CUDA only).

        Args:
            ids: int32 [T], T at most max_given; replaces the ids of the previous call.

        Returns:
            int32 [T], indices of the ids in future_token_ids.
        """
        given = ids.astype(np.int64)
        self._uploader.upload_into(self._given[: given.nbytes], [given], [0])
        first = len(self.future_token_ids) - self._given.numel() // given.itemsize
        return np.arange(first, first + len(ids), dtype=I32)

    def build(self, step: ForwardStep, *, narrow: bool = False, inputs: StepInputs | None = None) -> ForwardBatch:
        """Create the batch of a step and write its new slots into req_to_token.

        Args:
            narrow: the model supports `ForwardBatch.narrowed`. The narrowed batch is created if only hidden states of
                the last tokens of rows are needed, and enough tokens are excluded.
            inputs: inputs besides tokens, of an EXTEND step.
        """
        idx, seq_lens = unpack_i32(step.req_pool_idx), unpack_i32(step.seq_lens)
        out_cache_loc = unpack_i32(step.out_cache_loc)
        shared = SharedGroups.of(step)
        if step.mode == ForwardMode.DECODE:
            states, given = self._state_rows(step, np.ones_like(idx)), unpack_i32(step.input_ids)
            return self.build_decode(idx, seq_lens, out_cache_loc, shared, states, given if len(given) else None)
        sampled, extend_lens = np.frombuffer(step.samples, np.uint8).astype(bool), unpack_i32(step.extend_lens)
        read = _rows_read(step, extend_lens) if narrow else None
        return self.build_extend(
            unpack_i32(step.input_ids),
            idx,
            seq_lens,
            extend_lens,
            out_cache_loc,
            sampled,
            shared,
            self._state_rows(step, extend_lens),
            narrow=read is not None,
            read=read,
            inputs=inputs,
        )

    def _state_rows(self, step: ForwardStep, lens: Int32Array) -> StateRows | None:
        """Return the state slots of a step; None for a model without recurrent layers.

        Args:
            lens: int32 [B], number of new tokens of each row.
        """
        section = decode(step.sections, STATES, StateSection)
        if section is None:
            return None
        cuts = unpack_i32(section.cuts).reshape(-1, 3)
        found = StateColumns.of(unpack_i32(section.src), unpack_i32(section.dst), lens, cuts)
        src, dst, starts = self._upload(found.src, found.dst, found.starts)
        return StateRows(src, dst, starts, found.lens, found.chains)

    def build_extend(
        self,
        input_ids: Int32Array,
        req_pool_idx: Int32Array,
        seq_lens: Int32Array,
        extend_lens: Int32Array,
        out_cache_loc: Int32Array,
        sampled: npt.NDArray[Any],
        shared: SharedGroups | None = None,
        states: StateRows | None = None,
        *,
        narrow: bool = False,
        read: npt.NDArray[np.bool_] | None = None,
        inputs: StepInputs | None = None,
    ) -> ForwardBatch:
        """Create a batch of prompt chunks and decode rows (shapes: see `ForwardStep`).

        Args:
            sampled: bool [B], the rows whose last position is sampled.
            narrow: only hidden states of the last tokens of rows that sample or are read are needed; see `build`.
            read: bool [B], the rows whose last token is read; None if no token is read.
        """
        # The last layer may compute only the wanted rows: rows that sample, and in a narrowed step also rows that are
        # read. Otherwise the last layer computes all tokens, and only rows that sample have logits.
        ends = np.cumsum(extend_lens)
        wanted = sampled if read is None else sampled | read
        narrow = narrow and len(input_ids) - int(wanted.sum()) >= MIN_SAVED_TOKENS
        wanted = wanted if narrow else sampled
        last = wanted_tokens = (ends - 1)[wanted]
        lens, rows, slots = seq_lens[wanted], req_pool_idx[wanted], out_cache_loc[last]
        # Rows that are read but not sampled have no logits: sample_index selects the sampled rows among wanted rows.
        among = self._padded_to_bucket(np.flatnonzero(sampled[wanted]))
        size = bucket_for(len(last), self.sample_sizes) if len(last) else None
        if size is not None:
            last, rows, slots, lens = padded(last, size), padded(rows, size), padded(slots, size), padded(lens, size, 1)
        # All columns are uploaded by one copy. Token i of the step has position i + seq_len - end in its sequence,
        # where `end` is the index behind the last token of the row.
        of_narrowed = [lens - 1, rows, lens, slots, np.arange(len(lens))] if narrow else []
        positions = np.arange(len(input_ids)) + np.repeat(seq_lens - ends, extend_lens)
        ids, token_rows, at, idx, lens_there, loc, logits_index, sample_rows, sample_index, *rest = self._upload(
            input_ids,
            np.repeat(req_pool_idx, extend_lens),
            positions,
            req_pool_idx,
            seq_lens,
            out_cache_loc,
            last,
            req_pool_idx[sampled],
            among,
            *of_narrowed,
        )
        # Decode rows without an id take the token that the previous step has sampled, which may still be on the device
        # only.
        if (input_ids < 0).any():
            ids = torch.where(ids < 0, self.future_token_ids[token_rows], ids)
        self._write_slots(token_rows, at, loc, out_cache_loc)
        # The narrowed batch is a DECODE batch of the wanted rows: each has its last token as its query.
        narrowed = None
        if narrow:
            columns = [ids[logits_index], *rest, self.req_to_token]
            narrowed = ForwardBatch.of_decode_rows(
                *columns,
                seq_lens_cpu=lens,
                req_pool_indices_cpu=rows,
                sample_rows=sample_rows,
                shared=None if shared is None else shared.among(wanted),
            )
        return ForwardBatch(
            ForwardMode.EXTEND,
            ids,
            self.rotary_positions(at, token_rows),
            idx,
            lens_there,
            loc,
            logits_index,
            sample_rows,
            self.req_to_token,
            seq_lens,
            extend_lens,
            req_pool_idx,
            shared,
            narrowed,
            states,
            None if wanted is sampled or sampled[wanted].all() else sample_index,
            wanted_tokens if narrow else None,
            inputs,
        )

    def _padded_to_bucket(self, index: npt.NDArray[Any]) -> npt.NDArray[Any]:
        size = bucket_for(len(index), self.sample_sizes) if len(index) else None
        return index if size is None else padded(index, size)

    def _write_slots(
        self, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, slots_cpu: Int32Array
    ) -> None:
        """Write the slots of new tokens into req_to_token.

        Replayed tokens, with slot 0, are excluded: req_to_token has their slots already, and their new keys and values
        go to the padding slot (see `ForwardStep`).

        Args:
            rows, positions, slots: int64 [T], on the device.
            slots_cpu: int32 [T], the slots on the host.
        """
        if not slots_cpu.all():
            (stored,) = self._upload(np.flatnonzero(slots_cpu))
            rows, positions, slots = rows[stored], positions[stored], slots[stored]
        self.req_to_token[rows, positions] = slots.to(torch.int32)

    def build_decode(
        self,
        req_pool_idx: Int32Array,
        seq_lens: Int32Array,
        out_cache_loc: Int32Array,
        shared: SharedGroups | None = None,
        states: StateRows | None = None,
        input_ids: Int32Array | None = None,
    ) -> ForwardBatch:
        """Create a batch in which every row has one new token (columns: int32 [B]).

        Args:
            input_ids: the new tokens; None if each row takes its future token.
        """
        given = [] if input_ids is None else [input_ids]
        positions, rows, lens, slots, index, *ids = self._upload(
            seq_lens - 1, req_pool_idx, seq_lens, out_cache_loc, np.arange(len(seq_lens)), *given
        )
        self.req_to_token[rows, positions] = slots.to(torch.int32)
        return ForwardBatch.of_decode_rows(
            ids[0] if ids else self.future_token_ids[rows],
            self.rotary_positions(positions, rows),
            rows,
            lens,
            slots,
            index,
            self.req_to_token,
            seq_lens_cpu=seq_lens,
            req_pool_indices_cpu=req_pool_idx,
            shared=shared,
            states=states,
        )

    def build_captured(
        self,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        out_cache_loc: torch.Tensor,
        state_src: torch.Tensor,
        state_dst: torch.Tensor,
    ) -> ForwardBatch:
        """Create the DECODE batch of a CUDA graph around static buffers (int64 [rows] each).

        The captured step itself gathers its input ids, computes its positions and writes req_to_token. The numbers on
        the host are placeholders: the attention backend's own static buffers hold the plan.
        """
        rows = len(seq_lens)
        starts = torch.arange(rows + 1, device=seq_lens.device)
        return ForwardBatch.of_decode_rows(
            seq_lens,
            seq_lens,
            req_pool_indices,
            seq_lens,
            out_cache_loc,
            req_pool_indices,
            self.req_to_token,
            seq_lens_cpu=np.ones(rows, np.int32),
            req_pool_indices_cpu=np.zeros(rows, np.int32),
            states=StateRows(state_src, state_dst, starts, None),
        )

    def build_dummy_extend(self, tokens: int) -> ForwardBatch:
        """Create an EXTEND batch for a capture, of one-token rows that read and write only row 0, slot 0 and the
        scratch state."""
        zeros, ones = np.zeros(tokens, np.int32), np.ones(tokens, np.int32)
        scratch, starts = self._upload(np.full(tokens, SCRATCH_STATE), np.arange(tokens + 1))
        states = StateRows(scratch, scratch, starts, None)
        return self.build_extend(zeros, zeros, ones, ones, zeros, np.zeros(tokens, bool), states=states)

    def _upload(self, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
        return self._uploader.upload([array.astype(np.int64) for array in arrays])


def _rows_read(step: ForwardStep, extend_lens: Int32Array) -> npt.NDArray[np.bool_] | None:
    """Return bool [B], the rows whose last new token the step reads; None if the step reads other tokens too."""
    section = decode(step.sections, READS, ReadSection)
    if section is None:
        return np.zeros(len(extend_lens), np.bool_)
    first, counts = unpack_i32(section.spans).reshape(-1, 2).T
    tokens = np.concatenate([first, unpack_i32(section.index)])
    read: npt.NDArray[np.bool_] = np.isin(np.cumsum(extend_lens) - 1, tokens)
    return read if (counts == 1).all() and read.sum() == len(np.unique(tokens)) else None


def _write_kernel() -> Callable[..., None] | None:
    """Return the Triton kernel for `BatchBuilder.write_rows`; None where Triton is not installed."""
    try:
        from radixrt.kernels.triton.write_rows import write_rows
    except ImportError:
        return None
    return write_rows
