"""`Mxfp4Experts`: the gated MLPs of a mixture of experts, with their weights as MXFP4 numbers."""

from __future__ import annotations

import torch
from torch import nn

from radixrt.kernels.mxfp4_weights import GROUP, Mxfp4Weights, scale_columns
from radixrt.layers.linear import meta_parameter
from radixrt.layers.ops import LayerOps
from radixrt.layers.swiglu import BiasedSwiGLU, ClampedSwiGLU


class Mxfp4Experts(nn.Module):
    """`FusedExperts` with biases, whose weights take 17 bits for four numbers. Kernels dequantize them in registers and
    multiply in the dtype of activations (`LayerOps.run_mxfp4_experts`).

    Args:
        hidden_size, intermediate_size: of one expert, on this rank; multiples of 32.

    Attributes:
        gate_up_proj, gate_up_scales: codes and scales of `Mxfp4Weights`, for [E, 2 * intermediate_size, hidden_size]:
            rows of gate, then those of up.
        down_proj, down_scales: for [E, hidden_size, intermediate_size].
        gate_up_bias, down_bias: float32 [E, 2 * intermediate_size] and [E, hidden_size].
    """

    def __init__(
        self, num_experts: int, hidden_size: int, intermediate_size: int, ops: LayerOps, swiglu: ClampedSwiGLU
    ) -> None:
        super().__init__()
        self._ops, self._swiglu = ops, swiglu
        rows = 2 * intermediate_size
        assert hidden_size % GROUP == intermediate_size % GROUP == 0
        self.gate_up_proj = meta_parameter(num_experts, rows, hidden_size // 2, dtype=torch.uint8)
        self.gate_up_scales = meta_parameter(num_experts, rows, scale_columns(hidden_size), dtype=torch.uint8)
        self.down_proj = meta_parameter(num_experts, hidden_size, intermediate_size // 2, dtype=torch.uint8)
        self.down_scales = meta_parameter(num_experts, hidden_size, scale_columns(intermediate_size), dtype=torch.uint8)
        self.gate_up_bias = meta_parameter(num_experts, rows, dtype=torch.float32)
        self.down_bias = meta_parameter(num_experts, hidden_size, dtype=torch.float32)

    def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As `FusedExperts.forward`."""
        gate_up = Mxfp4Weights(self.gate_up_proj, self.gate_up_scales)
        down = Mxfp4Weights(self.down_proj, self.down_scales)
        biased = BiasedSwiGLU(self._swiglu, self.gate_up_bias, self.down_bias)
        return self._ops.run_mxfp4_experts(x, experts, weights, gate_up, down, biased)
