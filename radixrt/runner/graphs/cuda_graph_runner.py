"""`CudaGraphRunner`: decode steps as CUDA graphs, one pair for each bucket of rows (and way of sharing prefixes).

The first graph of a pair goes from the future tokens to the logits, the second samples from them and writes the future
tokens again. Between them stands whatever a step needs beside that: a grammar's mask, or a sampler with filters instead
of the second graph. Where ranks of one machine share the model, the first graph leaves each of them its part of the
logits, from which the second samples; they are gathered for what needs them all. Both graphs read their numbers from
static buffers, which one copy fills for each step. A step with fewer rows than the bucket is padded with rows of one
token that read and write slot 0 and row 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from radixrt.attention.cascade import Tile
from radixrt.attention.flashinfer import DecodeState, FlashInferBackend
from radixrt.distributed.parallel import TPGroup
from radixrt.forward_batch.forward_batch import (
    BatchBuilder,
    ForwardBatch,
    ForwardMode,
    SharedGroups,
    bucket_for,
    graph_buckets,
    padded,
)
from radixrt.forward_batch.upload import Uploader, layout, view
from radixrt.messages.wire import Int32Array
from radixrt.models.registry import Model
from radixrt.runner.graphs.captures import CAPTURE_AT_STEP, Captures, begin_capture
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.step_result import SampleResult

T = TypeVar("T")

_Key = tuple[int, Tile | None]
"""Rows, and the tile of what they share."""

CAPTURE_BESIDE_AT_STEP = 24
"""The same as `CAPTURE_AT_STEP`, where a larger bucket stands in."""

MAX_PADDING = 4
"""Times as many rows that a larger bucket may have."""


class _Inputs:
    """The static buffers of one bucket: one allocation on the device, filled by one copy.

    Attributes:
        req_pool_idx, seq_lens, slots: int64 [rows].
        uniforms, temperature: float64 and float32 [rows].
        planned: the attention backend's.
    """

    def __init__(self, like: list[npt.NDArray[Any]], device: torch.device) -> None:
        self.rows = len(like[0])
        self._offsets, size = layout(like)
        self._packed = torch.zeros(size, dtype=torch.uint8, device=device)
        views = [view(self._packed, offset, array) for offset, array in zip(self._offsets, like, strict=True)]
        self.req_pool_idx, self.seq_lens, self.slots, self.uniforms, self.temperature, *self.planned = views

    def fill(self, uploader: Uploader, arrays: list[npt.NDArray[Any]]) -> None:
        """With arrays of the same shapes and dtypes."""
        uploader.upload_into(self._packed, arrays, self._offsets)


@dataclass(frozen=True)
class _Captured:
    """One bucket, ready to be replayed.

    Attributes:
        logits: float32 [rows, vocab].
        own: this rank's part of them, where they are not gathered by the graph.
    """

    inputs: _Inputs
    forward: torch.cuda.CUDAGraph
    sample: torch.cuda.CUDAGraph
    logits: torch.Tensor
    own: torch.Tensor | None
    result: SampleResult


@dataclass(frozen=True)
class StagedStep:
    """A decode step whose numbers are in the static buffers of its bucket; good until the next one is staged."""

    captured: _Captured
    num_rows: int

    @property
    def sample_rows(self) -> torch.Tensor:
        """int64 [B], the req_pool_idx of each row."""
        return self.captured.inputs.req_pool_idx[: self.num_rows]


class CudaGraphRunner:
    """See the module's docstring.

    Args:
        max_rows: most rows of a step.
        group: the ranks that share the model. All of them capture the same buckets at the same places among their
            steps, because that follows from the steps alone.
    """

    def __init__(
        self, model: Model, attention: FlashInferBackend, sampler: Sampler, builder: BatchBuilder, *, vocab_size: int,
        max_rows: int, device: torch.device, group: TPGroup,
    ) -> None:  # fmt: skip
        self._group = group
        self._model, self._attention, self._sampler, self._builder = model, attention, sampler, builder
        self._device = device
        self._buckets = graph_buckets(max_rows)
        self._captures: Captures[_Key, _Captured] = Captures("decode steps", _describe, alone=group.size == 1)
        self._uploader = Uploader(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._logits = torch.empty(max_rows, vocab_size, dtype=torch.float32, device=device)
        self._workspace = sampler.workspace(max_rows)

    def capture_next(self) -> bool:
        """Capture one bucket more, first those that steps have asked for, then small ones; False if none is left.

        Graphs for steps that share prefixes are captured for those that have been: most never are.
        """
        return self._captures.make_next([(rows, None) for rows in self._buckets], self._capture)

    def stage(
        self, req_pool_idx: Int32Array, seq_lens: Int32Array, slots: Int32Array, shared: SharedGroups | None,
        temperature: npt.NDArray[np.float32], uniforms: npt.NDArray[np.float64],
    ) -> StagedStep | None:  # fmt: skip
        """Put a decode step's numbers in place.

        Args:
            req_pool_idx, seq_lens, slots: int32 [B].
            shared: what the rows have in common.
            temperature, uniforms: [B], of `Sampler.plain_inputs`.

        Returns:
            None if no graph fits the step, or none is captured yet.
        """
        rows = bucket_for(len(seq_lens), self._buckets)
        if rows is None or self._captures.failed or not self._attention.fits_graph(seq_lens):
            return None
        plan = self._attention.plan_shared(shared, req_pool_idx)
        tile = None if plan is None else plan.tile
        captured = self._captures.get((rows, tile)) or self._stand_in(rows, tile)
        if captured is None:
            return None
        if plan is not None:
            self._attention.upload_shared(plan)
        ends = None if plan is None else plan.ends
        inputs = captured.inputs
        inputs.fill(
            self._uploader,
            self._padded_numbers(inputs.rows, req_pool_idx, seq_lens, slots, ends, temperature, uniforms),
        )
        return StagedStep(captured, len(seq_lens))

    def logits_for(self, rows: int) -> torch.Tensor | None:
        """float32 [rows, vocab], where a step that is not captured may leave its logits too: steps run in order, and
        each is sampled before the next one begins. None for more rows than there is room for."""
        return self._logits[:rows] if rows <= len(self._logits) else None

    def forward(self, step: StagedStep) -> None:
        """Compute a step's logits."""
        step.captured.forward.replay()

    def logits(self, step: StagedStep) -> torch.Tensor:
        """float32 [B, vocab], of a step that `forward` was called for; overwritten by the next step. All ranks ask for
        them, or none does."""
        captured = step.captured
        if captured.own is not None:
            self._group.gather_columns(captured.own, captured.logits.shape[1], captured.logits)
        return captured.logits[: step.num_rows]

    def samples_gathered(self, step: StagedStep) -> bool:
        """Whether `sample` reads what `logits` gave, so that a mask applied to it counts."""
        return step.captured.own is None

    def sample(self, step: StagedStep) -> SampleResult:
        """Sample a step that `forward` was called for, all of whose rows are plain (see `Sampler.plain`)."""
        step.captured.sample.replay()
        result = step.captured.result
        return SampleResult(result.token_ids[: step.num_rows], result.best[: step.num_rows])

    def _padded_numbers(
        self, rows: int, req_pool_idx: Int32Array, seq_lens: Int32Array, slots: Int32Array, ends: Int32Array | None,
        temperature: npt.NDArray[np.float32], uniforms: npt.NDArray[np.float64],
    ) -> list[npt.NDArray[Any]]:  # fmt: skip
        """What `_Inputs` of this many rows are filled with, in order."""
        lens = padded(seq_lens, rows, 1, np.int32)
        starts = np.zeros(rows, np.int32) if ends is None else padded(ends, rows, dtype=np.int32)
        return [
            padded(req_pool_idx, rows, dtype=np.int64), lens.astype(np.int64), padded(slots, rows, dtype=np.int64),
            padded(uniforms, rows, dtype=np.float64), padded(temperature, rows, dtype=np.float32),
            *self._attention.plan_graph(starts, lens),
        ]  # fmt: skip

    # --- capture ---

    def _stand_in(self, rows: int, tile: Tile | None) -> _Captured | None:
        """For a bucket that is not captured: a larger one that is, until the bucket has proved wanted."""
        wanted = self._captures.want((rows, tile))
        larger = (self._captures.get((n, tile)) for n in self._buckets if rows < n <= MAX_PADDING * rows)
        found = next((captured for captured in larger if captured is not None), None)
        if wanted >= (CAPTURE_AT_STEP if found is None else CAPTURE_BESIDE_AT_STEP):
            return self._captures.make((rows, tile), self._capture)
        return found

    def _capture(self, key: _Key) -> _Captured:
        rows, tile = key
        nothing = np.zeros(0, np.int32)
        padding = self._padded_numbers(
            rows, nothing, nothing, nothing, None, np.zeros(0, np.float32), np.zeros(0, np.float64)
        )
        inputs = _Inputs(padding, self._device)
        inputs.fill(self._uploader, padding)
        state = self._attention.graph_state(tile, inputs.req_pool_idx, inputs.seq_lens, inputs.planned)
        logits = self._logits[:rows]
        batch = self._batch(inputs)

        def forward() -> torch.Tensor | None:
            return self._forward(inputs, state, batch, logits)

        forward_graph, own = self._record(forward)

        def sample() -> SampleResult:
            numbers = (inputs.temperature, inputs.uniforms, self._workspace)
            if own is not None and self._group.one_shot is not None:
                found = SampleResult(*self._group.one_shot.sample(own, logits.shape[1], *numbers))
                chosen = found.token_ids
            else:
                found = SampleResult(self._workspace.token_ids[:rows], self._workspace.best[:rows])
                if self._group.rank == 0:
                    found = self._sampler.sample_plain(logits, *numbers)
                chosen = self._group.broadcast(found.token_ids)
            self._builder.future_token_ids[inputs.req_pool_idx] = chosen
            return found

        sample_graph, result = self._record(sample)
        return _Captured(inputs, forward_graph, sample_graph, logits, own, result)

    def _record(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """Run once for everything that happens only once (kernels are compiled, workspaces made), then record."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(stream):
            graph = begin_capture(self._pool)
            try:
                made = work()
            finally:
                graph.capture_end()
        return graph, made

    def _batch(self, inputs: _Inputs) -> ForwardBatch:
        ones = torch.ones_like(inputs.seq_lens)
        return ForwardBatch(
            mode=ForwardMode.DECODE,
            input_ids=inputs.seq_lens,  # the captured step gathers its own
            positions=inputs.seq_lens,
            req_pool_indices=inputs.req_pool_idx,
            seq_lens=inputs.seq_lens,
            out_cache_loc=inputs.slots,
            extend_lens=ones,
            prefix_lens=inputs.seq_lens,
            logits_index=inputs.req_pool_idx,
            sample_rows=inputs.req_pool_idx,
            req_to_token=self._builder.req_to_token,
            seq_lens_cpu=np.ones(inputs.rows, np.int32),
            extend_lens_cpu=np.ones(inputs.rows, np.int32),
            req_pool_indices_cpu=np.zeros(inputs.rows, np.int32),
        )

    def _forward(
        self, inputs: _Inputs, state: DecodeState, batch: ForwardBatch, logits: torch.Tensor
    ) -> torch.Tensor | None:
        """Fill `logits`; or return this rank's part, where the ranks can sample without gathering them."""
        table = self._builder.req_to_token
        ids = self._builder.future_token_ids[inputs.req_pool_idx]
        positions = inputs.seq_lens - 1
        table[inputs.req_pool_idx, positions] = inputs.slots.to(torch.int32)
        state.begin(table)
        hidden = self._model.forward(ids, positions, batch, self._attention)
        own = self._model.compute_own_logits(hidden)
        if own is None:
            made = self._model.compute_logits(hidden, logits)
            if made.data_ptr() != logits.data_ptr():
                logits.copy_(made)
        return own


def _describe(key: _Key) -> str:
    return f"the decode graph for {key[0]} rows{', shared' if key[1] else ''}"
