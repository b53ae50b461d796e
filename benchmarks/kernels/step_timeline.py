"""Table "From step to step" of docs/cuda.md: device time of steps and the gaps between them, from a step trace.

    python -m benchmarks.offline --shape qwen3-0.6b --workloads decode64 --runs 1 --set step_trace=trace.json
    python -m benchmarks.kernels.step_timeline trace.json [--pause 30]

The first table has a line for each stretch of steps without a pause on the device, the second one for each number of
rows of consecutive decode steps. `gap` is the device's time from the end of one step to the beginning of the next; the
copy of a step's inputs lies in it. `launch` is the host's time from a step's message until its forward pass was in the
stream, captures included. `mask wait` is the device's time from the end of a step's forward pass to the beginning of
its sampling: constrained steps wait there for their mask. `turnaround` is the host's time from the answer of one step
to the moment at which the next one may be sampled, which for constrained steps is the arrival of the mask. `busy` is
the steps' part of the time, less these waits; pauses between a step's own kernels count as busy.

Of an engine with several ranks it reads trace.rankN.json of the rank that answers; the file of any other rank has no
answers. Perfetto (https://ui.perfetto.dev) and chrome://tracing draw the same file as a timeline.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.step_traces import answering_trace
from benchmarks.common.tables import table
from radixrt.bench.result import percentile

DEFAULT_PAUSE_MS = 30.0
MIN_STEPS = 50
"""Smallest number of pairs of decode steps for which a number of rows gets a line."""


@dataclass(frozen=True)
class Step:
    """One step; times in milliseconds since the trace began.

    Attributes:
        launch_begin, launch_end: times on the host at which the message arrived and its forward pass was in the stream.
        mask_at: time on the host at which sampling could be launched.
        begin, forwarded, sampling, end: times on the device: of the forward pass, and of sampling.
        answered: time at which the tokens were sent to the scheduler.
    """

    step: int
    mode: str
    rows: int
    tokens: int
    launch_begin: float
    launch_end: float
    mask_at: float
    begin: float
    forwarded: float
    sampling: float
    end: float
    answered: float

    @property
    def waited(self) -> float:
        """Milliseconds for which the device waited between the forward pass and sampling."""
        return self.sampling - self.forwarded

    @property
    def took(self) -> float:
        """Duration on the device without that wait, in milliseconds."""
        return self.end - self.begin - self.waited

    @property
    def is_decode(self) -> bool:
        return self.mode == "decode"


_LANES = {"launch", "launch-sampling", "device", "device-sampling", "answer"}


def read_trace(path: Path) -> list[Step]:
    """The steps of a trace that were answered, in the order in which the device computed them.

    Raises:
        ValueError: a line is not a trace event, or there are no device times.
    """
    path = answering_trace(path)
    lanes: dict[int, dict[str, dict[str, Any]]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        text = line.strip().rstrip(",")
        if text in ("", "[", "]"):
            continue
        try:
            event = json.loads(text)
            if event["ph"] == "M":
                continue  # names of lanes
            lane, _, mode = event["name"].partition(" ")
            lanes.setdefault(event["args"]["step"], {})[lane] = {**event, "mode": mode}
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # the runner was killed while writing
            raise ValueError(f"{path}, line {number}: not a line of a step trace ({error!r})") from error
    steps = [_step(found) for found in lanes.values() if found.keys() >= _LANES]
    if not steps:
        raise ValueError(f"{path} has no step with device times; --step-trace records them on CUDA")
    return sorted(steps, key=lambda step: step.begin)


def _step(lanes: dict[str, dict[str, Any]]) -> Step:
    def span(lane: str) -> tuple[float, float]:
        event = lanes[lane]
        return event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000

    args = lanes["device"]["args"]
    return Step(
        args["step"], lanes["device"]["mode"], args["rows"], args["tokens"], *span("launch"),
        span("launch-sampling")[0], *span("device"), *span("device-sampling"), span("answer")[0],
    )  # fmt: skip


def stretches(steps: Sequence[Step], pause_ms: float = DEFAULT_PAUSE_MS) -> list[list[Step]]:
    """The steps, split where the device was idle for at least `pause_ms`."""
    found: list[list[Step]] = []
    for step in steps:
        if not found or step.begin - found[-1][-1].end >= pause_ms:
            found.append([])
        found[-1].append(step)
    return found


Pair = tuple[Step, Step]


def decode_pairs(steps: Sequence[Step]) -> list[Pair]:
    """Each decode step with the decode step that followed it."""
    return [(a, b) for a, b in pairwise(steps) if a.is_decode and b.is_decode]


def gaps_us(pairs: Iterable[Pair]) -> list[float]:
    """Idle time of the device between the two steps of each pair, in microseconds."""
    return [(b.begin - a.end) * 1000 for a, b in pairs]


def turnarounds_us(pairs: Iterable[Pair]) -> list[float]:
    """Time on the host from the answer of the first step of each pair until the second could be sampled."""
    return [(b.mask_at - a.answered) * 1000 for a, b in pairs]


def waits_us(steps: Iterable[Step]) -> list[float]:
    """Waits of the device between forward pass and sampling."""
    return [step.waited * 1000 for step in steps]


def busy_share(pairs: Sequence[Pair]) -> float | None:
    """Share of the time between the beginnings of each pair's steps that the first step took; None without pairs."""
    whole = sum(b.begin - a.begin for a, b in pairs)
    return sum(a.took for a, _ in pairs) / whole if pairs else None


