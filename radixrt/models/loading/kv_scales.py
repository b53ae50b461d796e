"""Scales of keys and values in a checkpoint, for keys and values of eight bits. Importing this module imports no torch.

A key is stored as key / scale. Scales are rounded up to powers of two, by which every division is exact, so that they
are folded into weights while a model loads: into the projections of values and outputs, and into the norms of queries
and keys, or into their projections. Kernels know nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from radixrt.errors import ModelLoadError

if TYPE_CHECKING:
    from radixrt.models.loading.weights import Checkpoint

SPELLINGS = (
    ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),  # ModelOpt
    ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),  # compressed-tensors
    ("self_attn.k_scale", "self_attn.v_scale"),  # compressed-tensors, later
    ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
    ("self_attn.k_cache.scale", "self_attn.v_cache.scale"),
    ("self_attn.kv_scale", "self_attn.kv_scale"),  # one for both
)
"""Names, in a decoder layer, of the scale of keys and of the scale of values."""

LIMIT = 2.0**32
"""Scales beyond it, or below its inverse, were not measured on any model."""
SCHEME_KEY, ALGORITHM_KEY = "kv_cache_scheme", "kv_cache_quant_algo"
MODELOPT_FILE = "hf_quant_config.json"


class LayerScales(NamedTuple):
    """Scales of the keys and values of a layer, powers of two."""

    key: float
    value: float


def scale_names(names: Collection[str], layer: int) -> tuple[str, str] | None:
    """Return the names of the scales of keys and of values of a decoder layer; None if a checkpoint has none.

    Args:
        names: of the checkpoint's tensors.

    Raises:
        ModelLoadError: one of the two is missing.
    """
    for spelling in SPELLINGS:
        key, value = (f"model.layers.{layer}.{name}" for name in spelling)
        if (key in names) != (value in names):
            there, missing = (key, value) if key in names else (value, key)
            raise ModelLoadError(f"the checkpoint has {there}, but no {missing}")
        if key in names:
            return key, value
    return None


def is_scale(name: str) -> bool:
    """Return whether a tensor of a checkpoint is a scale of keys or values."""
    return name.startswith("model.layers.") and name.endswith(_ENDINGS)


_ENDINGS = tuple(sorted({f".{name}" for spelling in SPELLINGS for name in spelling}))


def read_scales(checkpoint: Checkpoint, layer: int) -> LayerScales | None:
    """Read the scales of a decoder layer; None if the checkpoint has none.

    Raises:
        ModelLoadError: a scale is missing, or is no positive number; names the tensor.
    """
    found = scale_names(checkpoint.names, layer)
    return None if found is None else LayerScales(*(_read(checkpoint, name) for name in found))


def _read(checkpoint: Checkpoint, name: str) -> float:
    """Return a scale, rounded up to a power of two."""
    shape = checkpoint.shape(name)
    if math.prod(shape) != 1:
        raise ModelLoadError(
            f"{name} has shape {list(shape)}: a scale of keys or values must be one number for the layer; use"
            " --kv-cache-dtype model to ignore scales"
        )
    tensor = checkpoint.tensor(name)
    scale = float(tensor) if tensor.is_floating_point() else math.nan
    if not 1 / LIMIT <= scale <= LIMIT:  # NaN too
        raise ModelLoadError(
            f"{name} is {tensor.flatten()[0].item()} ({tensor.dtype}): a scale of keys or values must be a positive"
            " number; use --kv-cache-dtype model to ignore scales"
        )
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def wants_fp8(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None = None) -> bool:
    """Return whether a checkpoint says that its keys and values are made for float8 e4m3 with a scale for each layer.

    Args:
        config: config.json.
        modelopt: hf_quant_config.json, if there is one.
    """
    found = config.get("quantization_config")
    for said in (found, (modelopt or {}).get("quantization")):
        if not isinstance(said, Mapping):
            continue
        if str(said.get(ALGORITHM_KEY)).upper() == "FP8":
            return True
        scheme = said.get(SCHEME_KEY)
        if isinstance(scheme, Mapping) and _is_fp8(scheme):
            return True
    return False


def _is_fp8(scheme: Mapping[str, Any]) -> bool:
    """Return whether a kv_cache_scheme is that of one static float8 scale."""
    return (
        scheme.get("num_bits") == 8
        and scheme.get("type") == "float"
        and not scheme.get("dynamic")
        and scheme.get("strategy") in (None, "tensor")
    )


def says_fp8(folder: Path) -> bool:
    """Return `wants_fp8` of a model's folder.

    Raises:
        ModelLoadError: a file is malformed; names it.
    """
    from radixrt.models.config_fields import read_json_object

    modelopt = folder / MODELOPT_FILE
    return wants_fp8(
        read_json_object(folder / "config.json"), read_json_object(modelopt) if modelopt.is_file() else None
    )
