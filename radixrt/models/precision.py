"""`choose_precision`: the dtypes that a model is computed in on a device.

Importing this module imports no torch: dtypes are resolved in processes that have no tensors.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FLOAT32_MIN_TOKENS = 32
"""Fewest rows at which float32 linear layers are faster on a CPU without fast bfloat16 GEMM. Measured on an
Intel CPU with AVX-512 BF16 and no AMX, two threads: equal at 16 rows, 1.3 to 1.5 times at 37, 1.8 times at 256."""
FLOAT32_MAX_PARAMETERS = 500_000_000
"""Most parameters of a model that gets a second, float32 copy of its linear layers."""


@dataclass(frozen=True)
class Precision:
    """Names of torch dtypes for the parts of a computation.

    Attributes:
        dtype: of weights and of the KV pool.
        activations: of activations and of the residual stream. In bfloat16 their rounding is most of a model's error; a
            linear layer rounds its inputs to bfloat16, and no more where its kernel returns float32.
        rotary: of the table of the rotary embedding.
        float32_min_tokens: least rows that linear layers multiply by a float32 copy of their weight; None where they
            have none.
    """

    dtype: str
    activations: str
    rotary: str
    float32_min_tokens: int | None = None


def choose_precision(dtype: str, device: str, num_parameters: int = 0) -> Precision:
    """Choose the dtypes for a model on a device, by the most accurate that cost no speed there.

    On a CPU everything between linear layers is float32, because the compiled kernels compute in float32 anyway; on
    CUDA the fused kernels take one dtype.

    Args:
        dtype: "auto", "float32", "bfloat16" or "float16". "auto" is bfloat16 where the device multiplies in it, else
            float32.
        device: "cpu" or "cuda".
        num_parameters: of the model; 0 if not known.
    """
    flags = cpu_flags() if device == "cpu" else frozenset[str]()
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" or has_bfloat16(flags) else "float32"
    if device != "cpu":
        return Precision(dtype, dtype, dtype)
    slow = dtype == "bfloat16" and not has_fast_bfloat16(flags) and num_parameters <= FLOAT32_MAX_PARAMETERS
    return Precision(dtype, "float32", "float32", FLOAT32_MIN_TOKENS if slow else None)


def tower_precision(dtype: str, device: str) -> Precision:
    """Choose the dtypes of a vision tower on a device; arguments as of `choose_precision`. All products of a tower have
    many rows: on a CPU that multiplies many rows faster in float32 than in bfloat16, the weights are float32."""
    precision = choose_precision(dtype, device)
    return choose_precision("float32", device) if precision.float32_min_tokens is not None else precision


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a resolved name (not "auto")."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags and its vendor as Linux lists them; empty if they are not known."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    found = set[str]()
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features", "vendor_id"):
            found.update(value.split())
    return frozenset(found)


def has_bfloat16(flags: frozenset[str]) -> bool:
    """Return True if a CPU multiplies bfloat16: AVX-512 BF16, AMX, or Arm's bf16."""
    wanted = {"bf16"} if platform.machine() == "aarch64" else {"avx512_bf16", "amx_bf16"}
    return bool(wanted & flags)


def has_fast_bfloat16(flags: frozenset[str]) -> bool:
    """Return True if a CPU's bfloat16 GEMM is faster than its float32 GEMM.

    Intel's AVX-512 BF16 without AMX is not: oneDNN reaches 140 GFLOP/s in bfloat16 and 250 in float32 on two threads,
    where AMD's AVX-512 BF16 reaches 750 and 170.
    """
    return has_bfloat16(flags) and not ("GenuineIntel" in flags and "amx_bf16" not in flags)
