"""Two replicas behind the router, against the same two servers behind sglang-router and a plain round robin.

    python -m benchmarks.fleet.compare --sglang-router venv/bin/sglang-router --rounds 5 --record fleet.json

Real processes of SmolLM2-135M with one thread for each replica. Arms take turns, in an order that rotates:

    radixrt        radixrt launch --replicas 2
    cache_aware    sglang-router --policy cache_aware, before two of radixrt launch
    round_robin    sglang-router --policy round_robin, before the same two
    client         no router: the client sends each call to the next of the two

All arms get the same bodies at the same times, with hints about programs; sglang-router passes on what it knows of a
body. Sizes stand in `compare_load.py`. Prints a table: means over rounds, with half of their range.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from benchmarks.common.machine import facts
from benchmarks.common.servers import RunningServer, ServerError, flush_cache, free_port, started
from benchmarks.common.tables import table
from benchmarks.fleet.compare_load import NAMES, Measured, play
from radixrt.bench.result import percentile

ARMS = ("radixrt", "cache_aware", "round_robin", "client")
LAUNCH = (
    "radixrt launch --port {{port}} --context-length 8192 --kv-cache-tokens {slots} --num-threads 1 --log-level warning"
)
SLOTS = 40_000
"""Tokens in the KV pool of each replica: about 40 programs of A, as in the simulation."""
READY_S, GRACE_S = 120.0, 20.0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.compare", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--arm", nargs="+", choices=ARMS, default=list(ARMS), help="default: all")
    parser.add_argument("--workload", nargs="+", choices=NAMES, default=list(NAMES), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each arm; default: 5")
    parser.add_argument("--share", type=float, default=1.0, help="part of each workload, for trying things out")
    parser.add_argument("--sglang-router", metavar="COMMAND", default="sglang-router", help="how to run sglang-router")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write every measurement there, as JSON")
    options = parser.parse_args(argv)
    if options.rounds < 1 or not 0 < options.share <= 1:
        parser.error("--rounds must be at least 1, and --share above 0 and at most 1")
    return options


@contextmanager
def fleet(arm: str, router: str, logs: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Start the processes of an arm; yields the URLs that calls go to in turn, and those of the engines."""
    launch = LAUNCH.format(slots=SLOTS)
    with ExitStack() as stack:

        def start(name: str, command: str) -> RunningServer:
            return stack.enter_context(started(command, logs / f"{name}.log", READY_S, GRACE_S))

        if arm == "radixrt":
            both = start(arm, f"{launch} --replicas 2")
            yield [both.url], [both.url]
            return
        engines = [start(f"{arm}-{i}", launch).url for i in range(2)]
        if arm == "client":
            yield engines, engines
            return
        command = f"{router} launch --host 127.0.0.1 --port {{port}} --prometheus-host 127.0.0.1 --policy {arm}"
        command += f" --prometheus-port {free_port()} --worker-urls {shlex.join(engines)}"
        front = start(arm, command).url
        yield [front], engines


def run(arm: str, options: argparse.Namespace, seed: int, logs: Path) -> dict[str, Measured]:
    """Start an arm, play all workloads with empty caches, and stop it."""
    found = {}
    with fleet(arm, options.sglang_router, logs) as (urls, engines):
        asyncio.run(play("tree", seed + 1000, 0.1, urls))  # connections, and pages touched for the first time
        for name in options.workload:
            for url in engines:
                flush_cache(url)
            found[name] = asyncio.run(play(name, seed, options.share, urls))
            load = os.getloadavg()[0]
            _say(f"round {seed + 1} {arm} {name}: {_row(found[name])}, load average {load:.1f}")
            for error in dict.fromkeys(found[name].errors):
                _say(f"  error: {error}")
    return found


COLUMNS: dict[str, Callable[[Measured], float]] = {
    "TTFT p50 s": lambda m: percentile(m.ttft, 50),
    "TTFT p95 s": lambda m: percentile(m.ttft, 95),
    "program p50 s": lambda m: percentile(m.program_s, 50),
    "program p95 s": lambda m: percentile(m.program_s, 95),
    "program mean s": lambda m: statistics.fmean(m.program_s),
    "hits %": lambda m: 100 * m.cached_tokens / max(m.prompt_tokens, 1),
    "errors": lambda m: len(m.errors),
}


def results_table(runs: Sequence[tuple[str, str, Measured]]) -> str:
    """A markdown table of (workload, arm, measurements of a round): a row for each workload and arm."""
    body = []
    for key in dict.fromkeys((workload, arm) for workload, arm, _ in runs):
        same = [m for workload, arm, m in runs if (workload, arm) == key and m.program_s]
        cells = [_cell([column(m) for m in same]) if same else "-" for column in COLUMNS.values()]
        body.append([*key, *cells])
    return table(["workload", "arm", *COLUMNS], sorted(body, key=lambda row: NAMES.index(row[0])))


def _cell(values: Sequence[float]) -> str:
    spread = f" ±{(max(values) - min(values)) / 2:.2g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3g}{spread}"


def _row(measured: Measured) -> str:
    if not measured.program_s:
        return f"{len(measured.errors)} errors and no result"
    return ", ".join(f"{name} {column(measured):.3g}" for name, column in COLUMNS.items())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    machine = facts()
    runs: list[tuple[str, str, Measured]] = []
    with tempfile.TemporaryDirectory(prefix="fleet-compare-") as folder:
        for number in range(options.rounds):
            for place in range(len(options.arm)):
                arm = options.arm[(place + number) % len(options.arm)]
                try:
                    found = run(arm, options, number, Path(folder))
                except (ServerError, OSError, httpx.HTTPError) as error:
                    print(f"benchmarks.fleet.compare: {arm}: {error}", file=sys.stderr)
                    return 2
                runs += [(workload, arm, measured) for workload, measured in found.items()]
    print(", ".join(f"{name}: {value}" for name, value in machine.items()))
    print(results_table(runs))
    if options.record:
        rows = [{"workload": workload, "arm": arm, **vars(measured)} for workload, arm, measured in runs]
        options.record.write_text(json.dumps({"machine": machine, "runs": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
