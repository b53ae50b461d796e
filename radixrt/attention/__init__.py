"""Attention backends, and which one a runner gets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from radixrt.attention.base import AttentionBackend, AttentionLayer
    from radixrt.executor.kv_cache import KVCache

logger = logging.getLogger(__name__)


def make_backend(
    name: str, kv_cache: KVCache, layers: list[AttentionLayer], device: torch.device, kernel_cache: Path
) -> AttentionBackend:
    """The backend of a config value: auto, torch_native or cpu.

    auto takes the compiled CPU kernel where it can be had, and says once why not and what would mend it.
    """
    from radixrt.attention.cpu import CpuBackend
    from radixrt.attention.torch_native import TorchNativeBackend
    from radixrt.errors import ConfigError
    from radixrt.kernels.build import KernelUnavailable

    if name == "torch_native" or (name == "auto" and device.type != "cpu"):
        return TorchNativeBackend(kv_cache)
    try:
        return CpuBackend(kv_cache, layers, kernel_cache)
    except (KernelUnavailable, ValueError) as error:
        if name == "cpu":
            raise ConfigError(f"attention_backend=cpu: {error}") from error
        logger.warning(
            "attention runs on plain torch operations, several times slower than the compiled kernel: %s. "
            "Installing a C++ compiler (g++ or clang++) usually mends this.", error,
        )  # fmt: skip
        return TorchNativeBackend(kv_cache)
