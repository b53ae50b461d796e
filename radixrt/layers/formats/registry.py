"""The formats of quantized checkpoints, by the quant_method of their quantization_config. Imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import Quantization

READERS = {
    "awq": "radixrt.layers.formats.awq:read_awq",
    "compressed-tensors": "radixrt.layers.formats.compressed_tensors:read_compressed_tensors",
    "fp8": "radixrt.layers.formats.fp8:read_fp8",
    "gguf": "radixrt.layers.formats.gguf:read_gguf",
    "gptq": "radixrt.layers.formats.gptq:read_gptq",
    "modelopt": "radixrt.layers.formats.modelopt:read_modelopt",
    "mxfp4": "radixrt.layers.formats.mxfp4:read_mxfp4",
}
"""Module and function that reads the config.json of a quantized checkpoint, by its quant_method."""

EIGHT_BITS, FOUR_BITS = (
    "fp8 or compressed-tensors (float-quantized)",
    "compressed-tensors (pack-quantized), awq or gptq",
)
NEAREST = {
    **dict.fromkeys(("fbgemm_fp8", "modelopt_fp8", "ptpc_fp8", "fp_quant", "finegrained_fp8", "torchao"), EIGHT_BITS),
    **dict.fromkeys(("quanto", "eetq", "w8a8_int8", "experts_int8"), "compressed-tensors (int-quantized)"),
    "modelopt_fp4": "modelopt with quant_algo NVFP4",
}
"""Supported methods that are nearest to methods that are not, four bits elsewhere."""


def read_quantization(config: Mapping[str, Any], *, decodes: bool, stacked_experts: bool) -> Quantization | None:
    """Read the quantization_config of config.json; None for a checkpoint of plain weights.

    Args:
        decodes: radixrt's decoder runs the model.
        stacked_experts: a checkpoint of the architecture has the weights of a layer's experts in stacked tensors.

    Raises:
        ModelLoadError: the quantization is not supported; names it, or the field.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return None
    method = str(quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization)
    if not isinstance(quantization, Mapping) or not decodes:
        raise ModelLoadError(f"config.json: quantization_config ({method}) is not supported; use unquantized weights")
    if method not in READERS:
        nearest = EIGHT_BITS if quantization.get("load_in_8bit") else NEAREST.get(method, FOUR_BITS)
        raise ModelLoadError(
            f"config.json: quantization_config ({method}) is not supported; use unquantized weights, or a checkpoint of"
            f" {nearest}"
        )
    module, _, function = READERS[method].partition(":")
    found: Quantization = getattr(importlib.import_module(module), function)(config, stacked_experts=stacked_experts)
    return found
