"""Table "Beside other programs" of docs/benchmarks.md: servers while busy loops use the same cores.

    python -m benchmarks.serving.neighbours --server 'radixrt=radixrt launch --port {port}' \\
        [--server 'other=... {port}'] [--loops 0 --loops 1 --loops 2] [--workload single --workload json] [--rounds 3]

All servers run at once, one of them works at a time, and each cell is measured once a round, the servers in turn. A
busy loop is a process that never waits. On C cores beside L of them the fair share of a server is C / (C + L) of its
own rate without them, if it has a thread for each core. No speed is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.common import machine
from benchmarks.common.servers import ServerError, flush_cache, served_model, started
from benchmarks.common.tables import table
from benchmarks.serving import workloads
from benchmarks.serving.__main__ import named
from benchmarks.serving.client import run_workload
from benchmarks.serving.report import summarise

HEADER = ["workload", "busy loops", "server", "output tok/s", "fair tok/s", "share of fair"]
Rates = dict[tuple[str, int, str], list[float]]
"""Output tokens a second of each round, by workload, busy loops and server."""


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many processes busy while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def fair_share(cores: int, loops: int) -> float:
    """Return the part of its own rate that a program with a thread for each core may expect beside busy loops."""
    return cores / (cores + loops)


def run(urls: dict[str, str], jobs: Sequence[workloads.Workload], loops: Sequence[int], limit_s: float) -> Rates:
    """Run each workload on each server, in turn, beside each number of busy loops."""
    rates: Rates = {}
    for job in jobs:
        for count in loops:
            for name, url in urls.items():
                flush_cache(url)
                with busy_loops(count):
                    wall, outcomes = asyncio.run(run_workload(url, served_model(url), job, limit_s))
                found = summarise(job, wall, outcomes, 0.0)
                rates[job.name, count, name] = [found.output_rate]
                print(f"{job.name}, {count} busy loops, {name}: {found.output_rate:.1f} tok/s", flush=True)
                for error in dict.fromkeys(found.errors):
                    print(f"  error x{found.errors.count(error)}: {error}", file=sys.stderr)
    return rates


def report(rates: Rates, cores: int) -> str:
    """Return the table of medians. The fair share is that of the median without busy loops, if there is one."""
    rows = []
    for (workload, loops, server), found in rates.items():
        alone = rates.get((workload, 0, server))
        fair = None if alone is None else median(alone) * fair_share(cores, loops)
        compared = ["", ""] if fair is None else [f"{fair:.1f}", f"{median(found) / fair:.2f}"]
        rows.append([workload, str(loops), server, f"{median(found):.1f}", *compared])
    return table(HEADER, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", type=named, required=True, metavar="NAME=COMMAND")
    parser.add_argument("--loops", action="append", type=int, help="may be repeated (default: 0, 1 and 2)")
    parser.add_argument("--workload", action="append", choices=workloads.NAMES, help="default: single")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, help="seed of the first round's text (default: a new one)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each workload's conversations")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for one workload")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    facts = machine.facts()
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="neighbours-"))
    rates: Rates = {}
    try:
        with contextlib.ExitStack() as stack:
            urls = {}
            for name, command in args.server:
                server = stack.enter_context(started(command, folder / f"{name.replace('/', '_')}.log", 300.0, 15.0))
                urls[name] = server.url
            for r in range(args.rounds):
                jobs = [workloads.build(name, seed + r).scaled(args.scale) for name in args.workload or ["single"]]
                if r == 0:
                    for job in jobs:
                        run(urls, [job.scaled(0)], [0], args.time_limit)  # first steps are slow
                for cell, found in run(urls, jobs, args.loops or [0, 1, 2], args.time_limit).items():
                    rates.setdefault(cell, []).extend(found)
                time.sleep(0.5)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\nMedians of {args.rounds} rounds\n\n{report(rates, int(facts['cores']))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
