"""Attention backends, and the choice of one for a runner."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from radixrt.attention.base import AttentionBackend, AttentionLayer
    from radixrt.attention.flashinfer_modules import FlashInferModules
    from radixrt.attention.kv_cache import KVCache

logger = logging.getLogger(__name__)


def make_backend(
    name: str,
    kv_cache: KVCache,
    layers: list[AttentionLayer],
    *,
    dtype: torch.dtype,
    max_rows: int,
    context_length: int,
    kernel_cache: Path,
    dependent_launch: bool,
    modules: FlashInferModules | None = None,
) -> AttentionBackend:
    """Return the backend for a config value: auto, torch_native, cpu or flashinfer.

    auto selects the fastest backend for the device. If it is unavailable, the reason and the fix are logged once, and
    torch_native is used.

    Args:
        dtype: of the model; the pool's dtype may differ.
        max_rows, context_length: maximum number of rows of a step, and of positions of a row.
        dependent_launch: use programmatic dependent launch, see `CudaOps`.
        modules: result of `start_loading`; None to compile and load the needed modules now.

    Raises:
        ConfigError: the backend that was asked for is unavailable; the message names the fix.
    """
    from radixrt.attention.torch_native import TorchNativeBackend
    from radixrt.errors import ConfigError

    fp8 = kv_cache.dtype.itemsize == 1
    if name == "torch_native":
        return TorchNativeBackend(kv_cache)
    on_cpu = kv_cache.k[0].device.type == "cpu"
    wanted = ("cpu" if on_cpu else "flashinfer") if name == "auto" else name
    if (wanted == "cpu") != on_cpu:
        raise ConfigError(f"attention_backend={wanted}, but the model runs on {kv_cache.k[0].device.type}")
    if fp8 and on_cpu:
        raise ConfigError(
            "kv_cache_dtype=fp8_e4m3 needs attention_backend=flashinfer on a CUDA device, or the reference, which is"
            " slow: attention_backend=torch_native"
        )
    if on_cpu:
        problem = _make_cpu(kv_cache, layers, kernel_cache)
    else:
        problem = _make_flashinfer(kv_cache, layers, dtype, max_rows, context_length, dependent_launch, modules)
    if isinstance(problem, str):
        if name == wanted or fp8:
            raise ConfigError(f"attention_backend={wanted}: {problem}")
        logger.warning("attention runs on plain torch operations, several times slower: %s", problem)
        return TorchNativeBackend(kv_cache)
    return problem


def start_loading(
    name: str,
    windows: Iterable[int | None],
    *,
    head_dim: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> FlashInferModules | None:
    """Begin to load the kernels of the backend for a config value in the background, before the layers exist.

    With auto, kernels that were never compiled on this machine are compiled in the background while the engine serves;
    a backend that was asked for by name compiles them before it is made.

    Returns:
        None if the backend needs no such kernels, or `make_backend` is to load them.
    """
    if device.type != "cuda" or name != "auto":
        return None
    from radixrt.attention.flashinfer_modules import load_modules

    try:
        return load_modules(windows, head_dim=head_dim, dtype=dtype, kv_dtype=kv_dtype, device=device)
    except (ImportError, ValueError):
        return None  # `make_backend` reports it


def _make_cpu(kv_cache: KVCache, layers: list[AttentionLayer], kernel_cache: Path) -> AttentionBackend | str:
    from radixrt.attention.cpu import CpuBackend
    from radixrt.kernels.build import KernelUnavailable

    try:
        return CpuBackend(kv_cache, layers, kernel_cache)
    except (KernelUnavailable, ValueError) as error:
        return str(error)


def _make_flashinfer(
    kv_cache: KVCache,
    layers: list[AttentionLayer],
    dtype: torch.dtype,
    max_rows: int,
    context_length: int,
    dependent_launch: bool,
    modules: FlashInferModules | None,
) -> AttentionBackend | str:
    try:
        from radixrt.attention.flashinfer import FlashInferBackend

        return FlashInferBackend(
            kv_cache,
            layers,
            dtype=dtype,
            max_rows=max_rows,
            context_length=context_length,
            dependent_launch=dependent_launch,
            modules=modules,
        )
    except ImportError as error:
        from radixrt.extras import install_command

        return f"{error}. `{install_command('cuda')}` fixes this; `radixrt doctor` reports more."
    except ValueError as error:
        return str(error)
