"""The small operations between matrix products, by Triton kernels."""

from __future__ import annotations

import torch

from radixrt.attention.base import AttentionLayer
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
        from radixrt.kernels.triton import activation, heads, norm

        self._activation, self._heads, self._norm = activation, heads, norm
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
