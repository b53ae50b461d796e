"""`CpuGraphRunner`: decode steps on a CPU as recorded calls of the compiled kernels.

A decode step of a small model is a few hundred calls of a few microseconds, so that the interpreter between the calls
takes a fifth of the step. The calls of a step with so many rows differ from step to step in a few arguments alone: the
first such step is executed and recorded, and later ones change these arguments and make the calls from a list. The
embedding, the output head and sampling are not recorded.

A step is recorded only if its layers do nothing but call kernels: any other operation of torch, which would not be
replayed, ends the recording, and steps with so many rows stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from radixrt.attention.base import AttentionBackend
from radixrt.attention.cpu import CpuBackend, RecordedAttention
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode
from radixrt.kernels.build import load_kernels
from radixrt.kernels.compiled import CannotRecord, Recording
from radixrt.layers.linear import Linear
from radixrt.models.decoder import Decoder
from radixrt.models.registry import Model

logger = logging.getLogger(__name__)

MAX_ROWS = 64
"""Rows of the largest recorded step. With more rows the kernels take much longer than the interpreter."""
RECORD_AT_STEP = 2
"""Steps with so many rows until one is recorded: recording takes about as long as two more steps."""

_aten = torch.ops.aten
ALLOCATIONS = {_aten.empty.memory_format, _aten.new_empty.default, _aten.empty_like.default}
VIEWS = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.alias.default,
    _aten.detach.default,
    _aten.as_strided.default,
    _aten.unsqueeze.default,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
}
"""Operations without work on the data, which a replay may omit."""


def create_cpu_graphs(
    model: Model, attention: AttentionBackend, kernel_cache: Path, *, ranks: int
) -> CpuGraphRunner | None:
    """Return a runner of recorded steps; None for a model or a layout whose steps are not recorded."""
    if not isinstance(model, Decoder) or not isinstance(attention, CpuBackend) or model.states or ranks > 1:
        return None
    if not all(module.is_compiled for module in model.layers.modules() if isinstance(module, Linear)):
        return None
    return CpuGraphRunner(model, attention, kernel_cache)


class CpuGraphRunner:
    """Records and replays decode steps; see the module's docstring."""

    def __init__(self, model: Decoder, attention: CpuBackend, kernel_cache: Path) -> None:
        self._model, self._attention = model, attention
        self._library = load_kernels(kernel_cache)
        self._steps = [0] * (MAX_ROWS + 1)
        self._graphs: dict[int, _Graph | None] = {}

    def forward(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Run the layers of a batch that the attention backend has been prepared for.

        Returns:
            As `Decoder.forward`; None if the caller must run the step.
        """
        rows = batch.num_tokens
        if batch.mode is not ForwardMode.DECODE or batch.narrowed is not None or rows > MAX_ROWS:
            return None
        if rows in self._graphs:
            graph = self._graphs[rows]
            return None if graph is None else graph.replay(batch)
        self._steps[rows] += 1
        if self._steps[rows] < RECORD_AT_STEP:
            return None
        try:
            graph = _Graph(self._model, self._attention, Recording(self._library), batch)
        except CannotRecord as reason:
            logger.debug("decode steps of %d rows are not recorded: %s", rows, reason)
            graph = None
        self._graphs[rows] = graph
        return None if graph is None else graph.replay(batch)


class _Graph:
    """The recorded layers of a decode step.

    Raises:
        CannotRecord: the layers do more than to call kernels, or a replay has another result.
    """

    def __init__(self, model: Decoder, attention: CpuBackend, recording: Recording, batch: ForwardBatch) -> None:
        self._model, self._attention, self._recording = model, attention, recording
        self._memory = _StepMemory()
        self._residual = model.embed(batch.input_ids).clone()
        with recording, self._memory, _progress(model, self._memory.next_layer):
            self._hidden = model.run_layers(self._residual, None, batch.positions, batch, attention)
        self._calls_of = RecordedAttention(attention, recording, model.attention_layers)
        # Both tensors exist, so no other argument is an address of theirs.
        self._positions = np.nonzero(recording.args == batch.positions.data_ptr())
        self._slots = np.nonzero(recording.args == batch.out_cache_loc.data_ptr())
        expected = self._hidden.clone()
        # A kernel that was called without being recorded would be missing here.
        if not torch.equal(self.replay(batch), expected):
            raise CannotRecord("the replayed step has another result")

    def replay(self, batch: ForwardBatch) -> torch.Tensor:
        """Run the layers for another batch with as many rows; returns hidden states of their own memory."""
        args = self._recording.args
        args[self._positions] = batch.positions.data_ptr()
        args[self._slots] = batch.out_cache_loc.data_ptr()
        self._calls_of.set_step(batch)
        self._residual.copy_(self._model.embed(batch.input_ids))
        self._recording.replay()
        return self._hidden.clone()


@contextmanager
def _progress(model: Decoder, function: Callable[[], None]) -> Iterator[None]:
    """Make a model call another function after each layer, while the context lasts."""
    before, model.progress = model.progress, function
    try:
        yield
    finally:
        model.progress = before


class _StepMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the tensors that a recorded step allocates, and refuses operations that work on data.

    A layer gets the memory of the layer before the last one, so that a step uses little memory, which stays in the
    cache: of the layer before, the addend is still needed.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing here is ever compiled. Otherwise torch imports its compiler at the first recorded step,
        which takes more than a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: list[torch.Tensor] = []
        self._reused: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self._layer = self._count = 0

    def next_layer(self) -> None:
        """The allocations that follow are those of another layer."""
        self._layer, self._count = self._layer + 1, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ALLOCATIONS:
            return self._allocated(func(*args, **kwargs))
        if func in VIEWS:
            return func(*args, **kwargs)
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise CannotRecord(f"{func} is no kernel of radixrt")
        return result

    def _allocated(self, made: torch.Tensor) -> torch.Tensor:
        memory, place = self._reused[self._layer % 2], self._count
        self._count += 1
        if place < len(memory):
            earlier = memory[place]
            if earlier.shape == made.shape and earlier.dtype == made.dtype:
                return earlier
            memory[place] = made
        else:
            memory.append(made)
        self._kept.append(made)
        return made
