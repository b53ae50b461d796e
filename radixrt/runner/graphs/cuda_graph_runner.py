"""`CudaGraphRunner`: decode steps as CUDA graphs, one pair for each bucket of rows and each tile of shared prefixes.

An EXTEND step of few tokens is computed as such a step too, with a row for each token (`TokenRows`). So tokens that
jump-forward appends, and a few new tokens behind a cached prefix, cost no more than decoded tokens.

The first graph of a pair computes logits from the input tokens. The second graph samples from the logits and writes the
future tokens; a variant of the second graph applies grammar masks first. For rows with filters the runner uses the
uncaptured sampler instead of the second graph. With tensor parallelism on one machine, the first graph leaves each rank
its own columns of the logits, from which the second graph samples; the columns are gathered only for work that needs
all columns. Graphs read a step's numbers from static buffers, which one copy fills. A step with fewer rows than the
bucket is padded with rows of one token that read and write only slot 0 and row 0.

With pipeline stages, the first graph of a later stage reads the previous stage's output from a static buffer. Before
the last stage, the first graph writes the stage's output to another static buffer, and there is no second graph. The
output is sent as a copy in the order of the step's tokens, so that a stage may replay a graph or not, independently of
other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from radixrt.attention.base import AttentionBackend
from radixrt.attention.cascade import Tile
from radixrt.attention.flashinfer import DecodePart, FlashInferBackend
from radixrt.distributed.parallel import TPGroup
from radixrt.executor.mask_table import Mask
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.padding import bucket_for, bucket_ladder, graph_buckets, larger_buckets, padded
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.forward_batch.upload import Uploader, layout, view
from radixrt.messages.state_slots import SCRATCH_STATE
from radixrt.messages.wire import Int32Array
from radixrt.models.registry import Model
from radixrt.runner.graphs.captures import Captures, begin_capture
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import upload
from radixrt.runner.step_result import SampleResult

T = TypeVar("T")

_Key = tuple[int, Tile | None]
"""Rows, and the tile of the kernel for shared prefixes (None: no prefix is shared)."""

SHARED_LADDER = 2
"""Number of the largest buckets of the ladder whose graphs with shared prefixes are captured before serving. Steps of
few rows seldom share prefixes that are long enough to save time."""

CAPTURE_AT_PADDED_STEP = 256
"""See `Captures`. A capture takes 40 to 70 milliseconds; padded rows add 0.03 to 0.3 milliseconds to a step of a small
model."""

MAX_REREAD_BYTES = 4 << 30
"""Maximum bytes of keys and values that an EXTEND step reads repeatedly because each of its tokens is a row of its own.
An H200 reads 4 GiB in a millisecond; launching the step piece by piece takes the host four milliseconds."""


class _Inputs:
    """Static buffers of one bucket: one allocation on the device, filled by one copy of an image on the host.

    Each column holds the numbers of the step's rows, followed by the numbers of padding rows.

    Attributes:
        req_pool_idx, seq_lens, slots: int64 [rows].
        id_rows: int64 [rows], indices of the input tokens in future_token_ids.
        targets: int64 [samples], indices of the sampled tokens in future_token_ids: the req_pool_idx of the sampling
            rows.
        uniforms, temperature: float64 and float32 [samples].
        state_src, state_dst: int64 [rows], slots of recurrent states; unused by a model without recurrent layers.
        planned: the attention backend's numbers, see `FlashInferBackend.plan_graph`.
        mask_slots: int32 [samples], slots of the rows' grammar masks. A separate copy fills this buffer, because masks
            arrive later.

    Args:
        planned: arrays with the shapes and dtypes of the attention backend's numbers.
    """

    def __init__(self, rows: int, samples: int, planned: list[Int32Array], device: torch.device) -> None:
        self.rows = rows
        self._used = 0  # number of rows in the image that are not padding
        columns: list[npt.NDArray[Any]] = [np.full(rows, fill, np.int64) for fill in (0, 1, 0, 0)]
        columns += [np.zeros(samples, dtype) for dtype in (np.int64, np.float64, np.float32)]
        columns += [np.full(rows, SCRATCH_STATE, np.int64) for _ in range(2)]
        like = [*columns, *planned]
        offsets, size = layout(like)
        self._image = np.zeros(size, np.uint8)
        self._host = [
            self._image[at : at + each.nbytes].view(each.dtype) for at, each in zip(offsets, like, strict=True)
        ]
        for column, each in zip(self._host, like, strict=True):
            column[:] = each
        self._padding = [column[-1] for column in columns]
        self._packed = torch.from_numpy(self._image).to(device)
        views = [view(self._packed, offset, each) for offset, each in zip(offsets, like, strict=True)]
        self.req_pool_idx, self.seq_lens, self.slots, self.id_rows, self.targets, *rest = views
        self.uniforms, self.temperature, self.state_src, self.state_dst, *self.planned = rest
        none = np.full(samples, -1, np.int32)
        self._packed_slots = torch.from_numpy(none.view(np.uint8)).to(device)
        self.mask_slots = view(self._packed_slots, 0, none)

    def fill(self, uploader: Uploader, columns: Sequence[npt.NDArray[Any]], planned: Sequence[Int32Array]) -> None:
        """Copy a step's numbers into the buffers.

        Args:
            columns: the first nine attributes in order, each without padding, of any dtype.
            planned: arrays with the shapes of the buffers `planned`.
        """
        used = len(columns[0])
        for host, values, padding in zip(self._host, columns, self._padding, strict=False):
            host[: len(values)] = values
            if len(values) < self._used:
                host[len(values) : self._used] = padding
        for host, values in zip(self._host[len(columns) :], planned, strict=True):
            host[:] = values
        self._used = used
        uploader.upload_into(self._packed, [self._image], [0])

    def fill_mask_slots(self, uploader: Uploader, slots: Int32Array) -> None:
        """Copy int32 [samples] into `mask_slots`."""
        uploader.upload_into(self._packed_slots, [slots], [0])


@dataclass(frozen=True)
class _Captured:
    """The graphs of one bucket, ready to be replayed.

    Attributes:
        sample_masked: variant of `sample` that applies grammar masks first; None if `own` is not None.
        logits: float32 [samples, vocab]; no rows before the last pipeline stage.
        own: this rank's columns of the logits; None if the graph gathers all columns into `logits`.
        sample, result: None before the last pipeline stage.
    """

    inputs: _Inputs
    forward: torch.cuda.CUDAGraph
    sample: torch.cuda.CUDAGraph | None
    sample_masked: torch.cuda.CUDAGraph | None
    logits: torch.Tensor
    own: torch.Tensor | None
    result: SampleResult | None


@dataclass(frozen=True)
class StagedStep:
    """A decode step whose numbers are in the static buffers of its bucket; valid until the next step is staged.

    Attributes:
        order: int64 [T], see `TokenRows`; None without pipeline stages.
    """

    captured: _Captured
    num_samples: int
    num_tokens: int
    order: torch.Tensor | None

    @property
    def sample_rows(self) -> torch.Tensor:
        """int64 [S], the req_pool_idx of each sampling row."""
        return self.captured.inputs.targets[: self.num_samples]


class CudaGraphRunner:
    """Captures and replays decode steps; see the module's docstring.

    Attributes:
        max_rows: maximum number of tokens of a step.

    Args:
        backend: the backend that the model calls: `attention`, or a `HybridAttnBackend` around it.
        max_samples: maximum number of sampling rows of a step.
        token_bytes: bytes of one token's keys and values in all layers.
        group: ranks that share the model. All ranks capture the same buckets at the same points of their sequence of
            steps, because the steps alone decide when a bucket is captured.
    """

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        attention: FlashInferBackend,
        sampler: Sampler,
        builder: BatchBuilder,
        *,
        vocab_size: int,
        max_samples: int,
        max_rows: int,
        token_bytes: int,
        device: torch.device,
        group: TPGroup,
    ) -> None:
        self._group = group
        self.max_rows = max_rows
        self._max_samples, self._max_reread = max_samples, MAX_REREAD_BYTES // token_bytes
        self._model, self._attention, self._sampler, self._builder = model, attention, sampler, builder
        self._backend = backend
        self._device = device
        self._buckets = graph_buckets(max_rows)
        self._captures: Captures[_Key, _Captured] = Captures(
            "decode steps", _describe, beside_at_step=CAPTURE_AT_PADDED_STEP, alone=group.size == 1
        )
        self._uploader = Uploader(device)
        self._pool = torch.cuda.graph_pool_handle()
        # All captures use one stream, because cuBLAS keeps a workspace of 32 MiB for each stream.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._received, self._sent = model.stage_input(max_rows), model.stage_output(max_rows)
        if self._received is not None:
            self._received.zero_()  # padding rows read the buffer, and their results must be finite
        samples = max_samples if self._sent is None else 0
        self._logits = torch.empty(samples, vocab_size, dtype=torch.float32, device=device)
        self._workspace = sampler.workspace(max_samples)

    def capture_first(self) -> None:
        """Capture the fewest buckets such that every step without shared prefixes has a graph, and the largest buckets
        with shared prefixes."""
        ladder = bucket_ladder(self._buckets)
        keys: list[_Key] = [(rows, None) for rows in ladder]
        keys += [(rows, tile) for tile in self._attention.tiles for rows in ladder[:SHARED_LADDER]]
        for key in keys:
            self._captures.make(key, self._capture)

    def capture_next(self, *, requested: bool = False) -> bool:
        """Capture one more bucket: a requested bucket, else the smallest missing bucket. Return False if none is left.

        Buckets with shared prefixes are captured only when steps have requested them: most are never used.

        Args:
            requested: capture only a bucket that steps have requested.
        """
        keys: list[_Key] = [] if requested else [(rows, None) for rows in self._buckets]
        return self._captures.make_next(keys, self._capture)

    def stage(
        self, rows: TokenRows, temperature: npt.NDArray[np.float32], uniforms: npt.NDArray[np.float64]
    ) -> StagedStep | None:
        """Copy a step's numbers into the static buffers of its bucket.

        Args:
            temperature, uniforms: [S], of `Sampler.plain_inputs`.

        Returns:
            None if no graph fits the step, or none is captured yet.
        """
        # A step is launched kernel by kernel if it is too large for all buckets, or if separate rows for the tokens of
        # a sequence would read its keys and values too often.
        bucket = bucket_for(len(rows.slots), self._buckets)
        if bucket is None or self._captures.failed or rows.reread > self._max_reread:
            return None
        if not self._attention.fits_graph(rows.seq_lens):
            return None
        # Graphs differ by the kernel for shared prefixes. A missing graph is replaced by the graph of a larger bucket
        # with the same kernel until enough steps have requested it.
        plan = self._attention.plan_shared(rows.shared, rows.req_pool_idx)
        tile = None if plan is None else plan.tile
        larger = [(n, tile) for n in larger_buckets(bucket, self._buckets)]
        captured = self._captures.get_or_make((bucket, tile), larger, self._capture)
        if captured is None:
            return None
        if plan is not None:
            self._attention.upload_shared(plan)
        # The graph gathers all input ids from the table of future tokens. Ids that the step gives are stored behind the
        # table, so that a single gather serves both kinds of rows.
        idx, id_rows, size = rows.req_pool_idx, rows.req_pool_idx, captured.inputs.rows
        if rows.given is not None and (rows.given >= 0).any():
            id_rows = np.where(rows.given < 0, idx, self._builder.give(rows.given))
        columns = (
            idx,
            rows.seq_lens,
            rows.slots,
            id_rows,
            idx[: rows.num_samples],
            uniforms,
            temperature,
            rows.state_src,
            rows.state_dst,
        )
        # Attention of a row begins behind the shared prefix, which a kernel of its own reads. The plan depends on the
        # rows' lengths, so it is made for each step and copied with the other numbers.
        starts = np.zeros(size, np.int32) if plan is None else padded(plan.ends, size, dtype=np.int32)
        planned = self._attention.plan_graph(starts, padded(rows.seq_lens, size, 1, np.int32))
        captured.inputs.fill(self._uploader, columns, planned)
        # Stages exchange hidden states in the step's order, which differs from the rows' order in some EXTEND steps.
        divided = self._received is not None or self._sent is not None
        order = None if rows.order is None or not divided else upload(rows.order.astype(np.int64), self._device)
        return StagedStep(captured, rows.num_samples, len(rows.slots), order)

    def logits_for(self, rows: int) -> torch.Tensor | None:
        """Return float32 [rows, vocab], a buffer for the logits of an uncaptured step; None if the buffer is too small.
        Steps run in order, and each step is sampled before the next step begins."""
        return self._logits[:rows] if rows <= len(self._logits) else None

    def forward(self, step: StagedStep, received: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute a step's logits. On a pipeline stage before the last, return the input of the next stage instead.

        Args:
            received: as for `Model.forward`, in the order of the step's tokens.
        """
        if received is not None and self._received is not None:
            self._received[: step.num_tokens] = received if step.order is None else received[step.order]
        step.captured.forward.replay()
        if self._sent is None:
            return None
        computed = self._sent[: step.num_tokens]
        if step.order is None:
            return computed.clone()
        return torch.empty_like(computed).index_copy_(0, step.order, computed)

    def logits(self, step: StagedStep) -> torch.Tensor:
        """Return the logits of a step after `forward`, float32 [S, vocab], which the next step overwrites. The call is
        collective: either all ranks make the call, or none."""
        captured = step.captured
        if captured.own is not None:
            self._group.all_gather_columns(captured.own, captured.logits.shape[1], captured.logits)
        return captured.logits[: step.num_samples]

    def samples_masked(self, step: StagedStep) -> bool:
        """Return whether `sample` takes a mask."""
        return step.captured.sample_masked is not None

    def sample(self, step: StagedStep, mask: Mask | None = None) -> SampleResult:
        """Sample a step after `forward`; all of its rows must be plain (see `Sampler.plain`)."""
        captured = step.captured
        assert captured.sample is not None, "a stage before the last samples nothing"
        assert captured.result is not None
        if mask is None or captured.sample_masked is None:
            captured.sample.replay()
        else:
            slots = self._sampler.mask_slots(mask, len(captured.inputs.targets))
            captured.inputs.fill_mask_slots(self._uploader, slots)
            captured.sample_masked.replay()
        result = captured.result
        return SampleResult(result.token_ids[: step.num_samples], result.best[: step.num_samples])

    # --- capture ---

    def _capture(self, key: _Key) -> _Captured:
        """Capture the graphs of a bucket around new static buffers."""
        rows, tile = key
        planned = self._attention.plan_graph(np.zeros(rows, np.int32), np.ones(rows, np.int32))
        inputs = _Inputs(rows, min(rows, self._max_samples), planned, self._device)
        part = self._attention.graph_part(tile, inputs.req_pool_idx, inputs.seq_lens, inputs.planned)
        batch = self._builder.build_captured(
            inputs.req_pool_idx, inputs.seq_lens, inputs.slots, inputs.state_src, inputs.state_dst
        )
        logits = self._logits[: len(inputs.targets)]
        forward_graph, own = self._record(lambda: self._forward(inputs, part, batch, logits))
        if self._sent is not None:
            return _Captured(inputs, forward_graph, None, None, logits, None, None)
        sample_graph, result = self._record(lambda: self._sample(inputs, logits, own))
        masked_graph = None
        if own is None:
            masked_graph, _ = self._record(lambda: self._sample_masked(inputs, logits))
        return _Captured(inputs, forward_graph, sample_graph, masked_graph, logits, own, result)

    def _record(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """Run `work` once uncaptured, so that kernels are compiled and workspaces allocated, then capture it."""
        stream = self._stream
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

    def _forward(
        self, inputs: _Inputs, part: DecodePart, batch: ForwardBatch, logits: torch.Tensor
    ) -> torch.Tensor | None:
        """Fill `logits`, or return this rank's columns if the ranks can sample without gathering the columns."""
        table = self._builder.req_to_token
        ids = self._builder.future_token_ids[inputs.id_rows]
        positions = inputs.seq_lens - 1
        table[inputs.req_pool_idx, positions] = inputs.slots.to(torch.int32)
        self._attention.begin_graph(batch, part)
        received = None if self._received is None else self._received[: inputs.rows]
        rotary = self._builder.rotary_positions(positions, inputs.req_pool_idx)
        hidden = self._model.forward(ids, rotary, batch, self._backend, received)
        if self._sent is not None:
            self._sent[: inputs.rows] = hidden
            return None
        hidden = hidden[: len(logits)]
        own = self._model.compute_local_logits(hidden)
        if own is None:
            made = self._model.compute_logits(hidden, logits)
            if made.data_ptr() != logits.data_ptr():
                logits.copy_(made)
            self._sampler.suppress(logits)
        else:
            self._sampler.suppress(own, self._group.rank * own.shape[1])
        return own

    def _sample(self, inputs: _Inputs, logits: torch.Tensor, own: torch.Tensor | None) -> SampleResult:
        """Sample every row, and store the tokens as the rows' future tokens."""
        rows = len(inputs.targets)
        numbers = (inputs.temperature, inputs.uniforms, self._workspace)
        if own is not None and self._group.communicator is not None:
            found = SampleResult(*self._group.communicator.sample(own, logits.shape[1], *numbers))
            chosen = found.token_ids
        else:
            found = SampleResult(self._workspace.token_ids[:rows], self._workspace.best[:rows])
            if self._group.rank == 0:
                found = self._sampler.sample_plain(logits, *numbers)
            chosen = self._group.broadcast(found.token_ids)
        self._builder.future_token_ids[inputs.targets] = chosen
        return found

    def _sample_masked(self, inputs: _Inputs, logits: torch.Tensor) -> SampleResult:
        """Apply the masks, then sample. Only the first rank samples, so only its table has masks."""
        if self._group.rank == 0:
            self._sampler.apply_slots(logits, inputs.mask_slots)
        return self._sample(inputs, logits, None)


def _describe(key: _Key) -> str:
    return f"the decode graph for {key[0]} rows{', shared' if key[1] else ''}"
