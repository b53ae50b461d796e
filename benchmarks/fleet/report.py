"""Table and plots of simulated runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.plots import line_plot
from benchmarks.common.tables import table
from benchmarks.fleet.fleet import Outcome
from radixrt.bench.result import percentile


@dataclass(frozen=True)
class Run:
    """Outcome of one policy under one load and seed.

    Attributes:
        load: name of the load, e.g. "A 16/s".
        rate: programs, or requests, per second; 0 for a trace.
        cpu_s: CPU seconds of the simulating process.
    """

    policy: str
    load: str
    rate: float
    seed: int
    outcome: Outcome
    cpu_s: float


COLUMNS: dict[str, Callable[[Run], float]] = {
    "TTFT mean s": lambda run: statistics.fmean(run.outcome.ttft),
    "TTFT p99 s": lambda run: percentile(run.outcome.ttft, 99),
    "program mean s": lambda run: statistics.fmean(run.outcome.program_s),
    "program p95 s": lambda run: percentile(run.outcome.program_s, 95),
    "hits %": lambda run: 100 * run.outcome.cached_tokens / run.outcome.prompt_tokens,
    "out tok/s": lambda run: run.outcome.output_tokens / run.outcome.elapsed_s,
    "refused": lambda run: run.outcome.refused,
    "requests per CPU s": lambda run: len(run.outcome.ttft) / run.cpu_s,
}


def results_table(runs: Sequence[Run]) -> str:
    """A markdown table with a row for each load and policy; cells are means over seeds, with half of their range."""
    keys = list(dict.fromkeys((run.load, run.policy) for run in runs))
    body = []
    for load, policy in keys:
        same = [run for run in runs if (run.load, run.policy) == (load, policy) and run.outcome.ttft]
        cells = [_cell([column(run) for run in same]) for column in COLUMNS.values()] if same else []
        body.append([load, policy, *cells, *["-"] * (len(COLUMNS) - len(cells))])
    return table(["load", "policy", *COLUMNS], body)


def _cell(values: Sequence[float]) -> str:
    spread = (max(values) - min(values)) / 2
    return f"{statistics.fmean(values):.3g}" + (f" ±{spread:.2g}" if len(values) > 1 else "")


def write_plots(folder: Path, runs: Sequence[Run]) -> None:
    """Write SVG files: means over the rate if there are several rates, else distributions over requests."""
    folder.mkdir(parents=True, exist_ok=True)
    policies = list(dict.fromkeys(run.policy for run in runs))
    rates = sorted({run.rate for run in runs})
    for name, column, values in (
        ("ttft", "TTFT mean s", lambda run: run.outcome.ttft),
        ("program", "program mean s", lambda run: run.outcome.program_s),
    ):
        path, lines = folder / f"{name}.svg", {}
        for policy in policies:
            mine = [run for run in runs if run.policy == policy]
            if len(rates) > 1:
                means = ((rate, [COLUMNS[column](run) for run in mine if run.rate == rate]) for rate in rates)
                lines[policy] = [(rate, statistics.fmean(each)) for rate, each in means]
            else:
                lines[policy] = distribution([value for run in mine for value in values(run)])
        if len(rates) > 1:
            line_plot(path, lines, title=column, x_label="programs per second", y_label="s", log="y")
        else:
            title = f"{'first token' if name == 'ttft' else 'program'}: share that is done by then"
            line_plot(path, lines, title=title, x_label="seconds", y_label="share")


def distribution(values: Sequence[float], points: int = 100) -> list[tuple[float, float]]:
    """Return (value, share of the values up to it) at equal steps of the share."""
    shares = [i / points for i in range(points + 1)]
    return [(percentile(values, 100 * share), share) for share in shares] if values else []
