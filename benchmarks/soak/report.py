"""Table, plots and verdict of a soak."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.plots import line_plot
from benchmarks.common.tables import table
from benchmarks.soak.load import Tally
from benchmarks.soak.samples import Sample, slope

WARM_UP = 1 / 2
"""Share of the time that growth is not judged by: caches and the KV pool fill up first."""

FLAT_MIB, FLAT_SHARE = 16.0, 0.02
"""Growth, in MiB or as a share of the memory, that still counts as flat over the time that is judged."""

ROWS = 16
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Growth:
    """Growth of one process after the warm-up.

    Attributes:
        median: MiB.
        per_hour: MiB an hour, by the robust slope.
        over: MiB over the time that is judged.
    """

    process: str
    median: float
    per_hour: float
    over: float

    @property
    def is_flat(self) -> bool:
        return self.over <= max(FLAT_MIB, FLAT_SHARE * self.median)


def processes(samples: Sequence[Sample]) -> list[str]:
    """Return the names of all processes in the samples, main first."""
    names = {name for sample in samples for name in sample.rss}
    return sorted(names, key=lambda name: (name != "main", name))


def growth(samples: Sequence[Sample]) -> list[Growth]:
    """Judge each process by its samples after the warm-up."""
    begin = samples[-1].seconds * WARM_UP
    judged = [sample for sample in samples if sample.seconds >= begin]
    found = []
    for name in processes(samples):
        points = [(sample.seconds, sample.rss[name]) for sample in judged if name in sample.rss]
        if len(points) < 2:
            continue
        times, values = zip(*points, strict=True)
        each = slope(times, values)
        found.append(Growth(name, statistics.median(values), each * 3600, each * (times[-1] - times[0])))
    return found


def timeline(samples: Sequence[Sample], rows: int = ROWS) -> str:
    """A markdown table of at most `rows` moments: RSS and descriptors of each process, and the slots."""
    names = processes(samples)
    step = max(1, -(-len(samples) // rows))
    chosen = [*samples[:-1:step], samples[-1]]
    header = ["min", *(f"{name} MiB (fds)" for name in names), "slots free", "evictable", "in use"]
    body = []
    for sample in chosen:
        cells = [f"{sample.rss[n]:.0f} ({sample.fds[n]})" if n in sample.rss else "" for n in names]
        used = sample.slots.get("protected", 0) + sample.slots.get("private", 0)
        slots = [str(sample.slots.get("free", "")), str(sample.slots.get("evictable", "")), str(used)]
        body.append([f"{sample.seconds / 60:.1f}", *cells, *slots])
    return table(header, body)


def text_plot(samples: Sequence[Sample], width: int = 72) -> str:
    """One line of bars for each process, from 0 to its largest RSS."""
    lines = []
    for name in processes(samples):
        values = [sample.rss.get(name, 0.0) for sample in samples]
        step = max(1, -(-len(values) // width))
        columns = [max(values[i : i + step]) for i in range(0, len(values), step)]
        top = max(columns) or 1.0
        bars = "".join(BARS[round(value / top * (len(BARS) - 1))] for value in columns)
        lines.append(f"{name:>18} {bars} {top:.0f} MiB")
    return "\n".join(lines)


def plot(path: Path, samples: Sequence[Sample]) -> None:
    """Write the RSS of each process over time as an SVG file."""
    lines = {
        name: [(sample.seconds / 60, sample.rss[name]) for sample in samples if name in sample.rss]
        for name in processes(samples)
    }
    line_plot(path, lines, x_label="minutes", y_label="RSS, MiB")


def tally_table(tally: Tally) -> str:
    endings = ("answered", "refused", "left", "busy", "broken")
    kinds = sorted({kind for kind, _ in tally.ended})
    return table(["requests", *endings], [[kind, *(str(tally.ended[kind, e]) for e in endings)] for kind in kinds])


def verdicts(samples: Sequence[Sample], tally: Tally, *, idle: bool) -> list[tuple[bool, str]]:
    """Return whether each property holds, and a line that says so.

    Args:
        samples: the last one was taken after the load.
        idle: whether the server had no open request by then.
    """
    lines = [
        (
            each.is_flat,
            f"{each.process}: {each.median:.0f} MiB, {each.per_hour:+.0f} MiB/h, {each.over:+.1f} MiB in all",
        )
        for each in growth(samples)
    ]
    last = samples[-1].slots
    held = last.get("protected", 0) + last.get("private", 0)
    lines.append((idle and bool(last) and not held, f"slots in use after the load: {held if last else 'not known'}"))
    for name in processes(samples):
        counts = [sample.fds[name] for sample in samples if name in sample.fds]
        lines.append((counts[-1] <= counts[0] + 16, f"{name}: {counts[0]} descriptors before, {counts[-1]} after"))
    lines.append((not tally.broken, f"wrong answers: {len(tally.broken)}"))
    return lines
