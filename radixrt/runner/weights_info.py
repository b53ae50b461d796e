"""`weights_info`: a summary of the formats of a model's weights, for log lines and operators."""

from __future__ import annotations

from radixrt.layers.experts import FusedExperts
from radixrt.layers.linear import Linear
from radixrt.messages.runner import WeightsInfo
from radixrt.models.model_config import ModelSpec
from radixrt.models.registry import Model


def weights_info(model: Model, spec: ModelSpec) -> WeightsInfo:
    """Return the formats of a model whose weights are loaded. A model of transformers' modeling code has plain ones."""
    total = quantized = 0
    kernels: set[str] = set()
    for module in model.modules():
        if isinstance(module, (Linear, FusedExperts)):
            total += module.num_weights
            if module.kernels:
                quantized += module.num_weights
                kernels.add(module.kernels)
    if not quantized or spec.decoder is None or spec.decoder.quantization is None:
        return WeightsInfo()
    return WeightsInfo(spec.decoder.quantization.scheme, tuple(sorted(kernels)), quantized / total)
