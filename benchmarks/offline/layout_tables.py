"""Results of layouts, their tables, and the layout to choose for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.common.tables import table
from benchmarks.offline.layout_plan import ONE, Fit, Layout

AS_GOOD = 0.97
"""A layout with this part of the highest rate, or more, is as good: runs differ by so much."""


@dataclass(frozen=True)
class Started:
    """A layout that was started, or why not.

    Attributes:
        weight_gib: of weights on each GPU.
        kv_tokens: room in the KV pools of all replicas together.
        startup_s: seconds until the engine answered.
        problem: why there are no results, or no more of them; empty if there are all.
    """

    layout: Layout
    weight_gib: float
    kv_tokens: int = 0
    startup_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Cell:
    """One workload in one layout.

    Attributes:
        rates: tokens a second of each run.
        ttft_p50, ttft_p99: seconds from the call to a request's first token, over all runs.
        floor_share: the floor of the layout, relative to the measured time; median of the runs.
    """

    layout: Layout
    workload: str
    rates: list[float]
    ttft_p50: float
    ttft_p99: float
    floor_share: float

    @property
    def rate(self) -> float:
        return median(self.rates)


@dataclass(frozen=True)
class Choice:
    """The layout to choose for a workload.

    Attributes:
        layout: the fastest, or of those that are as good the one with the fewest GPUs; then that whose first tokens
            come earliest.
        rate: its tokens a second.
        as_good: names of the others that are as good.
        first: name of the layout whose first tokens come earliest (p50), and these seconds.
    """

    workload: str
    layout: str
    rate: float
    as_good: list[str]
    first: str
    first_s: float


def by_workload(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each workload, in the order in which they ran."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.workload, []).append(cell)
    return found


def choices(cells: Sequence[Cell]) -> list[Choice]:
    """Return the layout to choose for each workload."""
    found = []
    for workload, each in by_workload(cells).items():
        most = max(cell.rate for cell in each)
        good = [cell for cell in each if cell.rate >= AS_GOOD * most]
        best = min(good, key=lambda cell: (cell.layout.gpus, cell.ttft_p50))
        first = min(each, key=lambda cell: cell.ttft_p50)
        others = [cell.layout.name for cell in good if cell is not best]
        found.append(Choice(workload, best.layout.name, best.rate, others, first.layout.name, first.ttft_p50))
    return found


def started_table(started: Sequence[Started]) -> str:
    """One row for each layout: what it holds, or why it did not run."""
    rows = [
        [
            each.layout.name,
            str(each.layout.gpus),
            f"{each.weight_gib:.1f}" if each.weight_gib else "-",
            f"{each.kv_tokens:,}" if each.startup_s else "-",
            f"{each.startup_s:.1f}" if each.startup_s else "-",
            each.problem or "ran",
        ]
        for each in started
    ]
    return table(["layout", "GPUs", "weights, GiB", "KV room, tokens", "start-up s", ""], rows)


def results_table(cells: Sequence[Cell]) -> str:
    """One row for each workload and layout."""
    rows = []
    for workload, each in by_workload(cells).items():
        alone = next((cell.rate for cell in each if cell.layout == ONE), None)
        for cell in each:
            rows.append([
                workload,
                cell.layout.name,
                f"{cell.rate:,.0f}",
                "-" if alone is None else f"{cell.rate / alone:.2f}",
                f"{cell.ttft_p50 * 1e3:,.0f}",
                f"{cell.ttft_p99 * 1e3:,.0f}",
                f"{cell.floor_share:.0%}" if cell.floor_share >= 0.01 else f"{cell.floor_share:.1g}",
            ])  # fmt: skip
    header = ["workload", "layout", "tok/s", "times one GPU", "TTFT p50 ms", "TTFT p99 ms", "floor / measured"]
    return table(header, rows)


def choices_table(cells: Sequence[Cell]) -> str:
    """One row for each workload: the layout to choose."""
    rows = [
        [each.workload, each.layout, f"{each.rate:,.0f}", ", ".join(each.as_good) or "-",
         f"{each.first} ({each.first_s * 1e3:,.0f} ms)"]
        for each in choices(cells)
    ]  # fmt: skip
    return table(["workload", "choose", "tok/s", f"within {1 - AS_GOOD:.0%}", "earliest first tokens"], rows)


def plan_table(
    fits: Mapping[Layout, Fit], rates: Mapping[Layout, Mapping[str, float]], workloads: Sequence[str]
) -> str:
    """One row for each layout: what would fit, and the floors as tokens a second.

    Args:
        rates: of the layouts that fit, by workload.
    """
    rows = []
    for layout, fit in fits.items():
        row = [layout.name, str(layout.gpus), f"{fit.weight_gib:.1f}" if fit.weight_gib else "-"]
        if fit.problem:
            rows.append([*row, "-", *["-"] * len(workloads), fit.problem])
        else:
            floors = [f"{rates[layout][name]:,.0f}" for name in workloads]
            rows.append([*row, f"{fit.kv_tokens:,}", *floors, "fits"])
    return table(["layout", "GPUs", "weights, GiB", "KV room, about", *workloads, ""], rows)
