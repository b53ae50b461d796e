"""Table of all-reduce and all-gather times of docs/tensor_parallel.md: in a CUDA graph, or eagerly on a CPU.

An all-reduce is measured with the residual sum and the norm that follow it; with `one_shot` they are one kernel.

python -m benchmarks.kernels.all_reduce --ranks 2
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.ranks import add_arguments, rank_info_of, run_on_ranks
from radixrt.distributed.parallel import TPGroup, join, rank_device
from radixrt.distributed.partial_sum import PartialSum
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.ops import LayerOps, TorchOps

HIDDEN, VOCAB = 4096, 128256
ROWS = (1, 16, 64, 128, 256, 1024, 8192)
IN_A_ROW = 20


def measure(work: Callable[[], object], device: torch.device, turns: int) -> float:
    """Seconds that one call takes, of IN_A_ROW in one graph; the median of several replays."""
    if device.type == "cpu":
        started = time.perf_counter()
        for _ in range(turns):
            work()
        return (time.perf_counter() - started) / turns
    return graph_us(work, calls=IN_A_ROW, replays=turns, capture_error_mode="thread_local") / 1e6


def compare(group: TPGroup, device: torch.device, how: str, turns: int) -> None:
    """Print a line for each size, from rank 0."""
    dtype = torch.bfloat16
    ops: LayerOps = CudaOps(early=True) if device.type == "cuda" else TorchOps()
    weight = torch.ones(HIDDEN, dtype=dtype, device=device)
    for rows in ROWS:
        x, residual = (torch.zeros(rows, HIDDEN, dtype=dtype, device=device) for _ in range(2))
        work = functools.partial(ops.all_reduce_add_rms_norm, residual, PartialSum(x), weight, 1e-6, dtype, group)
        seconds = measure(work, device, turns)
        if group.rank == 0:
            print(f"| {how} sum and norm of [{rows}, {HIDDEN}] bf16 | {seconds * 1e6:.1f} |", flush=True)
    logits = group.gather_buffer(64, VOCAB // group.size)
    if logits is None:
        logits = torch.zeros(64, VOCAB // group.size, dtype=torch.float32, device=device)
    gathered = torch.empty(64, VOCAB, dtype=torch.float32, device=device)
    seconds = measure(lambda: group.all_gather_columns(logits, VOCAB, gathered), device, turns)
    ids = torch.zeros(64, dtype=torch.int64, device=device)
    heard = measure(lambda: group.broadcast(ids), device, turns)
    if group.rank == 0:
        print(f"| {how} gather of [64, {VOCAB}] float32 | {seconds * 1e6:.1f} |")
        print(f"| broadcast of 64 ids | {heard * 1e6:.1f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, ranks=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--how", choices=("nccl", "one_shot"), default="nccl", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank_info = rank_info_of(args, one_shot=args.how == "one_shot")
        device = rank_device(torch.device(args.device), rank_info)
        group = join(rank_info, device)
        compare(group, device, args.how if args.device == "cuda" else "gloo", args.turns)
        group.close()
        return 0
    print("| what | microseconds |\n|---|---|", flush=True)
    given = ["--ranks", str(args.ranks), "--device", args.device, "--turns", str(args.turns)]
    ways = ("nccl", "one_shot") if args.device == "cuda" else ("nccl",)
    codes = [run_on_ranks("benchmarks.kernels.all_reduce", args.ranks, [*given, "--how", how]) for how in ways]
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
