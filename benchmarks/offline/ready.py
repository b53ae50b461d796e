"""Makes the tables "From start to ready" of docs/cuda.md: phases until an engine is ready, and its first calls.

    python -m benchmarks.offline.ready --shape qwen3-0.6b [--starts 3] [--cold] [--set OPTION=VALUE]

Each start is a process of its own. With --cold, the first one finds no compiled kernels: FlashInfer's and Triton's
caches are in an empty folder, and those that it leaves there serve the others. A round is one call of 64 requests
with 256 prompt tokens and 200 output tokens each, with new prompts.

Columns: seconds from the call of `Engine` until it returns; output tokens a second in each round, the median from the
second round on, and the first round over that median. Below, the phases of each process in seconds, in order, from its
log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.common.engine_options import parse_options
from benchmarks.common.machine import facts
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.structure.rounds import OUTPUT_TOKENS, run_round, twin
from radixrt import Engine

ROWS = 64
PHASES = re.compile(r" INFO (?P<process>.+): ready after (?P<total>[\d.]+) s: (?P<phases>.*)$")


def start_once(options: argparse.Namespace) -> dict[str, Any]:
    """Start an engine in this process, run the rounds, and return what was measured."""
    given = {"max_running_requests": ROWS, "context_length": 16_384, **parse_options(options.set)}
    folder = str(shape_folder(options.shape))
    started = time.perf_counter()
    with Engine(folder, load_format="dummy", show_progress=False, log_level="info", **given) as engine:
        ready = time.perf_counter() - started
        asked = twin([OUTPUT_TOKENS] * options.rows)
        rates = [run_round(engine, asked, i).rate for i in range(options.rounds)]
    return {"ready": ready, "rates": rates}


def measure(argv: Sequence[str], environment: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Run `start_once` in a new process.

    Returns:
        Its result, and a line for each process of the engine.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.offline.ready", *argv, "--once"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        raise RuntimeError(f"the engine did not start: {ran.stderr}")
    lines = [found for line in ran.stderr.splitlines() if (found := PHASES.search(line))]
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result, [f"{found['process']} {found['total']}: {found['phases']}" for found in lines]


def cells(number: int, result: dict[str, Any]) -> list[str]:
    """Row of the table."""
    rates = result["rates"]
    later = median(rates[1:]) if len(rates) > 1 else rates[0]
    rounds = [f"{rate:,.0f}" for rate in rates]
    return [str(number), f"{result['ready']:.1f}", *rounds, f"{later:,.0f}", f"{rates[0] / later:.2f}"]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b", choices=sorted(CONFIGS))
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--cold", action="store_true", help="the first start compiles all kernels")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the engine")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.once:
        print(json.dumps(start_once(options)))
        return 0
    print(facts())
    with tempfile.TemporaryDirectory() as caches:
        environment = dict(os.environ)
        if options.cold:
            environment |= {"TRITON_CACHE_DIR": f"{caches}/triton", "FLASHINFER_WORKSPACE_BASE": caches}
        rows = []
        for number in range(1, options.starts + 1):
            result, lines = measure(argv, environment)
            rows.append(cells(number, result))
            print(" | ".join(rows[-1]), *lines, sep="\n    ", flush=True)
    rounds = [f"round {i + 1}" for i in range(options.rounds)]
    print(table(["start", "ready s", *rounds, "median 2+", "first / median"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
