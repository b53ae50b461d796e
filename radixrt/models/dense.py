"""`DenseFeedForward`: the feed-forward of every architecture without experts."""

from __future__ import annotations

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.models.decoder_layer import FeedForward, LayerContext
from radixrt.models.decoder_spec import LayerSpec
from radixrt.models.loading.checkpoint import ParameterSources, column_parallel, row_parallel


class DenseFeedForward(FeedForward):
    """A SiLU-gated MLP with fused gate and up projections, over this rank's columns."""

    def __init__(self, context: LayerContext, layer: LayerSpec) -> None:
        super().__init__()
        spec, columns = context.spec, len(context.part.intermediate)
        self._context = context
        self.gate_up_proj = context.linear(spec.hidden_size, 2 * columns, spec.mlp_bias, gated=True)
        self.down_proj = context.linear(columns, spec.hidden_size, spec.mlp_bias)

    def forward(self, x: torch.Tensor) -> PartialSum:
        return self.down_proj.partial_sum(self.gate_up_proj.silu_and_mul(x), self._context.group)

    def checkpoint_tensors(self, prefix: str) -> ParameterSources:
        part, names = self._context.part, self._context.spec.names
        prefix, (gate, up, down) = f"{prefix}.{names.feed_forward}", names.projections
        columns = (self._context.spec.intermediate_size, part.intermediate)
        return {
            **column_parallel(self.gate_up_proj, "gate_up_proj", prefix, {gate: columns, up: columns}),
            **row_parallel(self.down_proj, "down_proj", prefix, columns, part.rank, name=down),
        }
