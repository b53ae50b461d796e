"""Activations of gated feed-forward layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for a fused projection [T, 2 * n] of gate, then up -> [T, n]."""
    size = gate_up.shape[-1] // 2
    return F.silu(gate_up[:, :size]).mul_(gate_up[:, size:])
