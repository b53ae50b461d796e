"""Rotary position embedding (Su et al., arXiv 2104.09864), with halves rotated as in transformers' Llama."""

from __future__ import annotations

import math

import torch

from radixrt.layers.rope_config import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2], step by step as transformers computes them."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inv_freq / rope.factor
    if rope.kind == "llama3":
        return _llama3_scaled(inv_freq, rope)
    return inv_freq


def _llama3_scaled(inv_freq: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long wavelengths divided by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    context = rope.original_context_length
    wavelen = 2 * math.pi / inv_freq
    low, high = context / rope.low_freq_factor, context / rope.high_freq_factor
    scaled = torch.where(wavelen > low, inv_freq / rope.factor, inv_freq)
    smooth = (context / wavelen - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    interpolated = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = ~(wavelen < high) & ~(wavelen > low)
    return torch.where(between, interpolated, scaled)


class RotaryTable:
    """cos and sin of every position, computed once.

    `table` is [context_length, 2, head_dim]: cos, then sin with its first half negated, so that the rotation is
    x * cos + swap_halves(x) * sin, without a negation at each layer.
    """

    def __init__(
        self, rope: RopeSpec, head_dim: int, context_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        inv_freq = inverse_frequencies(rope, head_dim).to(device)
        angles = torch.outer(torch.arange(context_length, dtype=torch.float32, device=device), inv_freq)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
