"""`ShortConv`: the gated short convolution of LFM2."""

from __future__ import annotations

import torch

from radixrt.attention.state_pool import LayerStates, StateShape
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.state_rows import StateRows
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.formats.checkpoint import CheckpointTensor, ParameterSources
from radixrt.layers.linear import Linear, meta_parameter
from radixrt.models.decoder_layer import LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec


class ShortConv(Mixer):
    """A causal convolution over this rank's channels, between two gates; see `RecurrenceOps.short_conv`."""

    def __init__(self, context: LayerContext, layer: LayerSpec, index: int) -> None:
        super().__init__()
        spec, channels = context.spec, len(context.part.channels)
        if spec.recurrent is None:
            raise ValueError("a layer has a short convolution, but the spec does not describe one")
        self._context, self._taps = context, spec.recurrent.taps
        self.state: StateShape = StateShape(index, channels, self._taps - 1, context.activation_dtype)
        self.mixed_features = channels
        hidden, taken = spec.hidden_size, context.part.channels
        blocks = [range(start + taken.start, start + taken.stop) for start in (0, hidden, 2 * hidden)]
        self.in_proj = context.column_parallel("conv", [("in_proj", 3 * hidden, blocks)], hidden)
        self.conv = meta_parameter(channels, self._taps, dtype=context.dtype)
        self.out_proj = context.row_parallel("conv.out_proj", hidden, taken, hidden)

    @property
    def reader(self) -> Linear:
        return self.in_proj

    def mix(self, x: Activations, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        mixed = inputs.attention.mix_states(self, self.in_proj(x), inputs.batch)
        return mixed if narrowed is None else mixed[inputs.batch.logits_index]

    def recur(self, x: torch.Tensor, states: LayerStates, rows: StateRows) -> torch.Tensor:
        """As `RecurrentLayer.recur`."""
        return self._context.ops.recurrence.short_conv(x, self.conv, states.conv, rows)

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return self.out_proj.partial_sum(mixed, self._context.group)

    def checkpoint_tensors(self) -> ParameterSources:
        shape, taken = (self._context.spec.hidden_size, 1, self._taps), self._context.part.channels
        return {"conv": (CheckpointTensor(f"{self._context.prefix}.conv.conv.weight", shape, 0, taken, len(taken)),)}
