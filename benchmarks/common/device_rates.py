"""Rates of a device, from which the least time of a workload follows: bytes copied and operations of GEMMs a second.

Run: python -m benchmarks.common.device_rates [cpu | cuda]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

GEMM_SIZE = {"cuda": 8192, "cpu": 1024}
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}


@dataclass(frozen=True)
class Device:
    """Rates of a device: bytes that it reads or writes a second, and operations of GEMMs a second."""

    bytes_per_s: float
    flops_per_s: float

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e12:.3g} TB/s copied, {self.flops_per_s / 1e12:.3g} TFLOP/s of GEMMs"


H200 = Device(4.25e12, 790e12)
"""Rates of an H200, for plans of machines that are elsewhere."""


def measure_device(kind: str) -> Device:
    """Measure a negated copy, whose bytes are read and written, and a GEMM of two square matrices, in bf16 on a GPU and
    in float32 on a CPU.

    Args:
        kind: cuda, the current GPU of this process, or cpu.
    """
    import torch

    size, dtype = GEMM_SIZE[kind], torch.bfloat16 if kind == "cuda" else torch.float32
    source = torch.ones(COPY_BYTES[kind] // 4, dtype=torch.float32, device=kind)
    target = torch.empty_like(source)
    matrix = torch.randn(size, size, device=kind).to(dtype)
    product = torch.empty_like(matrix)
    time_of: Callable[[Callable[[], object]], float] = _gpu_s if kind == "cuda" else _cpu_s
    with torch.inference_mode():
        # In a CUDA graph, `copy_` runs on the copy engines, at two thirds of the rate that kernels reach.
        copy_s = time_of(lambda: torch.neg(source, out=target))
        gemm_s = time_of(lambda: torch.mm(matrix, matrix, out=product))
    return Device(2 * COPY_BYTES[kind] / copy_s, 2 * size**3 / gemm_s)


def measure_apart(kind: str) -> Device:
    """Measure a device in a process of its own, which leaves no memory of the GPU to this process."""
    command = [sys.executable, "-m", "benchmarks.common.device_rates", kind]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return Device(**json.loads(ran.stdout.splitlines()[-1]))


def _gpu_s(work: Callable[[], object]) -> float:
    from benchmarks.common.cuda_timing import graph_us

    return graph_us(work, calls=5) / 1e6


def _cpu_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return median(times)


if __name__ == "__main__":
    print(json.dumps(asdict(measure_device((sys.argv[1:] or ["cuda"])[0]))))
