"""`PromptGraphRunner`: prefill (extend) steps as piecewise CUDA graphs, split at every attention and recurrence.

Launching a step kernel by kernel takes the host longer than computing the step takes the device, for steps of up to a
thousand tokens with 8 billion parameters, and up to six thousand tokens with 0.6 billion. Between the attentions of two
layers, all work depends only on the number of tokens, and is captured in buckets. Attention and recurrences, whose work
depends on the rows, are launched between the graphs. Padding tokens read and write only slot 0, and no state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.state_pool import RecurrentLayer
from radixrt.distributed.parallel import TPGroup
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode
from radixrt.forward_batch.padding import bucket_for, bucket_ladder, larger_buckets, token_buckets
from radixrt.models.registry import Model
from radixrt.runner.graphs.captures import Captures, begin_capture

if TYPE_CHECKING:
    from radixrt.attention.flashinfer import FlashInferBackend

CAPTURE_AT_PADDED_STEP = 24
"""See `Captures`. Padding tokens are computed, so a padded step takes one or two milliseconds longer, and the longest
captured step up to eight."""


@dataclass(frozen=True)
class _Piece:
    """Work before one attention or recurrence.

    Attributes:
        graph: computes the inputs.
        layer: layer of the attention or recurrence.
        q, k, v: inputs of the attention, in the graphs' memory. k and v are None if the graph has stored the keys and
            values, as in steps whose attention reads all keys and values from the pool. q is the input of a recurrence.
        sinks: attention sinks of the heads, a parameter of the model; None for a model without sinks.
    """

    graph: torch.cuda.CUDAGraph
    layer: AttentionLayer | RecurrentLayer
    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    sinks: torch.Tensor | None


@dataclass(frozen=True)
class _Captured:
    """Graphs of one bucket.

    Attributes:
        batch: static inputs of the graphs.
        pieces: graphs before each attention or recurrence, in order.
        end: graph after the last attention or recurrence.
        hidden: [bucket, hidden], output of `end`.
    """

    batch: ForwardBatch
    pieces: list[_Piece]
    end: torch.cuda.CUDAGraph
    hidden: torch.Tensor


class PromptGraphRunner:
    """Captures and replays prefill steps; see the module's docstring.

    Args:
        backend: the backend that the model calls: `attention`, or a `HybridAttnBackend` around it.
        max_tokens: maximum number of tokens of a captured step.
        group: ranks that share the model. All ranks capture the same buckets at the same points of their sequence of
            steps, because the steps alone decide when a bucket is captured.
    """

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        attention: FlashInferBackend,
        builder: BatchBuilder,
        *,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        group: TPGroup,
    ) -> None:
        self._model, self._backend, self._attention, self._builder = model, backend, attention, builder
        self._device = device
        self._buckets = token_buckets(max_tokens)
        self._captures: Captures[int, _Captured] = Captures(
            "prompts",
            lambda tokens: f"the graphs for {tokens} prompt tokens",
            beside_at_step=CAPTURE_AT_PADDED_STEP,
            alone=group.size == 1,
        )
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        layer = model.attention_layers[0]
        # All buckets and layers share a buffer for the output of attention, which is read before the next attention
        # writes. The buffer is zeroed because padding tokens pass through the layers too, and the keys and values that
        # they store in slot 0 must be finite.
        self._out = torch.zeros(self._buckets[-1], layer.num_heads, layer.head_dim, dtype=dtype, device=device)
        self._mixed = _MixedBuffers(self._buckets[-1], dtype, device)
        # Output of the previous pipeline stage, zeroed like `_out`.
        self._received = model.stage_input(self._buckets[-1])
        if self._received is not None:
            self._received.zero_()

    def capture_first(self) -> None:
        """Capture the fewest buckets such that every step has a graph."""
        for tokens in bucket_ladder(self._buckets):
            self._captures.make(tokens, self._capture)

    def capture_next(self, *, requested: bool = False) -> bool:
        """Capture one more bucket: a requested bucket, else the smallest missing bucket. Return False if none is left.

        Args:
            requested: capture only a bucket that steps have requested.
        """
        return self._captures.make_next([] if requested else self._buckets, self._capture)

    def has(self, tokens: int) -> bool:
        """Return whether a step of `tokens` tokens has graphs, which compute all layers for all tokens."""
        bucket = bucket_for(tokens, self._buckets)
        if bucket is None:
            return False
        return self._captures.find(bucket, larger_buckets(bucket, self._buckets)) is not None

    def forward(self, batch: ForwardBatch, received: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute an EXTEND step.

        Args:
            received: as for `Model.forward`.

        Returns:
            The final hidden states [T, hidden], valid until the next step. Before the last pipeline stage: a copy of
            the output of `Model.forward`. None, without any work, if no graph fits the step or is captured yet.
        """
        tokens = bucket_for(batch.num_tokens, self._buckets)
        if tokens is None or batch.mode is not ForwardMode.EXTEND or batch.inputs is not None:
            return None
        captured = self._captures.get_or_make(tokens, larger_buckets(tokens, self._buckets), self._capture)
        if captured is None:
            return None
        if received is not None and self._received is not None:
            self._received[: batch.num_tokens] = received
        hidden = self._replay(captured, replace(batch, narrowed=None))
        return hidden if hidden.dim() == 2 else hidden.clone()

    def _replay(self, captured: _Captured, batch: ForwardBatch) -> torch.Tensor:
        count, inputs = batch.num_tokens, captured.batch
        for target, source in (
            (inputs.input_ids, batch.input_ids),
            (inputs.positions, batch.positions),
            (inputs.out_cache_loc, batch.out_cache_loc),
        ):
            target[:count] = source
            target[count:] = 0
        self._attention.prepare(batch)
        out = self._out[:count]
        for piece in captured.pieces:
            piece.graph.replay()
            if not isinstance(piece.layer, AttentionLayer):
                mixed = self._backend.mix_states(piece.layer, piece.q[:count], batch)
                self._mixed.of(piece.layer, count).copy_(mixed)
                continue
            k, v = (None if x is None else x[:count] for x in (piece.k, piece.v))
            self._attention.attend_into(piece.layer, piece.q[:count], k, v, batch, out, piece.sinks)
        captured.end.replay()
        return captured.hidden[:count]

    # --- capture ---

    def _capture(self, tokens: int) -> _Captured:
        batch = self._builder.build_dummy_extend(tokens)
        received = None if self._received is None else self._received[:tokens]
        stores = tokens < MIN_FRESH_TOKENS or self._attention.gathers
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            # Run once uncaptured, so that kernels are compiled and workspaces allocated.
            recorder = _Recorder(self._attention, self._out, self._mixed, None, stores=stores)
            self._model.forward(batch.input_ids, batch.positions, batch, recorder, received)
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(stream):
            recorder = _Recorder(self._attention, self._out, self._mixed, self._pool, stores=stores)
            recorder.begin()
            try:
                hidden = self._model.forward(batch.input_ids, batch.positions, batch, recorder, received)
            finally:
                end = recorder.end()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return _Captured(batch, recorder.pieces, end, _unowned(hidden))


