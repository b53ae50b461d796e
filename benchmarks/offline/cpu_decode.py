"""Table "One row on a CPU" of docs/benchmarks.md: the time of a token beside the time to read the weights.

    python -m benchmarks.offline.cpu_decode --shape lfm2-350m --shape qwen3.5-0.8b [--runs 3] [--threads 2]

One request of 64 tokens and 64 output tokens, dummy weights in bfloat16. The time of a token is the median over runs of
that request's seconds, without those of a request with one output token, over 63. The rate of reading is the best of
several passes of all threads over a buffer of 1 GiB, in the same process, before and after.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common.machine import facts
from benchmarks.common.model_shapes import CONFIGS, shape_folder, shape_of
from benchmarks.common.tables import table

PROMPT, OUTPUT = 64, 64
PASSES = 8
HEADER = ["shape", "weights MB", "read GB/s", "floor ms", "ms a token", "tok/s", "over the floor"]


def read_rate(buffer: torch.Tensor) -> float:
    """Bytes a second at which all threads read a buffer, the best of PASSES."""
    seconds = []
    for _ in range(PASSES):
        started = time.perf_counter()
        buffer.sum()
        seconds.append(time.perf_counter() - started)
    return buffer.nbytes / min(seconds)


def token_seconds(engine: Any, runs: int) -> float:
    """Seconds of one output token of one request."""
    rng = np.random.default_rng(0)

    def run(output: int) -> float:
        prompt = rng.integers(10, 10_000, PROMPT).tolist()
        started = time.perf_counter()
        engine.generate([prompt], {"max_tokens": output, "ignore_eos": True, "detokenize": False}, progress=False)
        return time.perf_counter() - started

    run(OUTPUT)
    whole, first = zip(*[(run(OUTPUT), run(1)) for _ in range(runs)], strict=True)
    return (median(whole) - median(first)) / (OUTPUT - 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS), required=True, help="may be repeated")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--buffer", type=int, default=1024, metavar="MIB", help="read to measure the rate of reading")
    args = parser.parse_args(argv)
    if min(args.runs, args.threads, args.buffer) < 1:
        parser.error("--runs, --threads and --buffer must be at least 1")
    from radixrt import Engine

    torch.set_num_threads(args.threads)
    print("; ".join(f"{name}: {value}" for name, value in facts().items()), flush=True)
    buffer = torch.ones(args.buffer * 2**17, dtype=torch.int64)
    rows = []
    for shape in args.shape:
        options = {"kv_cache_tokens": 4096, "num_threads": args.threads, "dtype": "bfloat16", "log_level": "warning"}
        before = read_rate(buffer)
        folder = str(shape_folder(shape))
        with Engine(folder, device="cpu", load_format="dummy", show_progress=False, **options) as engine:
            seconds = token_seconds(engine, args.runs)
        rate = max(before, read_rate(buffer))
        weights = shape_of(shape).weight_bytes(1)
        floor = weights / rate
        rows.append([
            shape, f"{weights / 1e6:,.0f}", f"{rate / 1e9:.1f}", f"{1000 * floor:.1f}", f"{1000 * seconds:.1f}",
            f"{1 / seconds:.1f}", f"{seconds / floor:.2f}",
        ])  # fmt: skip
    print(table(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
