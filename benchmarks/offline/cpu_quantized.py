"""Table "One row of the embedded model in fewer bits" of docs/benchmarks.md: steps and prompts by `--quantization`.

    python -m benchmarks.offline.cpu_quantized [--quantization none int8 int4 auto] [--rounds 5] [--threads 2]

An engine for each value of the option lives in this process, and all take turns in each round. The time of a step is
the time of requests with 40 output tokens less the time of requests with one token, over 39. Each cell has the minimum
and the median of the rounds, and the ratio of the minimum to the minimum of the first value.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.machine import facts
from benchmarks.common.tables import table

PROMPT, OUTPUT = 30, 40
ROWS = (1, 8)
HIGHEST_ID = 500
"""Above all ids of prompts; a tiny model for tests has no more."""


def generate_s(engine: Any, prompts: list[list[int]], output: int) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    sampling = {"max_tokens": output, "ignore_eos": True, "temperature": 0.0, "detokenize": False}
    engine.generate(prompts, sampling, progress=False)
    return time.perf_counter() - started


def measure(engine: Any, long: int, seed: int) -> list[float]:
    """Return the milliseconds of a step for each of ROWS, and those of a prompt of `long` tokens."""
    rng = np.random.default_rng(seed)
    found = []
    for rows in ROWS:
        prompts = rng.integers(10, HIGHEST_ID, (rows, PROMPT)).tolist()
        found.append((generate_s(engine, prompts, OUTPUT) - generate_s(engine, prompts, 1)) / (OUTPUT - 1) * 1e3)
    found.append(generate_s(engine, rng.integers(10, HIGHEST_ID, (1, long)).tolist(), 1) * 1e3)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="default: the embedded one")
    parser.add_argument("--quantization", nargs="+", default=["none", "int8", "int4", "auto"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of the long prompt")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    from radixrt import Engine

    options: dict[str, Any] = {"executor": "uni", "dtype": "bfloat16", "num_threads": args.threads}
    options |= {"show_progress": False, "prefix_cache": False, "kv_cache_tokens": 20_000}
    options |= {} if args.model is None else {"model": args.model}
    engines = {each: Engine(**options, quantization=each) for each in args.quantization}
    times: dict[str, list[list[float]]] = {each: [] for each in engines}
    for turn in range(-1, args.rounds):
        for name, engine in engines.items():
            found = measure(engine, args.prompt, turn + 1)
            if turn >= 0:  # the first round warms up
                times[name].append(found)
    for engine in engines.values():
        engine.close()
    print(", ".join(f"{name}: {value}" for name, value in facts().items()))
    lines = []
    first = [min(column) for column in zip(*times[args.quantization[0]], strict=True)]
    for name, rounds in times.items():
        cells = [name]
        for column, base in zip(zip(*rounds, strict=True), first, strict=True):
            cells += [f"{min(column):.1f}, {median(column):.1f}", f"{min(column) / base:.2f}"]
        lines.append(cells)
    header = ["quantization"]
    for what in (*(f"{rows} row{'s' * (rows > 1)}, ms" for rows in ROWS), f"prompt of {args.prompt}, ms"):
        header += [what, "ratio"]
    print("\n" + table(header, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
