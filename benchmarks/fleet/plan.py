"""Plan a fleet for many users of agent programs, from simulated runs: how many GPUs, routers and bytes; docs/scale.md.

    python -m benchmarks.fleet.plan --users 1000000 --images docs/images

Each user begins a program of workload A every `--period` seconds. The capacity of a GPU is the rate of programs at
which their mean time reaches `--limit`. It is found for a small and a larger fleet, for the approximate cache-aware
rule, and for step times that are a fifth longer or shorter than the model says. Prints tables, and writes a plot.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from benchmarks.common.plots import line_plot
from benchmarks.common.tables import table
from benchmarks.common.thread_times import Times
from benchmarks.fleet.device import H200_8B, Device
from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.programs import WORKLOAD_A, fork_programs
from benchmarks.fleet.variants import make_router
from radixrt.bench.result import percentile
from radixrt.messages.scheduler_stats import StepTimes

TOKENIZER_BYTES = 16
"""Bytes of a token on its way back: its id, and a share of the request's id."""


class SimulatedFleet(NamedTuple):
    """A fleet that is simulated at several rates.

    Attributes:
        rates: programs per second and GPU.
        step: factor of all step times.
    """

    policy: str
    replicas: int
    rates: tuple[float, ...]
    step: float = 1.0

    @property
    def name(self) -> str:
        scaled = f", steps x{self.step:g}" if self.step != 1.0 else ""
        return f"{self.policy}, {self.replicas} GPUs{scaled}"


FLEETS = (
    SimulatedFleet("priced", 4, (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)),
    SimulatedFleet("priced", 16, (2.5, 3.0, 3.5, 4.0)),
    SimulatedFleet("cache_aware", 4, (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)),
    SimulatedFleet("priced", 4, (2.0, 2.5, 3.0), 1.2),
    SimulatedFleet("priced", 4, (3.0, 3.5, 4.0, 4.5, 5.0), 0.8),
)


class Point(NamedTuple):
    """Measurements of one run. Times are in seconds.

    Attributes:
        rate: programs per second and GPU.
        router_s: processor time of the router for one call.
        calls: calls of one program.
        prompt, output: tokens of one call.
    """

    rate: float
    program: float
    program_p95: float
    ttft_p99: float
    hits: float
    router_s: float
    calls: float
    prompt: float
    output: float


def measure(fleet: SimulatedFleet, rate: float, seconds: float, seed: int) -> Point:
    """Simulate programs that begin for so many seconds, until the last has ended."""
    device = Device(StepTimes(*(fleet.step * each for each in structs.astuple(H200_8B)[:6])))
    router, times = make_router(fleet.policy, fleet.replicas, device), Times()
    for name in ("submit", "receive", "tick"):
        times.book("router", router, name)
    simulated = Fleet(device, router, fleet.replicas, lag_s=0.001, event_lag_s=0.01, seed=seed)
    count = round(rate * fleet.replicas * seconds)
    outcome = simulated.run(fork_programs(WORKLOAD_A, rate * fleet.replicas, count, seed))
    calls = len(outcome.ttft)
    return Point(
        rate, statistics.fmean(outcome.program_s), percentile(outcome.program_s, 95), percentile(outcome.ttft, 99),
        outcome.cached_tokens / outcome.prompt_tokens, times.seconds["router"] / calls, calls / count,
        outcome.prompt_tokens / calls, outcome.output_tokens / calls,
    )  # fmt: skip


def capacity(points: Sequence[Point], limit_s: float) -> float | None:
    """Return the rate at which the mean time of a program reaches the limit; None outside of the rates measured."""
    for low, high in itertools.pairwise(points):
        if low.program <= limit_s < high.program:
            return low.rate + (high.rate - low.rate) * (limit_s - low.program) / (high.program - low.program)
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--period", type=float, default=600.0, help="seconds between the programs of a user")
    parser.add_argument("--limit", type=float, default=5.0, help="mean seconds of a program that a GPU is loaded to")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds in which programs begin")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="write the plot there")
    options = parser.parse_args(argv)
    rows, lines, found = [], {}, []
    for fleet in FLEETS:
        points = []
        for rate in fleet.rates:
            points.append(measure(fleet, rate, options.seconds, options.seed))
            p = points[-1]
            cells = (p.rate, p.program, p.program_p95, p.ttft_p99, 100 * p.hits, 1e6 * p.router_s)
            rows.append([fleet.name, *(f"{cell:.3g}" for cell in cells)])
            print(*rows[-1], file=sys.stderr, flush=True)
        lines[fleet.name] = [(p.rate, p.program) for p in points]
        found.append((fleet, points, capacity(points, options.limit)))
    header = ["fleet", "programs/s and GPU", "program s", "p95 s", "TTFT p99 s", "hits %", "router us a call"]
    print(table(header, rows))
    print(table(["fleet", f"programs/s and GPU within {options.limit:g} s", "GPUs"], plan(found, options)))
    print(traffic(found[0][1][-1], options.users / options.period))
    if options.images:
        options.images.mkdir(parents=True, exist_ok=True)
        path = options.images / "scale-plan.svg"
        line_plot(path, lines, title="mean seconds of a program", x_label="programs per second and GPU")
    return 0


def plan(
    found: Sequence[tuple[SimulatedFleet, Sequence[Point], float | None]], options: argparse.Namespace
) -> list[list[str]]:
    """Rows of a table: the capacity of a GPU, and how many serve all users."""
    programs = options.users / options.period
    return [
        [fleet.name, "-" if rate is None else f"{rate:.2f}", "-" if rate is None else f"{programs / rate:.0f}"]
        for fleet, _, rate in found
    ]


def traffic(point: Point, programs: float) -> str:
    """Return what all users together send through the processes of the host."""
    calls = programs * point.calls
    tokens = calls * point.output
    inward, back = 4 * calls * point.prompt, TOKENIZER_BYTES * tokens
    return (
        f"{programs:.0f} programs/s, {calls:.0f} calls/s, {calls * point.prompt / 1e6:.1f} M prompt and "
        f"{tokens / 1e6:.2f} M output tokens/s; to the replicas {8 * inward / 1e9:.2f} Gb/s, back "
        f"{8 * back / 1e9:.2f} Gb/s; routers {calls * point.router_s:.1f} cores without sockets"
    )


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(200_000)
    sys.exit(main())
