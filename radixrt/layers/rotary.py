"""Rotary position embedding (Su et al., arXiv 2104.09864): its parameters in config.json, and its table.

Importing this module imports no torch: config.json is read in processes that have no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from radixrt.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

DEFAULT_THETA = 10000.0
"""The value that transformers assumes where config.json has no rope_theta."""

_COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
_MEANINGLESS_KEYS = {"original_max_position_embeddings", "factor"}
"""Keys that some files have although their kind does not read them, in transformers neither."""


@dataclass(frozen=True)
class RopeSpec:
    """Parameters of a rotary embedding. Only "llama3" reads the last three fields; "linear" reads factor too."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 0


def parse_rope(config: Mapping[str, Any], *, default_theta: float = DEFAULT_THETA) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before).

    Raises:
        ModelLoadError: a kind or parameter is not supported, or one is missing; the message names it.
    """
    source = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    params = config.get(source) or {}
    if not isinstance(params, Mapping) or any(isinstance(value, Mapping) for value in params.values()):
        raise ModelLoadError(f"config.json: {source} must be a flat object, not {params!r}")
    theta = params.get("rope_theta", config.get("rope_theta", default_theta))
    kind = params.get("rope_type", params.get("type", "default"))
    rotary_part = params.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if rotary_part not in (None, 1.0):
        raise ModelLoadError(
            f"config.json: partial_rotary_factor {rotary_part!r} is not supported for this architecture"
        )
    if kind not in _KEYS:
        raise ModelLoadError(f"config.json: rope_type {kind!r} is not supported; {', '.join(_KEYS)} are")
    unknown = set(params) - _COMMON_KEYS - _KEYS[kind] - (_MEANINGLESS_KEYS if kind != "llama3" else set())
    if unknown:
        raise ModelLoadError(f"config.json: {source}: {', '.join(sorted(unknown))} is not supported for {kind!r}")

    def number(name: str) -> float:
        value = params.get(name)
        if name == "original_max_position_embeddings":  # in transformers' order
            value = config.get(name) or value or config.get("max_position_embeddings")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise ModelLoadError(f"config.json: {source}: {name} must be a positive number, not {value!r}")
        return float(value)

    if not isinstance(theta, (int, float)) or isinstance(theta, bool) or theta <= 0:
        raise ModelLoadError(f"config.json: rope_theta must be a positive number, not {theta!r}")
    if kind == "default":
        return RopeSpec(float(theta))
    if kind == "linear":
        return RopeSpec(float(theta), "linear", number("factor"))
    return RopeSpec(
        float(theta),
        "llama3",
        number("factor"),
        number("low_freq_factor"),
        number("high_freq_factor"),
        int(number("original_max_position_embeddings")),
    )


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Return float32 [head_dim / 2], computed by the operations that transformers uses, in their order."""
    import torch

    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inv_freq / rope.factor
    if rope.kind == "llama3":
        return _llama3_scaled(inv_freq, rope)
    return inv_freq


def _llama3_scaled(inv_freq: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Divide long wavelengths by the factor, keep short ones, and interpolate between (Llama 3.1)."""
    import torch

    context = rope.original_context_length
    wavelen = 2 * math.pi / inv_freq
    low, high = context / rope.low_freq_factor, context / rope.high_freq_factor
    scaled = torch.where(wavelen > low, inv_freq / rope.factor, inv_freq)
    smooth = (context / wavelen - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    interpolated = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = ~(wavelen < high) & ~(wavelen > low)
    return torch.where(between, interpolated, scaled)


def rotary_table(
    rope: RopeSpec, head_dim: int, context_length: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Compute the cos and sin of every position: [context_length, 2, head_dim].

    A position has cos, then sin with its first half negated: the rotation, with halves as in transformers' Llama, is
    x * cos + swap_halves(x) * sin, without a negation in each layer.
    """
    import torch

    inv_freq = inverse_frequencies(rope, head_dim).to(device)
    angles = torch.outer(torch.arange(context_length, dtype=torch.float32, device=device), inv_freq)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
