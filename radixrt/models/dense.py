"""`DenseFeedForward`: the feed-forward of every architecture without experts."""

from __future__ import annotations

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.models.decoder_layer import FeedForward, LayerContext
from radixrt.models.decoder_spec import LayerSpec


class DenseFeedForward(FeedForward):
    """A SiLU-gated MLP with fused gate and up projections, over this rank's columns."""

    def __init__(self, context: LayerContext, layer: LayerSpec) -> None:
        super().__init__()
        spec, taken, names = context.spec, context.part.intermediate, context.spec.names
        self._context = context
        gate, up, down = names.projections
        rows = [(name, spec.intermediate_size, [taken]) for name in (gate, up)]
        self.gate_up_proj = context.column_parallel(
            names.feed_forward, rows, spec.hidden_size, bias=spec.mlp_bias, gated=True
        )
        self.down_proj = context.row_parallel(
            f"{names.feed_forward}.{down}", spec.intermediate_size, taken, spec.hidden_size, bias=spec.mlp_bias
        )

    def forward(self, x: torch.Tensor) -> PartialSum:
        return self.down_proj.partial_sum(self.gate_up_proj.silu_and_mul(x), self._context.group)
