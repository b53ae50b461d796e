"""`DenseFeedForward`: the feed-forward of every architecture without experts."""

from __future__ import annotations

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.linear import Linear
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

    @property
    def reader(self) -> Linear:
        return self.gate_up_proj

    def forward(self, x: Activations) -> PartialSum:
        inner = self.gate_up_proj.silu_and_mul(x, reader=self.down_proj)
        return self.down_proj.partial_sum(inner, self._context.group)
