"""How busy the device was, and what lay between its steps: tables and a picture of a file that `--step-trace` made.

    python -m benchmarks.timeline trace.json [--pause 30] [--svg out.svg --from MS --steps 12]

The first table has a line for each stretch of steps without a pause on the device, the second one for each number of
rows of decode steps that followed one another. `gap` is the device's time from one step's end to the next one's begin;
the copy of a step's inputs lies in it. `launch` is the host's time from a step's message until all its work was in the
stream, captures included. `busy` is the steps' part of the time; pauses between a step's own kernels count as busy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.report import percentile, table
from benchmarks.step_times import (
    DEFAULT_PAUSE_MS,
    Pair,
    Step,
    busy_share,
    decode_pairs,
    gaps_us,
    read_trace,
    stretches,
)

MIN_STEPS = 50
"""Pairs of decode steps from which on a number of rows gets a line."""


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
        _percent(whole),
        _percent(busy_share(decode_pairs(steps))),
    ]


def decode_rows(steps: Sequence[Step], pause_ms: float, least: int = MIN_STEPS) -> list[list[str]]:
    """A line for each number of rows that at least `least` pairs of decode steps, without a pause between, have."""
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
            _percent(busy_share(found)),
        ]
        for rows, found in sorted(pairs.items())
        if len(found) >= least
    ]


def choose(steps: Sequence[Step], from_ms: float, count: int) -> list[Step]:
    """The first `count` successive decode steps that begin on the device at from_ms or later.

    Raises:
        ValueError: there are not as many in one go.
    """
    run: list[Step] = []
    for step in steps:
        if step.begin < from_ms:
            continue
        run = [*run, step] if step.is_decode else []
        if len(run) == count:
            return run
    raise ValueError(f"there are no {count} decode steps in a row from {from_ms:g} ms on; lower --steps or --from")


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{median(values):.{digits}f} / {percentile(values, 90):.{digits}f}" if values else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--pause", type=float, default=DEFAULT_PAUSE_MS, metavar="MS", help="pause that ends a stretch")
    parser.add_argument("--svg", type=Path, help="write a picture of some decode steps")
    parser.add_argument(
        "--from", type=float, default=0.0, metavar="MS", dest="from_ms", help="where the picture begins"
    )
    parser.add_argument("--steps", type=int, default=12, help="steps in the picture")
    args = parser.parse_args()
    try:
        steps = read_trace(args.trace)
        chosen = choose(steps, args.from_ms, args.steps) if args.svg else []
    except (OSError, ValueError) as error:
        parser.error(str(error))
    figures = ["step ms p50 / p90", "gap µs p50 / p90", "launch ms p50 / p90"]
    header = ["from s", "steps", "extend", "decode", "rows", *figures, "busy", "busy, decode"]
    print(table(header, [stretch_row(stretch) for stretch in stretches(steps, args.pause)]))
    by_rows = decode_rows(steps, args.pause)
    if by_rows:
        print("\nDecode steps that followed one another, by rows:\n")
        print(table(["rows", "steps", *figures, "busy"], by_rows))
    if args.svg:
        from benchmarks.timeline_picture import draw

        args.svg.write_text(draw(chosen), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
