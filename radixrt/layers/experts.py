"""`FusedExperts`: the gated MLPs of a mixture of experts, with the weights of all in two parameters."""

from __future__ import annotations

import torch
from torch import nn

from radixrt.layers.linear import meta_parameter
from radixrt.layers.ops import LayerOps
from radixrt.layers.swiglu import BiasedSwiGLU, ClampedSwiGLU


class FusedExperts(nn.Module):
    """E MLPs, of which a token is computed by a few: down(silu(gate(x)) * up(x)), without biases, or with biases and
    a clamped gate.

    Kernels compute all of them on CUDA (`LayerOps.run_experts`), and on a CPU in bfloat16
    (`LayerOps.run_packed_experts`). Elsewhere they are computed one by one.

    Args:
        hidden_size, intermediate_size: of one expert, on this rank.
        dtype: of the weights.
        swiglu: of experts with biases; None for SiLU-gated ones without.

    Attributes:
        gate_up_proj: [E, 2 * intermediate_size, hidden_size]: rows of gate, then those of up.
        down_proj: [E, hidden_size, intermediate_size].
        gate_up_bias, down_bias: float32 [E, 2 * intermediate_size] and [E, hidden_size]; None without biases.
    """

    def __init__(
        self, num_experts: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype, ops: LayerOps,
        swiglu: ClampedSwiGLU | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._ops = ops
        self.gate_up_proj = meta_parameter(num_experts, 2 * intermediate_size, hidden_size, dtype=dtype)
        self.down_proj = meta_parameter(num_experts, hidden_size, intermediate_size, dtype=dtype)
        self._swiglu = swiglu
        self.gate_up_bias = self.down_bias = None
        if swiglu is not None:
            self.gate_up_bias = meta_parameter(num_experts, 2 * intermediate_size, dtype=torch.float32)
            self.down_bias = meta_parameter(num_experts, hidden_size, dtype=torch.float32)
        self._gate_up_panels = self._down_panels = False

    def process_weights_after_loading(self) -> None:
        """Lay the weights out for `LayerOps.gated_panels` and `linear_panels`, in place, where there is a kernel."""
        packs = (self.gate_up_proj, True), (self.down_proj, False)
        if self._swiglu is not None and any(
            self._ops.pack_panels(weights[0], gated=gated) is None for weights, gated in packs
        ):
            return  # with biases, experts that are computed one by one have plain weights
        self._gate_up_panels, self._down_panels = (self._pack(weights, gated=gated) for weights, gated in packs)

    def _pack(self, weights: torch.Tensor, *, gated: bool) -> bool:
        """Replace each expert's weight by its panels; return False if its shape or dtype has none."""
        for weight in weights:
            panels = self._ops.pack_panels(weight, gated=gated)
            if panels is None:
                return False
            weight.copy_(panels)
        return True

    def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the outputs of each token's experts.

        Args:
            x: [T, hidden_size].
            experts: integers [T, k], different ones for a token.
            weights: float32 [T, k].

        Returns:
            [T, hidden_size] in the dtype of x; added up in float32, in an order that depends on the token alone.
        """
        if self._gate_up_panels and self._down_panels:
            return self._ops.run_packed_experts(x, experts, weights, self.gate_up_proj, self.down_proj, self._biased)
        out = self._ops.run_experts(x, experts, weights, self.gate_up_proj, self.down_proj, self._biased)
        return self._run_one_by_one(x, experts, weights) if out is None else out

    @property
    def _biased(self) -> BiasedSwiGLU | None:
        if self._swiglu is None or self.gate_up_bias is None or self.down_bias is None:
            return None
        return BiasedSwiGLU(self._swiglu, self.gate_up_bias, self.down_bias)

    def _run_one_by_one(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As `forward`, in the order of the experts' indices."""
        chosen = experts.flatten()
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.gate_up_proj.shape[0]).tolist()
        tokens, scales = order // experts.shape[1], weights.flatten()[order, None]
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            rows = tokens[start : start + count]
            out = self._run_expert(expert, x[rows])
            total.index_add_(0, rows, out.float() * scales[start : start + count])
            start += count
        return total.to(x.dtype)

    def _run_expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> [n, hidden_size], with the rounding of `UnquantizedLinearMethod`."""
        ops, gate_up, down = self._ops, self.gate_up_proj[expert], self.down_proj[expert]
        biased = self._biased
        if biased is not None:
            inner = biased.swiglu.apply(ops.linear(x.to(gate_up.dtype), gate_up, None) + biased.gate_up[expert])
            return ops.linear(inner.to(down.dtype), down, None) + biased.down[expert]
        if self._gate_up_panels:
            inner = ops.gated_panels(x, gate_up)
        elif x.dtype == gate_up.dtype:
            inner = ops.linear_silu_and_mul(x, gate_up, None)
        else:
            inner = ops.silu_and_mul(ops.linear(x.to(gate_up.dtype), gate_up, None).to(x.dtype))
        if self._down_panels:
            return ops.linear_panels(inner, down, None)
        return ops.linear(inner.to(down.dtype), down, None).to(x.dtype)
