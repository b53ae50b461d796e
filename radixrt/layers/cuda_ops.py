"""The operations of a decoder layer, by Triton kernels; products with more than a few rows are cuBLAS's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radixrt.attention.base import AttentionLayer
from radixrt.layers.linear import Linear
from radixrt.layers.ops import LayerOps, TorchOps


class CudaOps(LayerOps):
    """One launch for each operation. A shape or layout that a kernel does not take goes to the reference.

    Args:
        early: launch each kernel before the one before it has ended (CUDA's programmatic dependent launch, on sm_90 and
            later, in captured graphs too); it waits on the device for what that one writes.

    Raises:
        ImportError: triton is not installed.
    """

    def __init__(self, *, early: bool = False) -> None:
        # Here and not above: machines without triton import this module too.
        from radixrt.kernels.triton import activation, gemv, heads, norm

        self._activation, self._gemv, self._heads, self._norm = activation, gemv, heads, norm
        self._torch = TorchOps()
        self._early = early

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> torch.Tensor:
        if not self._norm.supports(residual, x, weight):
            return self._torch.add_rms_norm(residual, x, weight, eps, dtype)
        return self._norm.add_rms_norm(residual, x, weight, eps, dtype, self._early)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not gate_up.is_contiguous():
            return self._torch.silu_and_mul(gate_up)
        return self._activation.silu_and_mul(gate_up, self._early)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not self._takes(x, weight):
            return F.linear(x, weight, bias)
        return self._gemv.gemv(x, weight, bias, self._early)

    def gate_up_silu(self, x: torch.Tensor, gate_up: Linear) -> torch.Tensor:
        if gate_up.weight is None or not self._takes(x, gate_up.weight):
            return self.silu_and_mul(gate_up(x))
        return self._gemv.gate_up_silu(x, gate_up.weight, gate_up.bias, self._early)

    def _takes(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        return self._gemv.wins(x.shape[0], *weight.shape) and self._gemv.supports(x, weight)

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self._torch.rotate(heads, positions, table)

    def prepare_heads(
        self,
        qkv: torch.Tensor,
        layer: AttentionLayer,
        positions: torch.Tensor,
        table: torch.Tensor,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        pool: tuple[torch.Tensor, torch.Tensor] | None,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """As `LayerOps.prepare_heads`; q is contiguous, and k and v are stored if there is a pool."""
        if not self._heads.supports(qkv, table, q_weight, k_weight, pool):
            q, k, v = super().prepare_heads(qkv, layer, positions, table, q_weight, k_weight, eps, None, slots)
            return q.contiguous(), k, v
        return self._heads.prepare_heads(
            qkv, layer.num_heads, positions, table, q_weight, k_weight, eps, pool, slots, self._early
        )
