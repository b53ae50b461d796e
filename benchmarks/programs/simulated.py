"""Table "Programs on a simulated device" of docs/benchmarks.md: counts and times that are the same on every machine.

    python -m benchmarks.programs.simulated [--device cpu] [--times MODEL] [--cache 3072] [--runs 8] [--concurrency 8]

The workloads of `benchmarks.programs` on the real scheduler, with steps that take what a model of step times says.
*Offline* is the best of all schedules that begin at most 1, 2, ... programs at once, with hints or without, each with
the cache as the scheduler keeps it and equal calls sent once: what can be had by knowing all programs in advance.
*Roomy* is the language with a pool that holds everything, which no schedule in a smaller one can beat.
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import geometric_mean, median, quantiles

from benchmarks.common.tables import table
from benchmarks.programs.recorded import Recorded, RecordedCall, record
from benchmarks.programs.simulation import CPU, GPU, Result, Simulation
from benchmarks.programs.workloads import CONCURRENCY, NAMES, POOL, RUNS, workloads
from radixrt.messages.scheduler_stats import StepTimes

DEVICES = {"cpu": CPU, "gpu": GPU}
COLUMNS = (
    "program", "pool", "plain s", "language s", "plain / language", "plain / offline", "of offline", "plain / roomy",
    "p50 plain", "p50", "p95 plain", "p95", "computed k plain", "computed k",
)  # fmt: skip


def simulate(
    runs: Sequence[Sequence[RecordedCall]], pool: int, times: StepTimes, *, hints: bool, concurrency: int
) -> Result:
    """One side."""
    return Simulation(runs, slots=pool, times=times, hints=hints, concurrency=concurrency).run()


def compare(name: str, recorded: Recorded, pool: int, times: StepTimes, concurrency: int) -> tuple[float, list[str]]:
    """One row of the table, and the ratio of plain to language."""
    runs = recorded.language
    room = sum(len(call.prompt) + len(call.output) for run in runs for call in run)
    schedules = [
        simulate(runs, pool, times, hints=hints, concurrency=at_once)
        for hints in (False, True)
        for at_once in range(1, concurrency + 1)
    ]
    plain = simulate(recorded.plain, pool, times, hints=False, concurrency=concurrency)
    language = schedules[-1]
    offline = min(schedule.wall for schedule in (plain, *schedules))
    roomy = simulate(runs, room, times, hints=True, concurrency=concurrency)
    both = (plain, language)
    return plain.wall / language.wall, [
        name,
        str(pool),
        *(f"{side.wall:.2f}" for side in both),
        f"{plain.wall / language.wall:.2f}",
        f"{plain.wall / offline:.2f}",
        f"{offline / language.wall:.1%}",
        f"{plain.wall / roomy.wall:.2f}",
        *(f"{median(side.seconds):.2f}" for side in both),
        *(f"{quantiles(side.seconds, n=20)[-1]:.2f}" for side in both),
        *(f"{side.computed / 1e3:.1f}" for side in both),
    ]


def step_times(text: str) -> StepTimes:
    """Parse "step=0.01,row=1e-4,..."; the parts that are not named are 0. Raises ArgumentTypeError."""
    parts = {"step": 0.0, "row": 0.0, "context": 0.0, "extend": 0.0, "token": 0.0, "pair": 0.0}
    for item in text.split(","):
        name, _, value = item.partition("=")
        if name not in parts:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(parts)}")
        try:
            parts[name] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{name}: {value!r} is no number of seconds") from None
    step, row, context, extend, token, pair = parts.values()
    return StepTimes(step, row, context, extend, token, pair)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(DEVICES), default="cpu", help="model of step times")
    parser.add_argument("--times", type=step_times, help="another model: step=S,row=S,... in seconds")
    parser.add_argument("--workload", action="append", choices=NAMES, help="may be repeated; default: all")
    parser.add_argument("--cache", type=int, nargs="+", default=[POOL], help="sizes of the KV pool in tokens")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each program")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="runs at once")
    args = parser.parse_args(argv)
    names = args.workload or list(NAMES)
    made = {each.name: record(each) for each in workloads(names, args.runs, args.concurrency, seed=1)}
    rows, means = [], []
    for pool in args.cache:
        ratios = []
        for name, runs in made.items():
            ratio, row = compare(name, runs, pool, args.times or DEVICES[args.device], args.concurrency)
            ratios.append(ratio)
            rows.append(row)
        means.append(f"pool of {pool}: plain / language {geometric_mean(ratios):.2f} on geometric average")
    device = f"device of {args.times}" if args.times else args.device
    print(f"{args.runs} runs of each program, {args.concurrency} at once, simulated {device}\n")
    print(table(COLUMNS, rows))
    print("\n" + "\n".join(means))
    return 0


if __name__ == "__main__":
    sys.exit(main())
