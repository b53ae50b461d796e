"""`ShortConv`: the gated short convolution of LFM2."""

from __future__ import annotations

import torch

from radixrt.attention.state_pool import LayerStates, StateShape
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.linear import meta_parameter
from radixrt.models.decoder_layer import LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec
from radixrt.models.loading.checkpoint import CheckpointTensor, ParameterSources, column_slices, row_parallel


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
        self.in_proj = context.linear(spec.hidden_size, 3 * channels, bias=False)
        self.conv = meta_parameter(channels, self._taps, dtype=context.dtype)
        self.out_proj = context.linear(channels, spec.hidden_size, bias=False)

    def mix(self, x: torch.Tensor, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        mixed = inputs.attention.mix_states(self, self.in_proj(x), inputs.batch)
        return mixed if narrowed is None else mixed[inputs.batch.logits_index]

    def recur(self, x: torch.Tensor, states: LayerStates, rows: StateRows) -> torch.Tensor:
        """As `RecurrentLayer.recur`."""
        return self._context.ops.recurrence.short_conv(x, self.conv, states.conv, rows)

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return self.out_proj.partial_sum(mixed, self._context.group)

    def checkpoint_tensors(self, prefix: str) -> ParameterSources:
        hidden, part = self._context.spec.hidden_size, self._context.part
        prefix += ".conv"
        blocks = [range(start + part.channels.start, start + part.channels.stop) for start in (0, hidden, 2 * hidden)]
        conv = CheckpointTensor(f"{prefix}.conv.weight", (hidden, 1, self._taps), 0, part.channels, len(part.channels))
        return {
            **column_slices(self.in_proj, "in_proj", prefix, [("in_proj", 3 * hidden, blocks)]),
            **row_parallel(self.out_proj, "out_proj", prefix, (hidden, part.channels), part.rank),
            "conv": (conv,),
        }
