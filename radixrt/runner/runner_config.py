"""`RunnerConfig`, and the choices that follow from it: device, dtype, threads and the operations between layers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from radixrt.distributed.rank_info import SINGLE_RANK, RankInfo
from radixrt.errors import ConfigError
from radixrt.kernels.build import KernelUnavailable, load_kernels
from radixrt.kernels.threads import set_threads
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.experts import FusedExperts
from radixrt.layers.linear import Linear
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps
from radixrt.models.decoder import Decoder
from radixrt.models.model_config import ModelSpec
from radixrt.models.precision import torch_dtype
from radixrt.models.registry import Model
from radixrt.models.stages import Stage, stage_of, whole


@dataclass(frozen=True)
class RunnerConfig:
    """Configuration of one rank; plain values, so that it can cross a process boundary as JSON.

    Attributes:
        stage_layers: number of layers of each pipeline stage; empty for a model that is not divided.
        host_tier_bytes: host memory for keys and values of this rank that leave the pool, which grows later. A pool in
            host memory leaves room for it.
        staging_bytes: device memory for keys and values that move, allocated after a pool in device memory.
        image_rows: rows of the encoder pool; 0 to read text alone.
        kv_cache_bytes: bound of keys, values and states that are sized from free memory; 0 for none.
    """

    folder: str
    dtype: str
    load_format: str
    device: str
    attention_backend: str
    num_threads: int | None
    context_length: int
    max_running_requests: int
    page_size: int
    kv_cache_tokens: int | None
    memory_fraction: float
    kv_cache_dtype: str
    max_step_tokens: int
    cuda_graph: str
    random_seed: int
    kernel_cache: str
    show_progress: bool = False
    mask_path: str | None = None
    num_states: int | None = None
    rank_info: RankInfo = SINGLE_RANK
    stage_layers: tuple[int, ...] = ()
    quantization: str = "auto"
    host_tier_bytes: int = 0
    staging_bytes: int = 0
    image_rows: int = 0
    kv_cache_bytes: int = 0

    def stage(self, spec: ModelSpec) -> Stage:
        """Return this rank's pipeline stage of a model."""
        return stage_of(self.rank_info.stage, self.stage_layers) if self.stage_layers else whole(spec)

    @property
    def pool_dtype(self) -> torch.dtype:
        """Dtype of keys and values in the pool, if the config value is not "auto", or once `resolve_kv_cache_dtype` has
        resolved it."""
        return torch.float8_e4m3fn if self.kv_cache_dtype == "fp8_e4m3" else torch_dtype(self.dtype)


def pick_device(name: str) -> torch.device:
    """Return the device for a config value of auto, cpu or cuda.

    Raises:
        ConfigError: CUDA was asked for and torch sees none.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device=cuda, but this torch sees no CUDA device; use --device cpu or install a CUDA build")
    return torch.device("cuda")


def divide_threads(model: Model, ops: LayerOps, threads: int) -> None:
    """Give the threads of a CPU to the compiled kernels, and to torch where it multiplies by weights or attends.

    Where it does not, torch computes on one thread: a second pool would take the cores from the first one.
    """
    if isinstance(ops, CpuOps) and isinstance(model, Decoder):
        layers = [module for module in model.modules() if isinstance(module, Linear | FusedExperts)]
        threads = 1 if all(layer.is_compiled for layer in layers) else threads
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


PRIMITIVE_CACHES = {"LRU_CACHE_CAPACITY": 256, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64}
"""Capacities of the two caches that oneDNN's linear layers go through, torch's and oneDNN's own; by default 1024 each.

A linear layer with a new number of rows compiles a primitive, in about 1 ms, and each cache keeps 0.3 MB for it. Layers
of one shape share it, and a decoder has five shapes: 256 primitives serve the last 50 numbers of rows. oneDNN's own
cache serves only operators that torch does not cache."""


def bound_primitive_caches() -> None:
    """Bound the memory of compiled linear layers on a CPU, unless the environment does; call before the first one."""
    for name, capacity in PRIMITIVE_CACHES.items():
        os.environ.setdefault(name, str(capacity))


def free_memory(device: torch.device) -> int:
    """Return the bytes that can still be allocated on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)


def still_works(device: torch.device) -> bool:
    """Return whether the device works after an error, and release its cached memory."""
    if device.type == "cpu":
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def supports_dependent_launch(device: torch.device) -> bool:
    """Return whether the device supports programmatic dependent launch: a kernel starts before its predecessor ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def make_ops(
    attention_backend: str, device: torch.device, kernel_cache: Path, *, dependent_launch: bool, threads: int = 1
) -> LayerOps:
    """Return the operations between linear layers: compiled kernels where they are available, otherwise plain torch.

    Args:
        attention_backend: config value; torch_native selects plain torch.
        kernel_cache: folder in which CPU kernels are compiled.
        dependent_launch: use programmatic dependent launch, see `CudaOps`.
        threads: of the CPU kernels.
    """
    if attention_backend == "torch_native":
        return TorchOps()
    if device.type == "cuda":
        try:
            return CudaOps(early=dependent_launch)
        except ImportError:
            return TorchOps()
    try:
        library = load_kernels(kernel_cache)
        set_threads(library, threads)
        return CpuOps(library)
    except KernelUnavailable:
        return TorchOps()
