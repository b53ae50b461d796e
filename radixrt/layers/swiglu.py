"""`ClampedSwiGLU` and `BiasedSwiGLU`: the gate of gpt-oss's experts. Importing this module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ClampedSwiGLU:
    """(up + 1) * gate * sigmoid(alpha * gate), with gate at most `limit`, and up between -limit and limit."""

    alpha: float
    limit: float

    def apply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * n] of gate, then up -> [T, n]."""
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * (gate * self.alpha).sigmoid())


@dataclass(frozen=True)
class BiasedSwiGLU:
    """Gate and biases of experts, which they apply beside their two matrix multiplications.

    Attributes:
        gate_up: float32 [E, 2 * n], added to gate, then up.
        down: float32 [E, hidden], added to the output.
    """

    swiglu: ClampedSwiGLU
    gate_up: torch.Tensor
    down: torch.Tensor
