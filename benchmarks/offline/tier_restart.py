"""Makes the table "Restarts of hybrid models" of docs/benchmarks.md: how long the first token takes after a restart.

    python -m benchmarks.offline.tier_restart --shape lfm2-350m [--prefixes 1000 4000] [--runs 3]

For each length, prompts of random tokens are computed by an engine with a disk tier, which is then closed. A second
engine with the same folder gets the same prompts again: their keys, values and states come from disk. Weights are
random (`load_format="dummy"`). Seconds from the call to the first token; medians of `--runs` prompts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.offline.__main__ import machine_facts
from benchmarks.offline.tiers import first_token_s
from radixrt import Engine

SAVE_LIMIT_S = 60.0


def wait_until_saved(engine: Engine) -> None:
    """Wait until the disk tier keeps what the host tier keeps, and that grows no more.

    Raises:
        RuntimeError: nothing is saved in time.
    """
    deadline, before = time.perf_counter() + SAVE_LIMIT_S, -1
    while time.perf_counter() < deadline:
        time.sleep(1.0)
        stats = engine.stats
        used = {} if stats is None or stats.tiers is None else stats.tiers.tokens_used
        disk = used.get("disk", 0)
        if disk and disk == used.get("host") == before:
            return
        before = disk
    raise RuntimeError(f"prefixes are not on disk after {SAVE_LIMIT_S:g} s")


def measure(folder: str, prompts: dict[int, list[list[int]]], given: dict[str, Any]) -> list[list[str]]:
    """Return a row for each length of prompts."""
    computed: dict[int, list[float]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as disk:
        options: dict[str, Any] = {"load_format": "dummy", "show_progress": False, "kv_disk": disk, **given}
        with Engine(folder, **options) as engine:
            first_token_s(engine, [11] * 64)
            for length, group in prompts.items():
                computed[length] = [first_token_s(engine, prompt)[0] for prompt in group]
            wait_until_saved(engine)
        with Engine(folder, **options) as engine:
            first_token_s(engine, [12] * 64)
            for length, group in prompts.items():
                loaded = [first_token_s(engine, prompt) for prompt in group]
                base, seconds = median(computed[length]), median(each[0] for each in loaded)
                times = [f"{1e3 * base:.0f}", f"{1e3 * seconds:.0f}", f"{seconds / base:.2f}"]
                rows.append([f"{length:,}", *times, f"{median(each[2] for each in loaded):,.0f}"])
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="lfm2-350m", choices=sorted(CONFIGS))
    parser.add_argument("--prefixes", type=int, nargs="+", default=[1_000, 4_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args(argv)
    random = np.random.default_rng(0)
    prompts = {
        length: [random.integers(10, 400, length).tolist() for _ in range(options.runs)] for length in options.prefixes
    }
    total = sum(options.prefixes) * options.runs
    given: dict[str, Any] = {
        "kv_cache_tokens": (total + 4096) // 64 * 64,
        "context_length": max(options.prefixes) + 64,
        "max_running_requests": 4,
        "kv_host_gib": 1.0,
        "kv_disk_gib": 2.0,
        **parse_options(options.set),
    }
    rows = measure(str(shape_folder(options.shape)), prompts, given)
    print(table(["prompt tokens", "computed, ms", "after a restart, ms", "x", "tokens from disk"], rows))
    print("; ".join(f"{name}: {value}" for name, value in machine_facts().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
