"""Checkpoints with quant_method "fp8": blocks of DeepSeek and Qwen3, or one scale for each weight.

Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import Units
from radixrt.layers.formats.per_layer import (
    HEAD,
    PerLayer,
    check_fields,
    is_within,
    module_names,
    num_layers,
    refused,
    tied_head,
)
from radixrt.layers.formats.stored_weight import Part, StoredWeight

METHOD = "fp8"
PLAIN_FIELDS = ("modules_to_not_convert", "ignored_layers", "ignored_modules")
FIELDS = {
    "quant_method", "activation_scheme", "fmt", "scale_fmt", "weight_block_size", "kv_cache_scheme", "dequantize",
    "weight_per_tensor", "act_per_tensor", *PLAIN_FIELDS,
}  # fmt: skip
CODES = Part("weight", Units(), dtype="float8_e4m3fn")


@dataclass(frozen=True)
class Fp8(PerLayer):
    """All linear layers and experts but some are e4m3 numbers with scales of one kind; the output head is plain.

    Attributes:
        weight: how they are stored.
        excluded: modules that are not quantized, by paths, or ends of paths, of the modules or of what contains them.
    """

    weight: StoredWeight
    excluded: frozenset[str]

    def configured(self, path: str) -> StoredWeight | None:
        return None if path == HEAD or is_within(path, self.excluded) else self.weight


def read_fp8(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read a quantization_config of e4m3 weights.

    Args:
        config: config.json.

    Raises:
        ModelLoadError: a field is malformed or not supported; names it.
    """
    quantization = config["quantization_config"]
    check_fields(quantization, FIELDS, METHOD)
    if quantization.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise refused(f"fmt {quantization['fmt']!r} is not supported", "e4m3")
    block = quantization.get("weight_block_size")
    if block is None:
        scales = Part("weight_scale", Units(None, None))
    elif isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        scales = Part("weight_scale_inv", Units(*block))
    else:
        raise refused(f"weight_block_size must be two positive numbers, not {block!r}")
    excluded = frozenset(module_names(quantization, *PLAIN_FIELDS))
    return Fp8(tied_head(config), num_layers(config), StoredWeight("e4m3", CODES, scales), excluded)
