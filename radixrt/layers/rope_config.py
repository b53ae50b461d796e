"""`RopeSpec`: the rotary embedding that a config.json describes, in the spelling of transformers 4 or 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from radixrt.errors import ModelLoadError

DEFAULT_THETA = 10000.0
"""What transformers assumes where config.json names no rope_theta."""

_COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
_MEANINGLESS_KEYS = {"original_max_position_embeddings", "factor"}
"""Written into some files of kinds that do not read them, in transformers neither."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding. The last three fields mean something for "llama3" alone, factor for "linear" too."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 0


def parse_rope(config: Mapping[str, Any]) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before).

    Raises:
        ModelLoadError: a kind or parameter that is not supported, or one that is missing; names it.
    """
    source = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    params = config.get(source) or {}
    if not isinstance(params, Mapping) or any(isinstance(value, Mapping) for value in params.values()):
        raise ModelLoadError(f"config.json: {source} must be a flat object, not {params!r}")
    theta = params.get("rope_theta", config.get("rope_theta", DEFAULT_THETA))
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
