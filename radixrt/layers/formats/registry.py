"""The formats of quantized checkpoints, by the quant_method of their quantization_config. Imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import Quantization

READERS = {"mxfp4": "radixrt.layers.formats.mxfp4:read_mxfp4"}
"""Module and function that reads the config.json of a quantized checkpoint, by its quant_method."""


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
    if not isinstance(quantization, Mapping) or method not in READERS or not decodes:
        raise ModelLoadError(f"config.json: quantization_config ({method}) is not supported; use unquantized weights")
    module, _, function = READERS[method].partition(":")
    found: Quantization = getattr(importlib.import_module(module), function)(config, stacked_experts=stacked_experts)
    return found
