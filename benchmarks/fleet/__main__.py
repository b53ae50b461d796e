"""Simulate replicas behind a router: the real scheduler and radix cache on simulated devices; docs/scale.md.

    python -m benchmarks.fleet --workload A --rate 10 16 20 --seeds 3
    python -m benchmarks.fleet --mooncake conversation_trace.jsonl --speed 2 --replicas 8 --policy cache_aware
    python -m benchmarks.fleet --step-trace steps.json          # fit the device to a trace, and print the error

Workloads: A, agents that fork 1, 4 or 12 times; B, forks of 64 behind a long prompt; prefix, single requests of 1,088
tokens behind shared prefixes. Prints a table, and writes plots with --plots FOLDER. Times are simulated seconds; the
same arguments give the same result.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.fleet.device import H200_8B, KV_BYTES, Device, fit_steps, read_step_trace
from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.programs import WORKLOAD_A, WORKLOAD_B, Program, fork_programs, shared_prefix
from benchmarks.fleet.report import Run, results_table, write_plots
from benchmarks.fleet.traces import trace_programs
from benchmarks.fleet.variants import POLICIES, make_router
from radixrt.bench.traces import read_trace
from radixrt.messages.scheduler_stats import StepTimes

DEFAULTS = {"A": (600, 200_000, [16.0]), "B": (40, 900_000, [0.3]), "prefix": (10_000, 900_000, [600.0])}
"""Number of programs, slots of each replica, and rates, by workload."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workload", choices=tuple(DEFAULTS), default="A", help="programs to generate; default: A")
    source.add_argument("--mooncake", type=Path, metavar="FILE", help="a trace in Mooncake's format")
    source.add_argument("--bailian", type=Path, metavar="FILE", help="a trace in Qwen-Bailian's format")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES), help="default: all")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rate", type=float, nargs="+", help="programs per second")
    parser.add_argument("--count", type=int, help="number of programs; of a trace, of its lines")
    parser.add_argument("--speed", type=float, default=1.0, help="factor by which a trace is played faster")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--slots", type=int, help="tokens in the KV pool of each replica")
    parser.add_argument("--lag", type=float, default=0.001, help="seconds that a message takes; default: 0.001")
    parser.add_argument("--event-lag", type=float, default=0.01, help="and seconds more for events; default: 0.01")
    parser.add_argument("--link", type=float, default=25.0, help="GB/s between replicas, for `moves`; default: 25")
    parser.add_argument("--noise", type=float, default=0.0, help="deviation of the logarithm of step times")
    parser.add_argument("--step-trace", type=Path, metavar="FILE", help="fit the device to this trace of steps")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write SVG plots there")
    options = parser.parse_args(argv)
    for name, low in (("replicas", 1), ("count", 1), ("seeds", 1), ("slots", 1024)):
        if getattr(options, name) is not None and getattr(options, name) < low:
            parser.error(f"--{name} must be at least {low}")
    rates = {"rate": options.rate or [], "speed": [options.speed], "link": [options.link]}
    others = {"lag": [options.lag], "event-lag": [options.event_lag], "noise": [options.noise]}
    for name, values in (rates | others).items():
        if not all(map(math.isfinite, values)):
            parser.error(f"--{name} must be a finite number")
    if min([options.speed, options.link, *(options.rate or [])]) <= 0:
        parser.error("--rate, --speed and --link must be above 0")
    if min(options.lag, options.event_lag, options.noise) < 0:
        parser.error("--lag, --event-lag and --noise must not be negative")
    return options


def fitted(path: Path) -> StepTimes:
    """Fit a step-time model to a trace, and print its error."""
    fit = fit_steps(read_step_trace(path))
    print(
        f"step model of {path}: error p50 {fit.median:.1%}, p90 {fit.p90:.1%}, all steps together {fit.bias:+.1%} "
        f"({fit.held_out} steps that it was not fitted to)\n  {fit.times}",
        file=sys.stderr,
    )
    return fit.times


class Load:
    """The programs that the options ask for, made anew for each run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._kind = "mooncake" if options.mooncake else "bailian" if options.bailian else ""
        self._lines = read_trace(options.mooncake or options.bailian, self._kind, options.count) if self._kind else []
        count, slots, rates = DEFAULTS[options.workload]
        self.count = len(self._lines) or options.count or count
        self.slots = options.slots or (900_000 if self._kind else slots)
        self.rates = [0.0] if self._kind else options.rate or rates

    def name(self, rate: float) -> str:
        return f"{self._kind} x{self._options.speed:g}" if self._kind else f"{self._options.workload} {rate:g}/s"

    def programs(self, rate: float, seed: int, context_length: int) -> Iterator[Program]:
        if self._kind:
            return trace_programs(self._lines, self._kind, self._options.speed, min(context_length, self.slots))
        if self._options.workload == "prefix":
            return shared_prefix(rate, self.count, seed)
        shape = WORKLOAD_A if self._options.workload == "A" else WORKLOAD_B
        return fork_programs(shape, rate, self.count, seed)


def simulate(options: argparse.Namespace) -> list[Run]:
    """Run every policy under every rate and seed.

    Raises:
        ValueError, OSError: a trace cannot be read.
    """
    times = fitted(options.step_trace) if options.step_trace else H200_8B
    load = Load(options)
    move_s = KV_BYTES / (options.link * 1e9)
    device = Device(times, num_slots=load.slots, noise=options.noise, move_s=move_s)
    runs = []
    for rate in load.rates:
        for policy in options.policy:
            for seed in range(options.seeds):
                label = f"{load.name(rate)} {policy} seed {seed}"
                fleet = Fleet(
                    device, make_router(policy, options.replicas, device), options.replicas, lag_s=options.lag,
                    event_lag_s=options.event_lag, seed=seed,
                )  # fmt: skip
                begin = time.process_time()
                with tqdm(desc=label, unit=" requests", disable=None, leave=False) as bar:
                    programs = load.programs(rate, seed, device.context_length)
                    outcome = fleet.run(programs, lambda ended, bar=bar: bar.update(ended))  # type: ignore[misc]
                cpu_s = max(time.process_time() - begin, 1e-9)
                runs.append(Run(policy, load.name(rate), rate, seed, outcome, cpu_s))
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        runs = simulate(options)
    except (OSError, ValueError) as error:
        print(f"benchmarks.fleet: {error}", file=sys.stderr)
        return 2
    print(results_table(runs))
    if options.plots:
        write_plots(options.plots, runs)
    return 0


if __name__ == "__main__":
    gc.freeze()  # what is imported by now stays, and need not be searched again and again
    gc.set_threshold(200_000)
    sys.exit(main())