class _MixedBuffers:
    """Output buffers of recurrences, zeroed like the buffer of attention. Layers with equally many columns share a
    buffer."""

    def __init__(self, max_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self._max_tokens, self._dtype, self._device = max_tokens, dtype, device
        self._buffers: dict[int, torch.Tensor] = {}

    def of(self, layer: RecurrentLayer, tokens: int) -> torch.Tensor:
        """Return [tokens, layer.mixed_features]. The first call for a layer is not captured."""
        columns = layer.mixed_features
        if columns not in self._buffers:
            self._buffers[columns] = torch.zeros(self._max_tokens, columns, dtype=self._dtype, device=self._device)
        return self._buffers[columns][:tokens]


class _Recorder(AttentionBackend):
    """Attention backend for captures: ends a graph at each attention or recurrence, and begins the next graph.

    Args:
        out: [at least T, heads, dim], output buffer of attention.
        mixed: output buffers of recurrences.
        pool: memory pool of the graphs; None to run without capturing.
        stores: the graphs store keys and values; if not, attention gets them.
    """

    def __init__(
        self, backend: FlashInferBackend, out: torch.Tensor, mixed: _MixedBuffers, pool: Any, *, stores: bool
    ) -> None:
        self.pieces: list[_Piece] = []
        self._stores = stores
        self._backend, self._out, self._mixed, self._pool = backend, out, mixed, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self) -> None:
        self._graph = begin_capture(self._pool)

    def end(self) -> torch.cuda.CUDAGraph:
        assert self._graph is not None
        self._graph.capture_end()
        return self._graph

    def prepare(self, batch: ForwardBatch) -> None:
        """Do nothing: a capture has no rows to plan attention for."""

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._backend.slots(layer) if self._stores else None

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        self._backend.store(layer, k, v, batch)

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tokens = q.shape[0]
        self._split(layer, q, k, v, sinks)
        return self._out[:tokens].view(tokens, -1)

    def mix_states(self, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        self._split(layer, x, None, None)
        return self._mixed.of(layer, x.shape[0])

    def _split(
        self,
        layer: AttentionLayer | RecurrentLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """End the graph that computes these inputs, and begin the graph after the layer's attention or recurrence."""
        if self._graph is not None:
            graph = self.end()
            k, v = (None if x is None else _unowned(x) for x in (k, v))
            self.pieces.append(_Piece(graph, layer, _unowned(q), k, v, sinks))
            self.begin()


class _Memory:
    """A tensor's device memory, by address. The graph's memory pool keeps it allocated as long as the graph exists."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _unowned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same tensor without a reference to its memory, so that the pool may reuse the memory.

    The next graph writes the memory only after attention, or the rest of the step, has read this tensor. Without reuse,
    every layer and every bucket would keep memory of its own.
    """
    memory = torch.as_tensor(_Memory(tensor), device=tensor.device).view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())
