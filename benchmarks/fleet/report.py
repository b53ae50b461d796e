"""Table and plots of simulated runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.common.tables import table
from benchmarks.fleet.fleet import Outcome
from benchmarks.fleet.plots import distribution, line_plot
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


def plots(runs: Sequence[Run]) -> dict[str, str]:
    """SVG files by name: means over the rate if there are several rates, else distributions over requests."""
    policies = list(dict.fromkeys(run.policy for run in runs))
    rates = sorted({run.rate for run in runs})
    found = {}
    for name, column in (("ttft", "TTFT mean s"), ("program", "program mean s")):
        if len(rates) > 1:
            lines = {
                policy: [
                    (rate, statistics.fmean(COLUMNS[column](r) for r in runs if (r.policy, r.rate) == (policy, rate)))
                    for rate in rates
                ]
                for policy in policies
            }
            label = "programs per second"
            found[name] = line_plot(lines, title=column, x_label=label, y_label="s, logarithmic", log_y=True)
            continue
        values: dict[str, list[float]] = {policy: [] for policy in policies}
        for run in runs:
            values[run.policy] += run.outcome.ttft if name == "ttft" else run.outcome.program_s
        found[name] = line_plot(
            {policy: distribution(all_of) for policy, all_of in values.items()},
            title=f"{'first token' if name == 'ttft' else 'program'}: share that is done by then",
            x_label="seconds", y_label="share",
        )  # fmt: skip
    return found
