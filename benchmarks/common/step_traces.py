"""Files of step traces (`radixrt launch --step-trace FILE`): one engine writes one, or one for each of its ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


def rank_traces(path: Path) -> list[Path]:
    """Return the traces that an engine wrote to FILE: the file itself, or those of its ranks, by rank.

    Raises:
        ValueError: there is none.
    """
    if path.exists():
        return [path]
    name = re.compile(rf"{re.escape(path.stem)}\.rank(\d+){re.escape(path.suffix)}")
    found = {int(match[1]): each for each in path.parent.glob("*") if (match := name.fullmatch(each.name))}
    if not found:
        raise ValueError(f"there is no step trace {path}, nor one of a rank ({path.stem}.rank0{path.suffix})")
    return [found[rank] for rank in sorted(found)]


def answering_trace(path: Path) -> Path:
    """Return the trace of the rank that answers steps, among those of `rank_traces`."""
    traces = rank_traces(path)
    return next((each for each in reversed(traces) if '"name": "answer ' in each.read_text()), traces[0])


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of one file, which may lack its end.

    Raises:
        ValueError: it is no step trace.
    """
    text = path.read_text().rstrip()
    try:
        events = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")
    except ValueError as error:
        raise ValueError(f"{path} is not a step trace: {error}") from None
    return events if isinstance(events, list) else []


class RankStep(NamedTuple):
    """One step on one rank, in seconds.

    Attributes:
        begin, end: times of the wall clock at which its message came and at which the rank had computed it.
        computed: time between them in which the rank computed it, without its wait for the stage before and for masks.
    """

    begin: float
    end: float
    computed: float


def rank_steps(path: Path) -> dict[int, RankStep]:
    """Return the steps of a rank's trace, by their number.

    Raises:
        ValueError: it is no step trace, or one of an older version.
    """
    began: float | None = None
    lanes: dict[int, dict[str, tuple[float, float]]] = {}
    for event in read_events(path):
        if event["name"] == "process_name":
            began = event["args"].get("began")
        elif event["ph"] == "X":
            lane = event["name"].partition(" ")[0]
            lanes.setdefault(event["args"]["step"], {})[lane] = (event["ts"] / 1e6, event["dur"] / 1e6)
    if began is None:
        raise ValueError(f"{path} does not tell when it began; write it anew with --step-trace of this version")
    steps = {}
    for step, found in lanes.items():
        on_device = "device" in found
        names = (
            ("device", "device-receive", "device-sampling") if on_device else ("launch", "receive", "launch-sampling")
        )
        forward, receive, sampling = (found.get(name, (0.0, 0.0)) for name in names)
        computed = forward[1] - receive[1] + sampling[1]
        steps[step] = RankStep(began + found["launch"][0], began + max(sum(forward), sum(sampling)), computed)
    return steps


def busy_shares(traces: Sequence[Path]) -> list[float]:
    """Return for each rank the part of the time with steps in flight in which it computed.

    A step is in flight from the arrival of its message at the first of these ranks until the last one has computed it.
    What remains to 1 is bubbles: waiting for other stages, for the scheduler, or for masks. Ranks of several machines
    need clocks that agree.

    Args:
        traces: of ranks that execute the same steps, e.g. the first ones of all pipeline stages.

    Raises:
        ValueError: as `rank_steps`; or no step is in all traces.
    """
    ranks = [rank_steps(path) for path in traces]
    common = set.intersection(*(set(rank) for rank in ranks))
    flights = sorted((min(rank[n].begin for rank in ranks), max(rank[n].end for rank in ranks)) for n in common)
    if not flights:
        raise ValueError(f"the traces {', '.join(map(str, traces))} have no step in common")
    in_flight, until = 0.0, flights[0][0]
    for begin, end in flights:
        in_flight += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return [sum(rank[n].computed for n in common) / in_flight for rank in ranks]
