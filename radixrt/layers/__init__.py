"""What models are made of; `make_ops` chooses how small operations are computed."""

from __future__ import annotations

from pathlib import Path

import torch

from radixrt.kernels.build import KernelUnavailable, load_kernels
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps


def make_ops(attention_backend: str, device: torch.device, kernel_cache: Path, *, early: bool) -> LayerOps:
    """Compiled where they can be had; plain torch where that is asked for (the attention backend says why not).

    Args:
        attention_backend: of the config; torch_native asks for plain torch.
        kernel_cache: where kernels for the CPU are compiled.
        early: see `CudaOps`.
    """
    if attention_backend == "torch_native":
        return TorchOps()
    if device.type == "cuda":
        try:
            return CudaOps(early=early)
        except ImportError:
            return TorchOps()
    try:
        return CpuOps(load_kernels(kernel_cache))
    except KernelUnavailable:
        return TorchOps()
