"""Summaries of served workloads, and their markdown tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.common.machine import Memory
from benchmarks.common.tables import table
from benchmarks.serving.workloads import Workload, text_conforms
from radixrt.bench.result import Outcome, percentile

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Summary:
    """One run of one workload. Seconds and tokens; `ttft` and `tpot` at PERCENTILES, empty where nothing was measured.

    `cached_tokens` is None when no answer reported it, `schema_ok` when there was no schema. `client_cpu` is the
    processor seconds of this program while the workload ran: what it took from a server on the same cores.
    """

    workload: str
    requests: int
    wall: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    ttft: tuple[float, ...] = ()
    tpot: tuple[float, ...] = ()
    schema_ok: int | None = None
    client_cpu: float = 0.0
    errors: tuple[str, ...] = ()

    @property
    def output_rate(self) -> float:
        return self.output_tokens / self.wall

    @property
    def prompt_rate(self) -> float:
        return self.prompt_tokens / self.wall


@dataclass(frozen=True)
class Run:
    """One server, one round: every workload once, from `seed`. `ready` is None for a server that was there already."""

    server: str
    round: int
    seed: int
    ready: float | None = None
    memory: Memory | None = None
    summaries: list[Summary] = field(default_factory=list)


def summarise(workload: Workload, wall: float, outcomes: Sequence[Outcome], client_cpu: float) -> Summary:
    """Counts and percentiles over the requests that succeeded."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    cached = [outcome.cached_tokens for outcome in good if outcome.cached_tokens is not None]
    schema = workload.schema
    return Summary(
        workload=workload.name,
        requests=len(outcomes),
        wall=wall,
        prompt_tokens=sum(outcome.prompt_tokens for outcome in good),
        output_tokens=sum(outcome.output_tokens for outcome in good),
        cached_tokens=sum(cached) if cached else None,
        ttft=_percentiles(outcome.ttft for outcome in good),
        tpot=_percentiles(outcome.tpot for outcome in good),
        schema_ok=None if schema is None else sum(text_conforms(outcome.text, schema) for outcome in good),
        client_cpu=client_cpu,
        errors=tuple(outcome.error for outcome in outcomes if outcome.error is not None),
    )


def _percentiles(values: Iterable[float | None]) -> tuple[float, ...]:
    known = [value for value in values if value is not None]
    return tuple(percentile(known, q) for q in PERCENTILES) if known else ()


COLUMNS: dict[str, Callable[[Summary], str]] = {
    "workload": lambda s: s.workload,
    "wall s": lambda s: f"{s.wall:.2f}",
    "out tok/s": lambda s: f"{s.output_rate:.1f}",
    "prompt tok/s": lambda s: f"{s.prompt_rate:.0f}",
    "TTFT ms p50/p90/p99": lambda s: _milliseconds(s.ttft, 0),
    "TPOT ms p50/p90/p99": lambda s: _milliseconds(s.tpot, 1),
    "prompt tok": lambda s: str(s.prompt_tokens),
    "cached tok": lambda s: _known(s.cached_tokens),
    "out tok": lambda s: str(s.output_tokens),
    "schema ok": lambda s: "-" if s.schema_ok is None else f"{s.schema_ok}/{s.requests}",
    "errors": lambda s: f"{len(s.errors)}/{s.requests}" if s.errors else "0",
    "client CPU": lambda s: f"{s.client_cpu / s.wall:.1%}",
}


def _milliseconds(seconds: tuple[float, ...], digits: int) -> str:
    return " / ".join(f"{value * 1e3:.{digits}f}" for value in seconds) or "-"


def _known(count: int | None) -> str:
    return "-" if count is None else str(count)


def run_header() -> str:
    """The heading and rule of a run's table, for printing rows as they come."""
    return "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS)


def run_row(summary: Summary) -> str:
    return "| " + " | ".join(column(summary) for column in COLUMNS.values()) + " |"


def comparison(runs: Sequence[Run]) -> str:
    """Median wall seconds (lowest to highest) and output rate per workload and server, and the ratios A/B.

    The ratio is the first server's median wall time by the other's: below 1 the first is faster. Summaries with an
    error in them are left out, and a workload where a server has none left shows a dash.
    """
    servers = list(dict.fromkeys(run.server for run in runs))
    workloads = list(dict.fromkeys(summary.workload for run in runs for summary in run.summaries))
    first, *others = servers
    header = ["workload", *(f"{s} wall s" for s in servers), *(f"{s} out tok/s" for s in servers)]
    header += [f"{first} / {other}" for other in others]
    rows = []
    for workload in workloads:
        kept = {s: _clean(runs, s, workload) for s in servers}
        walls = {s: [summary.wall for summary in kept[s]] for s in servers}
        row = [workload]
        row += [_spread(walls[s]) for s in servers]
        row += [f"{median(summary.output_rate for summary in kept[s]):.1f}" if kept[s] else "-" for s in servers]
        row += [_ratio(walls[first], walls[other]) for other in others]
        rows.append(row)
    return table(header, rows)


def resources(runs: Sequence[Run]) -> str:
    """Start-up and memory of the servers that this program started; empty when it started none."""
    rows = []
    for server in dict.fromkeys(run.server for run in runs):
        mine = [run for run in runs if run.server == server]
        ready = [run.ready for run in mine if run.ready is not None]
        memory = [run.memory for run in mine if run.memory is not None]
        if ready and memory:
            figures = (median(m.rss for m in memory), median(m.pss for m in memory), median(m.peak for m in memory))
            rows.append((server, _spread(ready), *(f"{f:.0f}" for f in figures), str(memory[-1].processes)))
    return table(("server", "ready after s", "RSS MiB", "PSS MiB", "peak RSS MiB", "processes"), rows) if rows else ""


def _clean(runs: Sequence[Run], server: str, workload: str) -> list[Summary]:
    mine = (summary for run in runs if run.server == server for summary in run.summaries)
    return [summary for summary in mine if summary.workload == workload and not summary.errors]


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "-"
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    return f"{median(ours) / median(theirs):.2f}" if ours and theirs else "-"
