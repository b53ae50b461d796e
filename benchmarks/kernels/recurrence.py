"""Table "Recurrent layers on a CPU" of docs/benchmarks.md; the same on CUDA.

Microseconds of a gated delta net without its projections, of the rows of one step, and the share reached of what the
memory allows.

    python -m benchmarks.kernels.recurrence [--device cpu] [--shape 4B] [--rows 64 16x512]

N are N decode rows, NxT are N prompts of T tokens. The floor is the time in which all bytes that must move are read and
written once: the states of the rows, the inputs, and the results. On CUDA, calls are captured in one graph and cycle
through enough pools that no state is in the L2 cache.
"""

import argparse
import math
import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from radixrt.forward_batch.state_rows import StateRows
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import set_threads
from radixrt.layers.cpu_recurrence import CpuRecurrence
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights, RecurrenceOps
from radixrt.models.loading.source import cache_folder

SHAPES = {name: GatedDeltaShape(16, v_heads, 128, 128) for name, v_heads in (("0.8B", 16), ("4B", 32), ("27B", 48))}
"""Heads of Qwen3.5's sizes."""
CUDA_BYTES_PER_US = 4.2e6
TAPS, RESERVED_STATES = 4, 2
COPIES_BYTES = 256 * 2**20
"""Size of all pools together, several times the L2 cache."""
ROWS = ["1", "8", "64", "256", "1x512", "16x512", "1x8192"]


@dataclass(frozen=True)
class Work:
    """One step of one layer, with several pools of states to use in turn."""

    projected: torch.Tensor
    weights: GatedDeltaWeights
    pools: list[tuple[torch.Tensor, torch.Tensor]]
    rows: StateRows
    nbytes: int


def make_work(shape: GatedDeltaShape, rows: str, device: str) -> Work:
    count, tokens = (int(part) for part in f"{rows}x1".split("x")[:2])
    cuda = device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32

    def normal(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*size, device=device).to(dtype)

    weights = GatedDeltaWeights(
        normal(shape.channels, TAPS, dtype=dtype), torch.full((shape.v_heads,), -3.0, device=device),
        normal(shape.v_heads), 1 + normal(shape.v_dim), 1e-6,
    )  # fmt: skip
    state = shape.v_heads * shape.v_dim * shape.k_dim
    copies = max(1, min(64, math.ceil(COPIES_BYTES / (count * state * 4)))) if cuda else 4
    pools = [
        (
            normal(RESERVED_STATES + count, shape.channels, TAPS - 1, dtype=dtype),
            0.1 * normal(RESERVED_STATES + count, shape.v_heads, shape.v_dim, shape.k_dim),
        )
        for _ in range(copies)
    ]
    slots = RESERVED_STATES + torch.randperm(count, device=device)
    lens = None if tokens == 1 else np.full(count, tokens, np.int32)
    projected = normal(count * tokens, shape.in_features, dtype=dtype)
    moved = count * 2 * (state * 4 + shape.channels * (TAPS - 1) * dtype.itemsize)
    moved += count * tokens * (shape.in_features + shape.v_heads * shape.v_dim) * dtype.itemsize
    starts = torch.arange(count + 1, device=device) * tokens
    return Work(projected, weights, pools, StateRows(slots, slots, starts, lens), moved)


def measure_us(ops: RecurrenceOps, shape: GatedDeltaShape, work: Work) -> float:
    """Return microseconds of one call, over all pools."""

    def run() -> None:
        for conv, states in work.pools:
            ops.gated_delta_net(work.projected, shape, work.weights, conv, states, work.rows)

    if work.projected.is_cuda:
        return graph_us(run) / len(work.pools)
    run()
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        found.append((time.perf_counter() - begin) * 1e6 / len(work.pools))
    return median(found)


def read_bytes_per_us() -> float:
    """Return the speed at which torch reads memory on the CPU, all threads together."""
    data = torch.ones(2**27)
    data.sum()
    begin = time.perf_counter()
    data.sum()
    return 4 * len(data) / (time.perf_counter() - begin) / 1e6


def make_ops(device: str) -> RecurrenceOps:
    if device == "cuda":
        from radixrt.layers.cuda_recurrence import CudaRecurrence

        return CudaRecurrence()
    library = load_kernels(cache_folder() / "kernels")
    set_threads(library, torch.get_num_threads())
    return CpuRecurrence(library)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rows", nargs="+", default=ROWS)
    args = parser.parse_args()
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    speed = CUDA_BYTES_PER_US if args.device == "cuda" else read_bytes_per_us()
    ours, reference, lines = make_ops(args.device), RecurrenceOps(), []
    for name in args.shape:
        for rows in args.rows:
            work = make_work(SHAPES[name], rows, args.device)
            us = measure_us(ours, SHAPES[name], work)
            # The reference moves data to the device for rows of several tokens, which no graph can.
            torch_us = "" if work.rows.lens is not None and args.device == "cuda" else (
                f"{measure_us(reference, SHAPES[name], work):.1f}"
            )  # fmt: skip
            floor = work.nbytes / speed
            lines.append([name, rows, f"{us:.1f}", torch_us, f"{work.nbytes / 1e6:.1f}", f"{floor:.1f}",
                          f"{floor / us:.0%}"])  # fmt: skip
            print(*lines[-1], flush=True)
    print(table(["shape", "rows", "µs", "torch, µs", "MB", "floor, µs", "share"], lines))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
