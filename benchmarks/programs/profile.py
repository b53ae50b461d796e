"""Table "Profile of the calls" of docs/benchmarks.md: where the time of programs goes, plainly and in the language.

    python -m benchmarks.programs.profile [--workload judge] [--cache 3072] [--rounds 3]

A server is started, and both sides of each workload run on it in turn, the cache emptied before each. Seconds of a call
are means over all calls: *client* is what the client sees more than the server (its own work, HTTP), *front* what the
server's main process sees more than the scheduler (HTTP, tokenizer), *queue*, *prefill* and *decode* are the
scheduler's. CPU seconds are those of the client and of each process of the server; on a busy machine they say more than
the wall time. The last line is the model of step times that the server has fitted.
"""

import argparse
import os
import resource
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.common import machine
from benchmarks.common.servers import RunningServer, flush_cache, started
from benchmarks.common.tables import table
from benchmarks.programs.__main__ import in_language, plainly
from benchmarks.programs.measure import settled_metrics
from benchmarks.programs.workloads import CONCURRENCY, NAMES, POOL, RUNS, Workload, workloads
from radixrt.messages.scheduler_stats import StepTimes

WORKERS = ("tokenizer", "scheduler", "runner")
PARTS = ("queue", "prefill", "decode")
COLUMNS = (
    "program", "side", "wall s", "calls", "HTTP requests", "extend steps", "decode steps", "runner s",
    "client ms", "front ms", "queue ms", "prefill ms", "decode ms",
    "CPU client", "CPU server", "CPU tokenizer", "CPU scheduler", "CPU runner",
)  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """Counters of a server, and CPU seconds of its processes and of this one by name."""

    counters: Mapping[str, float]
    cpu: Mapping[str, float]


def snapshot(server: RunningServer) -> Snapshot:
    """The counters once the last burst is in them."""
    counters = settled_metrics(server.url)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = {"client": used.ru_utime + used.ru_stime}
    for pid in machine.tree(server.pid):
        name = _role(pid)
        cpu[name] = cpu.get(name, 0.0) + _cpu_seconds(pid)
    return Snapshot(counters, cpu)


def _role(pid: int) -> str:
    """The name of a process of the server: main, and what else is no worker, is "server"."""
    words = (machine.PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return next((name for name in WORKERS if any(word.partition("-")[0] == name for word in words)), "server")


def _cpu_seconds(pid: int) -> float:
    stat = (machine.PROC / str(pid) / "stat").read_text()
    user, system = stat[stat.rindex(")") + 2 :].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def profiled(server: RunningServer, run: Callable[[list[float]], None]) -> list[float]:
    """Figures of one run on an empty cache, in the order of COLUMNS from the wall time on."""
    flush_cache(server.url)
    before = snapshot(server)
    seconds: list[float] = []
    begin = time.perf_counter()
    run(seconds)
    wall = time.perf_counter() - begin
    after = snapshot(server)

    def spent(name: str) -> float:
        return after.counters.get(f"radixrt_{name}", 0.0) - before.counters.get(f"radixrt_{name}", 0.0)

    calls = spent("e2e_request_latency_seconds_count")
    seen = [1e3 * spent(f"request_{part}_time_seconds_sum") / calls for part in PARTS]
    front = 1e3 * spent("e2e_request_latency_seconds_sum") / calls - sum(seen)
    client = 1e3 * sum(seconds) / calls - sum(seen) - front
    cpu = [after.cpu.get(name, 0.0) - before.cpu.get(name, 0.0) for name in ("client", "server", *WORKERS)]
    return [
        wall, calls, spent("http_requests_total") - 1, spent("steps_total:extend"), spent("steps_total:decode"),
        spent("step_seconds_total:runner"), client, front, *seen, *cpu,
    ]  # fmt: skip


def compare(server: RunningServer, workload: Workload, rounds: int) -> list[list[str]]:
    """Two rows of the table: medians of the rounds."""
    sides: dict[str, Callable[[list[float]], None]] = {
        "plain": lambda seconds: plainly(server.url, workload, [], seconds),
        "language": lambda seconds: in_language(server.url, workload, [], [], seconds),
    }
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            found[side].append(profiled(server, run))
    return [
        [workload.name, side, *(_written(median(each)) for each in zip(*rows, strict=True))]
        for side, rows in found.items()
    ]


def _written(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=NAMES, help="may be repeated; default: all")
    parser.add_argument("--cache", type=int, default=POOL, help="size of the KV pool in tokens")
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs")
    parser.add_argument("--options", default="", help="further options of `radixrt launch`")
    args = parser.parse_args(argv)
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    rows: list[list[str]] = []
    with TemporaryDirectory() as folder:
        command = f"{shlex.quote(sys.executable)} -m radixrt launch --port {{port}} --kv-cache-tokens {args.cache}"
        with started(f"{command} {args.options}", Path(folder) / "server.log", 120.0, 10.0) as server:
            for workload in workloads(args.workload or list(NAMES), RUNS, CONCURRENCY, seed=1):
                rows += compare(server, workload, args.rounds)
                print("\n".join(" | ".join(row) for row in rows[-2:]), file=sys.stderr, flush=True)
            counters = snapshot(server).counters
    print(table(COLUMNS, rows))
    model = {part: counters[f"radixrt_step_model_seconds:{part}"] for part in StepTimes.__struct_fields__[:6]}
    print("\nmodel of step times: " + ", ".join(f"{part}={value:.1e}" for part, value in model.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
