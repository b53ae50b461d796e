"""Table of docs/pipeline.md: offline throughput of one GPU, tensor-parallel ranks and pipeline stages.

Workloads and options are those of `benchmarks.offline`. Each workload has an engine of its own in each of the three
set-ups. One GPU's run writes a step trace, from which the bound for stages follows: with n stages of equal time and
nothing lost between them,

- a step with prompts takes a stage 1 / n of its time, and the next one may follow then;
- a turn of decode rows is n steps with 1 / n of the rows, each of which takes a stage 1 / n of its time on one GPU: the
  turn takes as long as one such step there, and every stage reads its weights n times. How long that is says a
  step-time model, which is fitted to this trace and to that of a run with 1 / n of the requests;
- for each run the stages wait once for the first step to pass them: (n - 1) / n of the median time of the largest ones.

The run with stages writes a trace for each rank, from which follows the busy share of each stage: the part of the time
with steps in flight in which the stage's first rank computed. What remains to 100 % is bubbles.

Run: python -m benchmarks.offline.stages --shape llama-3.1-8b                  (two GPUs; --ranks 4: four)
     python -m benchmarks.offline.stages --shape tiny --scale 0.05 --runs 1    (any machine; ranks share its cores)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.step_traces import busy_shares, rank_traces
from benchmarks.common.tables import table
from benchmarks.fleet.device import MIN_STEPS, TracedStep, fit_steps, read_step_trace
from benchmarks.offline.__main__ import CUDA_OPTIONS, TINY_OPTIONS, machine_facts, measure, run_once
from benchmarks.offline.workloads import MAKERS, make_workload
from radixrt.messages.scheduler_stats import StepTimes

WORKLOADS = ("prefill", "decode64", "mixed256")
LARGE = 0.9
"""Steps of this part of the most prompt tokens, or more, count as the largest ones."""


@dataclass(frozen=True)
class Measured:
    """A workload in one set-up.

    Attributes:
        rates: tokens a second of each run.
        kv_slots: tokens that the KV pool holds.
        busy: busy share of each pipeline stage; empty without stages.
    """

    setup: str
    workload: str
    rates: list[float]
    kv_slots: int
    busy: list[float] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)


def bound(steps: Sequence[TracedStep], fewer: Sequence[TracedStep], stages: int, runs: int) -> float:
    """Return how many times faster than one GPU the stages are at most; see the module's docstring.

    Args:
        steps: all steps of one GPU, in so many runs.
        fewer: steps with fewer rows. If both are fewer than MIN_STEPS, no model is fitted, and a step with fewer rows
            counts as one with all of them.
    """
    known = [*steps, *fewer]
    times = fit_steps(known).times if len(known) >= MIN_STEPS else None
    staged = 0.0
    for shape, seconds in steps:
        if shape.tokens:
            staged += seconds / stages
            continue
        parts = max(min(stages, shape.rows), 1)
        staged += seconds * (1.0 if times is None else _relative(times, shape.rows, shape.context, parts))
    most = max(shape.tokens for shape, _ in steps)
    first = median(seconds for shape, seconds in steps if shape.tokens >= LARGE * most)
    return sum(seconds for _, seconds in steps) / (staged + runs * first * (stages - 1) / stages)


def _relative(times: StepTimes, rows: int, context: int, parts: int) -> float:
    """Return the time of a decode step with one of so many parts of the rows, relative to that with all of them."""
    return times.seconds(rows / parts, context / parts) / times.seconds(rows, context)


def trace_part(options: dict[str, Any], workload: str, args: argparse.Namespace) -> list[TracedStep]:
    """Run one of as many parts of the requests as there are to be stages, and return its steps."""
    from radixrt import Engine

    whole = make_workload(workload, seed=args.seed, scale=args.scale)
    part = dataclasses.replace(
        whole, paths=whole.paths[:: args.ranks], outputs=whole.outputs[:: args.ranks],
        turns=tuple(turn[:: args.ranks] for turn in whole.turns),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "steps.json"
        with Engine(str(shape_folder(args.shape)), show_progress=False, **options, step_trace=str(trace)) as engine:
            run_once(engine, part, {})
        return read_step_trace(trace, min_steps=1)


def run_setup(setup: str, options: dict[str, Any], workload: str, args: argparse.Namespace) -> Measured:
    """Measure a workload on an engine of its own; with pipeline stages its steps are traced."""
    stages, tp = options.get("pp", 1), options.get("tp", 1)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "steps.json"
        if stages > 1:
            options = {**options, "step_trace": str(trace)}
        measured = _run_engine(setup, options, workload, args)
        busy = busy_shares(rank_traces(trace)[::tp]) if stages > 1 else []
    if busy:
        print(f"{setup}, {workload}: stages busy {_percentages(busy)}", flush=True)
    return dataclasses.replace(measured, busy=busy)


def _run_engine(setup: str, options: dict[str, Any], workload: str, args: argparse.Namespace) -> Measured:
    from radixrt import Engine

    with Engine(str(shape_folder(args.shape)), show_progress=False, **options) as engine:
        assert engine.client.info is not None
        slots = engine.client.info.num_slots
        result = measure(engine, args.shape, workload, runs=args.runs, scale=args.scale, seed=args.seed)
    rates = [tokens / seconds for tokens, seconds in zip(result.tokens, result.seconds, strict=True)]
    print(f"{setup}, {workload}: {median(rates):,.0f} tok/s ({min(rates):,.0f} to {max(rates):,.0f})", flush=True)
    return Measured(setup, workload, rates, slots)


def report(found: Sequence[Measured], bounds: dict[str, float]) -> str:
    """One row for each workload: the rates, and how many times that of one GPU they are."""
    setups = list(dict.fromkeys(each.setup for each in found))
    by = {(each.setup, each.workload): each for each in found}
    rows = []
    for workload, most in bounds.items():
        alone = by[setups[0], workload]
        row = [workload, f"{alone.rate:,.0f}"]
        for setup in setups[1:]:
            each = by[setup, workload]
            row.append(f"{each.rate:,.0f} ({each.rate / alone.rate:.2f} times)")
        rows.append([*row, f"{most:.2f} times"])
    pools = [by[setup, next(iter(bounds))].kv_slots for setup in setups]
    more = [f"{pool:,} ({pool / pools[0]:.2f} times)" for pool in pools[1:]]
    rows.append(["KV slots", f"{pools[0]:,}", *more, "-"])
    for setup in setups:
        for workload in bounds:
            if shares := by[setup, workload].busy:
                cells = [_percentages(shares) if each == setup else "-" for each in setups]
                rows.append([f"stages busy, {workload}", *cells, "-"])
    return table(["workload, tok/s", *setups, "bound of stages"], rows)


def _percentages(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(CONFIGS), default="tiny")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, as tensor-parallel ranks and as stages")
    parser.add_argument("--workloads", nargs="+", choices=list(MAKERS), default=list(WORKLOADS))
    parser.add_argument("--scale", type=float, default=1.0, help="shrinks numbers of requests and lengths")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each workload, after a warm-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of all engines")
    parser.add_argument("--set-pp", action="append", default=[], metavar="OPTION=VALUE", help="one of the stages alone")
    parser.add_argument("--json", type=Path, help="write everything there too")
    args = parser.parse_args(argv)
    if args.runs < 1 or args.ranks < 2 or not args.scale > 0:
        parser.error("--runs must be at least 1, --ranks at least 2 and --scale above 0")
    machine = machine_facts()
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    common = {**(TINY_OPTIONS if args.shape.startswith("tiny") else CUDA_OPTIONS), "load_format": "dummy"}
    common = {**common, "log_level": "warning", **parse_options(args.set)}
    print(f"options: {', '.join(f'{name}={value}' for name, value in sorted(common.items()))}", flush=True)
    n = args.ranks
    setups = {f"tp {n}": {"tp": n}, f"pp {n}": {"pp": n, **parse_options(args.set_pp)}}
    found: list[Measured] = []
    bounds: dict[str, float] = {}
    for workload in args.workloads:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "steps.json"
            found.append(run_setup("one GPU", {**common, "step_trace": str(trace)}, workload, args))
            steps = read_step_trace(trace, min_steps=1)
        bounds[workload] = bound(steps, trace_part(common, workload, args), args.ranks, args.runs + 1)
        found += [run_setup(setup, {**common, **options}, workload, args) for setup, options in setups.items()]
    print("\n" + report(found, bounds))
    if args.json is not None:
        measured = [dataclasses.asdict(each) for each in found]
        args.json.write_text(json.dumps({"machine": machine, "measured": measured, "bounds": bounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
