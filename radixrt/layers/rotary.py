"""Rotary position embedding (Su et al., arXiv 2104.09864): its parameters in config.json, and its table.

Importing this module imports no torch: config.json is read in processes that have no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
}  # fmt: skip
_MEANINGLESS_KEYS = {"original_max_position_embeddings", "factor"}
"""Keys that some files have although their kind does not read them, in transformers neither."""


@dataclass(frozen=True)
class RopeSpec:
    """Parameters of a rotary embedding.

    Attributes:
        factor: read by every kind but "default".
        low_freq_factor, high_freq_factor: read by "llama3".
        original_context_length: read by "llama3" and "yarn".
        beta_fast, beta_slow: of "yarn": rotations within the original context length from which on a frequency is
            kept, and up to which it is divided by the factor; those between are interpolated.
        truncate: of "yarn": whether the bounds between which frequencies are interpolated are whole numbers.
        attention_factor: factor of every cos and sin; 1 but for "yarn".
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


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
    unknown = set(params) - _COMMON_KEYS - _KEYS[kind] - _MEANINGLESS_KEYS
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
    if kind == "yarn":
        return _parse_yarn(float(theta), config, params, source, number)
    return RopeSpec(
        float(theta),
        "llama3",
        number("factor"),
        number("low_freq_factor"),
        number("high_freq_factor"),
        int(number("original_max_position_embeddings")),
    )


def _parse_yarn(
    theta: float, config: Mapping[str, Any], params: Mapping[str, Any], source: str, number: Callable[[str], float]
) -> RopeSpec:
    """Read YaRN's parameters, with transformers' defaults for those that are absent or null."""

    def optional(name: str, default: float) -> float:
        return default if params.get(name) in (None, 0) else number(name)

    original = int(number("original_max_position_embeddings"))
    length = config.get("max_position_embeddings")
    factor = optional("factor", length / original if isinstance(length, int) else 1.0)
    truncate = params.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ModelLoadError(f"config.json: {source}: truncate must be true or false, not {truncate!r}")
    mscale, of_all = optional("mscale", 0.0), optional("mscale_all_dim", 0.0)
    scaled = _yarn_scale(factor, mscale) / _yarn_scale(factor, of_all) if mscale and of_all else _yarn_scale(factor)
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original_context_length=original,
        beta_fast=optional("beta_fast", 32.0),
        beta_slow=optional("beta_slow", 1.0),
        truncate=truncate,
        attention_factor=optional("attention_factor", scaled),
    )


def _yarn_scale(factor: float, scale: float = 1.0) -> float:
    """Return the factor by which YaRN scales cos and sin, instead of the softmax's temperature."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Return float32 [head_dim / 2], computed by the operations that transformers uses, in their order."""
    import torch

    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inv_freq / rope.factor
    if rope.kind == "llama3":
        return _llama3_scaled(inv_freq, rope)
    if rope.kind == "yarn":
        return _yarn_scaled(rope, head_dim)
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


def _yarn_scaled(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Divide low frequencies by the factor, keep high ones, and interpolate between (YaRN, arXiv 2309.00071)."""
    import torch

    def dimension(rotations: float) -> float:
        """Dimension that makes so many rotations within the original context length."""
        turns = rope.original_context_length / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high = high + 0.001 if low == high else high
    powers = rope.theta ** (torch.arange(0, head_dim, 2).to(torch.float32) / head_dim)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept


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
    cos, sin = ((values * rope.attention_factor).to(dtype) for values in (angles.cos(), angles.sin()))
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
