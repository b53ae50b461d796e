"""`resolve_kv_cache_dtype`: the dtype of keys and values in the pool, by the option, the checkpoint and the device."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from radixrt.attention.flashinfer_modules import check_supported
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.loading.kv_scales import says_fp8, scale_names
from radixrt.models.loading.weights import Checkpoint
from radixrt.models.model_config import ModelSpec
from radixrt.runner.runner_config import RunnerConfig

logger = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 9)
"""Compute capability from which on kernels convert to float8 e4m3."""


@dataclass(frozen=True)
class KVCacheDtype:
    """Attributes:
    name: "model" or "fp8_e4m3".
    scaled: keys and values are divided by the checkpoint's scales.
    """

    name: str
    scaled: bool = False

    def describe(self, dtype: str) -> str:
        """Return the name for people; dtype: of the model."""
        if self.name == "model":
            return dtype
        return f"{self.name} with scales of the checkpoint" if self.scaled else self.name


def resolve_kv_cache_dtype(config: RunnerConfig, spec: ModelSpec, device: torch.device) -> KVCacheDtype:
    """Choose the dtype of keys and values, and log a choice that the option leaves to the checkpoint.

    "auto" is float8 if the checkpoint says so (`kv_cache_scheme`, `kv_cache_quant_algo`) and has scales of it, where
    the device has kernels; else the model's dtype. The scales of a checkpoint are used in any float8 pool.

    Raises:
        ModelLoadError: a file of the folder cannot be read.
    """
    folder, decoder, wanted = Path(config.folder), spec.decoder, config.kv_cache_dtype
    if wanted == "model" or decoder is None or config.load_format == "dummy":
        return KVCacheDtype("fp8_e4m3" if wanted == "fp8_e4m3" else "model")
    if wanted == "auto" and not says_fp8(folder):
        return KVCacheDtype("model")
    scaled = _has_scales(folder, decoder)
    if wanted == "fp8_e4m3":
        logger.info("keys and values are fp8_e4m3 %s scales of the checkpoint", "with" if scaled else "without")
        return KVCacheDtype(wanted, scaled)
    reason = _unsupported(config, decoder, device) if scaled else "it has no scales of them"
    if reason is None:
        logger.info("keys and values are fp8_e4m3 with scales of the checkpoint, as it says")
        return KVCacheDtype("fp8_e4m3", scaled)
    logger.info("keys and values are %s, though the checkpoint says fp8: %s", config.dtype, reason)
    return KVCacheDtype("model")


def _has_scales(folder: Path, decoder: DecoderSpec) -> bool:
    """Return whether a checkpoint has scales of keys and values of any layer."""
    with Checkpoint(folder, decoder.names) as checkpoint:
        return any(scale_names(checkpoint.names, i) is not None for i in range(len(decoder.layers)))


def _unsupported(config: RunnerConfig, decoder: DecoderSpec, device: torch.device) -> str | None:
    """Return why keys and values in float8 cannot be attended to here; None if they can."""
    if device.type != "cuda" or config.attention_backend not in ("auto", "flashinfer"):
        return "float8 ones need a CUDA device and FlashInfer"
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "float8 ones need a device of compute capability 8.9"
    if find_spec("flashinfer") is None or find_spec("triton") is None:
        return "float8 ones need FlashInfer, which is not installed"
    try:
        check_supported(getattr(torch, config.dtype), decoder.head_dim)
    except ValueError as error:
        return str(error)
    return None
