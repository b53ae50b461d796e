"""Checkpoints of NVIDIA's ModelOpt, by quantization_config or hf_quant_config.json. Imports no torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import Units
from radixrt.layers.formats.per_layer import (
    PerLayer,
    check_fields,
    module_names,
    num_layers,
    path_variants,
    refused,
    tied_head,
)
from radixrt.layers.formats.stored_weight import Part, StoredWeight

METHOD = "modelopt"
MIXED = "MIXED_PRECISION"
CODES = Part("weight", Units(), dtype="float8_e4m3fn")
BLOCK, NVFP4_GROUP = 128, 16
FIELDS = {
    "quant_method", "quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "ignore", "exclude_modules", "group_size",
    "config_groups", "producer", "quantized_layers", "quantization", "has_zero_point", "pre_quant_scale",
}  # fmt: skip


@dataclass(frozen=True)
class ModelOpt(PerLayer):
    """Linear layers and experts in one format, or, of mixed precision, the listed ones in a format each.

    Attributes:
        weight: how all are stored that are neither listed nor excluded; None for plain ones.
        listed: how others are stored, by their paths.
        excluded: modules that are not quantized, with wildcards.
    """

    weight: StoredWeight | None
    listed: tuple[tuple[str, StoredWeight], ...]
    excluded: tuple[str, ...]

    def configured(self, path: str) -> StoredWeight | None:
        names = path_variants(path)
        if self.listed:
            listed = _by_path(self.listed)
            return next((listed[name] for name in names if name in listed), None)
        pattern = _pattern(self.excluded)
        return None if any(pattern.match(name) for name in names) else self.weight


def read_modelopt(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read a quantization_config of ModelOpt, or the contents of its hf_quant_config.json in that place.

    Args:
        config: config.json.

    Raises:
        ModelLoadError: a field is missing, malformed or not supported; names it, and formats that are.
    """
    quantization = config["quantization_config"]
    check_fields(quantization, FIELDS, METHOD)
    if isinstance(quantization.get("quantization"), Mapping):
        quantization = quantization["quantization"]
        check_fields(quantization, FIELDS, METHOD)
    algorithm, group = quantization.get("quant_algo"), quantization.get("group_size")
    listed: tuple[tuple[str, StoredWeight], ...] = ()
    if algorithm == MIXED:
        layers = quantization.get("quantized_layers")
        if not isinstance(layers, Mapping) or not all(isinstance(each, Mapping) for each in layers.values()):
            raise refused(f"quantized_layers must give the quant_algo of modules, not {layers!r}")
        listed = tuple((path, _stored(each.get("quant_algo"), each.get("group_size"))) for path, each in layers.items())
    only_keys_and_values = algorithm is None and bool(quantization.get("kv_cache_quant_algo"))
    weight = None if listed or only_keys_and_values else _stored(algorithm, group)
    excluded = module_names(quantization, "exclude_modules", "ignore")
    return ModelOpt(tied_head(config), num_layers(config), weight, listed, excluded)


def _stored(algorithm: Any, group: Any) -> StoredWeight:
    if algorithm == "FP8":
        return StoredWeight("e4m3", CODES, Part("weight_scale", Units(None, None)))
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        return StoredWeight("e4m3", CODES, Part("weight_scale", Units(1, None)))
    if algorithm == "FP8_PB_WO":
        return StoredWeight("e4m3", CODES, Part("weight_scale", Units(BLOCK, BLOCK)))
    if algorithm == "NVFP4":
        return StoredWeight(
            "e2m1",
            Part("weight", Units(1, 2), dtype="uint8"),
            Part("weight_scale", Units(1, group or NVFP4_GROUP)),
            global_scale=Part("weight_scale_2", Units(None, None)),
        )
    raise refused(f"quant_algo {algorithm!r} is not supported", "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO or NVFP4")


@functools.lru_cache(maxsize=4)
def _by_path(listed: tuple[tuple[str, StoredWeight], ...]) -> dict[str, StoredWeight]:
    return dict(listed)


@functools.lru_cache(maxsize=4)
def _pattern(excluded: tuple[str, ...]) -> re.Pattern[str]:
    """Return the expression of modules that one of some wildcards names, or that are within such a module."""
    each = [translate(pattern) for name in excluded for pattern in (name, f"{name}.*")]
    return re.compile("|".join(each) or r"(?!)")