def stretch_row(steps: Sequence[Step]) -> list[str]:
    pairs = list(pairwise(steps))
    rows = [step.rows for step in steps]
    whole = sum(step.took for step in steps) / (steps[-1].end - steps[0].begin)
    return [
        f"{steps[0].begin / 1000:.2f}",
        str(len(steps)),
        str(sum(not step.is_decode for step in steps)),
        str(sum(step.is_decode for step in steps)),
        str(rows[0]) if min(rows) == max(rows) else f"{min(rows)} to {max(rows)}",
        _spread([step.took for step in steps], 2),
        _spread(gaps_us(pairs), 0),
        _spread([step.launch_end - step.launch_begin for step in steps], 2),
        _spread(waits_us(steps), 0),
        _spread(turnarounds_us(pairs), 0),
        _percent(whole),
        _percent(busy_share(decode_pairs(steps))),
    ]


def decode_rows(steps: Sequence[Step], pause_ms: float, least: int = MIN_STEPS) -> list[list[str]]:
    """A line for each number of rows of which there are at least `least` pairs of consecutive decode steps."""
    pairs: dict[int, list[Pair]] = {}
    for stretch in stretches(steps, pause_ms):
        for a, b in decode_pairs(stretch):
            if a.rows == b.rows:
                pairs.setdefault(a.rows, []).append((a, b))
    return [
        [
            str(rows),
            str(len(found)),
            _spread([a.took for a, _ in found], 2),
            _spread(gaps_us(found), 0),
            _spread([a.launch_end - a.launch_begin for a, _ in found], 2),
            _spread(waits_us(a for a, _ in found), 0),
            _spread(turnarounds_us(found), 0),
            _percent(busy_share(found)),
        ]
        for rows, found in sorted(pairs.items())
        if len(found) >= least
    ]


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{median(values):.{digits}f} / {percentile(values, 90):.{digits}f}" if values else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--pause", type=float, default=DEFAULT_PAUSE_MS, metavar="MS", help="pause that ends a stretch")
    args = parser.parse_args()
    try:
        steps = read_trace(args.trace)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    figures = ["step ms p50 / p90", "gap µs", "launch ms", "mask wait µs", "turnaround µs"]
    header = ["from s", "steps", "extend", "decode", "rows", *figures, "busy", "busy, decode"]
    print(table(header, [stretch_row(stretch) for stretch in stretches(steps, args.pause)]))
    by_rows = decode_rows(steps, args.pause)
    if by_rows:
        print("\nConsecutive decode steps, by rows:\n")
        print(table(["rows", "steps", *figures, "busy"], by_rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
