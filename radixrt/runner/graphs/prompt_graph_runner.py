"""`PromptGraphRunner`: short steps with prompts as CUDA graphs, cut at every attention.

Launching such a step kernel by kernel takes the host longer than computing it takes the device: a few new tokens behind
a prefix that the cache has are what most calls of a program are. Between two attentions everything depends on the
number of tokens alone, so that is captured, in buckets; attention, whose work depends on the rows, is launched between
the graphs. Padding tokens read and write slot 0 alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.distributed.parallel import TPGroup
from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.forward_batch.forward_batch import BatchBuilder, ForwardBatch, ForwardMode, bucket_for, token_buckets
from radixrt.models.registry import Model
from radixrt.runner.graphs.captures import CAPTURE_AT_STEP, Captures, begin_capture

if TYPE_CHECKING:
    from radixrt.attention.flashinfer import FlashInferBackend


@dataclass(frozen=True)
class _Piece:
    """What comes before one attention.

    Attributes:
        graph: ends with the attention's inputs.
        layer: whose attention it is.
        q, k, v: its inputs, memory of the graphs; no k and v where they have been stored.
    """

    graph: torch.cuda.CUDAGraph
    layer: AttentionLayer
    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None


@dataclass(frozen=True)
class _Captured:
    """One bucket: its inputs, the pieces in order, what comes behind the last attention, and the hidden states."""

    batch: ForwardBatch
    pieces: list[_Piece]
    end: torch.cuda.CUDAGraph
    hidden: torch.Tensor


class PromptGraphRunner:
    """See the module's docstring.

    Args:
        max_tokens: of a step.
        group: the ranks that share the model. All of them capture the same buckets at the same places among their
            steps, because that follows from the steps alone.
    """

    def __init__(
        self, model: Model, attention: FlashInferBackend, builder: BatchBuilder, *, max_tokens: int,
        dtype: torch.dtype, device: torch.device, group: TPGroup,
    ) -> None:  # fmt: skip
        self._model, self._attention, self._builder = model, attention, builder
        self._device = device
        # Below it no step has a part that reads keys and values as they come, so all are stored within the graphs.
        self._buckets = token_buckets(min(max_tokens, MIN_FRESH_TOKENS - 1))
        self._captures: Captures[int, _Captured] = Captures(
            "short prompts", lambda tokens: f"the graphs for {tokens} prompt tokens", alone=group.size == 1
        )  # fmt: skip
        self._pool = torch.cuda.graph_pool_handle()
        layer = model.attention_layers[0]
        # Of all buckets and layers: each is read before the next attention writes. Numbers from the first step on,
        # because padding tokens go through the layers too, and leave what comes of it in slot 0.
        self._out = torch.zeros(self._buckets[-1], layer.num_heads, layer.head_dim, dtype=dtype, device=device)

    def capture_next(self) -> bool:
        """Capture one bucket more, first those that steps have asked for, then small ones; False if none is left."""
        return self._captures.make_next(self._buckets, self._capture)

    def has(self, tokens: int) -> bool:
        """Whether there are graphs for a step of so many tokens; they compute all of its layers whole."""
        bucket = bucket_for(tokens, self._buckets)
        return bucket is not None and self._captures.get(bucket) is not None

    def forward(self, batch: ForwardBatch) -> torch.Tensor | None:
        """The final hidden states [T, hidden] of an EXTEND step, good until the next one.

        None if no graph fits the step, or none is captured yet; nothing has been done then.
        """
        tokens = bucket_for(batch.num_tokens, self._buckets)
        if tokens is None or batch.mode is not ForwardMode.EXTEND:
            return None
        captured = self._captures.get(tokens)
        if captured is None and self._captures.want(tokens) >= CAPTURE_AT_STEP:
            captured = self._captures.make(tokens, self._capture)
        return None if captured is None else self._replay(captured, replace(batch, narrowed=None))

    def _replay(self, captured: _Captured, batch: ForwardBatch) -> torch.Tensor:
        count, inputs = batch.num_tokens, captured.batch
        for target, source in (
            (inputs.input_ids, batch.input_ids), (inputs.positions, batch.positions),
            (inputs.out_cache_loc, batch.out_cache_loc),
        ):  # fmt: skip
            target[:count] = source
            target[count:] = 0
        self._attention.prepare(batch)
        out = self._out[:count]
        for piece in captured.pieces:
            piece.graph.replay()
            k, v = (None if x is None else x[:count] for x in (piece.k, piece.v))
            self._attention.attend_into(piece.layer, piece.q[:count], k, v, batch, out)
        captured.end.replay()
        return captured.hidden[:count]

    # --- capture ---

    def _capture(self, tokens: int) -> _Captured:
        batch = self._builder.build_dummy_extend(tokens)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            # Once for everything that happens only once: kernels are compiled, workspaces made.
            self._model.forward(batch.input_ids, batch.positions, batch, _Recorder(self._attention, self._out, None))
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(stream):
            recorder = _Recorder(self._attention, self._out, self._pool)
            recorder.begin()
            try:
                hidden = self._model.forward(batch.input_ids, batch.positions, batch, recorder)
            finally:
                end = recorder.end()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return _Captured(batch, recorder.pieces, end, hidden)


class _Recorder(AttentionBackend):
    """Stands in for the backend while a forward is captured: ends a graph at each attention, and begins the next.

    Args:
        out: [at least T, heads, dim], where attention leaves its results.
        pool: of the graphs' memory; None to run without capturing.
    """

    def __init__(self, backend: FlashInferBackend, out: torch.Tensor, pool: Any) -> None:
        self.pieces: list[_Piece] = []
        self._backend, self._out, self._pool = backend, out, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self) -> None:
        self._graph = begin_capture(self._pool)

    def end(self) -> torch.cuda.CUDAGraph:
        assert self._graph is not None
        self._graph.capture_end()
        return self._graph

    def prepare(self, batch: ForwardBatch) -> None:
        """Nothing: no rows are attended to."""

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._backend.slots(layer)

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        self._backend.store(layer, k, v, batch)

    def attend(
        self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
        batch: ForwardBatch,
    ) -> torch.Tensor:  # fmt: skip
        tokens = q.shape[0]
        if self._graph is not None:
            graph = self.end()
            k, v = (None if x is None else _unowned(x) for x in (k, v))
            self.pieces.append(_Piece(graph, layer, _unowned(q), k, v))
            self.begin()
        return self._out[:tokens].view(tokens, -1)


class _Memory:
    """A tensor's memory on the device, by address: as long as a graph writes it, the graph's pool keeps it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (tensor.data_ptr(), False), "version": 3,
        }  # fmt: skip


def _unowned(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, without keeping its memory from those that the pool gives it to later: these are written by the
    next graph, and attention has read this one by then. To keep it would take as much for every layer."""
    memory = torch.as_tensor(_Memory(tensor), device=tensor.device).view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())
