"""Table "To the first token" of docs/cuda.md: one prompt at a time, behind a cached prefix, on CUDA.

    python -m benchmarks.kernels.first_token [--shape qwen3-0.6b] [--runs 15] [--set option=value]

This is what a call of a program waits for: its common prefix has been computed, and a few tokens are new. Each prompt
is sent when the one before has been answered, to an engine whose prompts are captured (`--cuda-graph start`) and
to one that launches everything kernel by kernel (`off`), one after the other. Medians; `device` is the time that the
captured step takes the device, by `--step-trace`'s events.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import machine
from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.kernels.step_timeline import read_trace
from radixrt import Engine

CASES = [
    (0, 64), (0, 256), (0, 900), (0, 1500), (0, 3000), (0, 6000),
    (2000, 8), (2000, 64), (2000, 300), (2000, 1500), (8000, 64),
]  # fmt: skip
"""Tokens in the cache, and new ones."""


def measure(engine: Engine, cached: int, new: int, runs: int) -> float:
    rng = np.random.default_rng(cached + new)
    prefix = rng.integers(10, 10_000, cached).tolist()
    params: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
    times = []
    for turn in range(-3, runs):
        prompt = [*prefix, *rng.integers(10, 10_000, new).tolist()]
        started = time.perf_counter()
        engine.generate(prompt, params)
        if turn >= 0:
            times.append(time.perf_counter() - started)
    return median(times) * 1e3


def device_ms(trace: Path, new: int, runs: int) -> float:
    """Median device time of the last `runs` steps with `new` prompt tokens."""
    took = [step.took for step in read_trace(trace) if step.mode == "extend" and step.tokens == new]
    return median(took[-runs:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS))
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args()
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    rows = []
    for shape in args.shape or ["qwen3-0.6b"]:
        found: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for how in ("off", "start"):
                trace = Path(folder) / how
                options = {"max_running_requests": 8, "context_length": 16_384, **parse_options(args.set)}
                with Engine(
                    str(shape_folder(shape)), load_format="dummy", show_progress=False, cuda_graph=how,
                    step_trace=str(trace), **options,
                ) as engine:  # fmt: skip
                    measure(engine, 0, 32, args.runs)  # waits of the first requests after a start
                    found[how] = []
                    devices = []
                    for cached, new in CASES:
                        found[how].append(measure(engine, cached, new, args.runs))
                        devices.append(device_ms(trace, new, args.runs))
        for i, (cached, new) in enumerate(CASES):
            off, start = found["off"][i], found["start"][i]
            row = [
                shape,
                str(cached),
                str(new),
                f"{off:.1f}",
                f"{start:.1f}",
                f"{devices[i]:.1f}",
                f"{off / start:.2f}",
            ]
            rows.append(row)
    print(table(["shape", "cached", "new", "ms, off", "ms, captured", "device", "times as fast"], rows))


if __name__ == "__main__":
    main()
