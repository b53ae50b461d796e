"""Steps as a `step_trace` file has them, and the stretches and pairs that they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

DEFAULT_PAUSE_MS = 30.0


@dataclass(frozen=True)
class Step:
    """One step; times in milliseconds since the trace began.

    Attributes:
        launch_begin, launch_end: on the host: its message has come; all its work is in the stream.
        begin, end: on the device.
        answered: its tokens were on their way to the scheduler.
    """

    step: int
    mode: str
    rows: int
    tokens: int
    launch_begin: float
    launch_end: float
    begin: float
    end: float
    answered: float

    @property
    def took(self) -> float:
        """Milliseconds on the device."""
        return self.end - self.begin

    @property
    def is_decode(self) -> bool:
        return self.mode == "decode"


def read_trace(path: Path) -> list[Step]:
    """The steps of a trace that were answered, in the order in which the device computed them.

    Raises:
        ValueError: a line is no trace event, or there are no times of a device.
    """
    lanes: dict[int, dict[str, dict[str, Any]]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        text = line.strip().rstrip(",")
        if text in ("", "[", "]"):
            continue
        try:
            event = json.loads(text)
            lane, _, mode = event["name"].partition(" ")
            lanes.setdefault(event["args"]["step"], {})[lane] = {**event, "mode": mode}
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # the runner was ended while it wrote
            raise ValueError(f"{path}, line {number}: not a line of a step trace ({error!r})") from error
    steps = [_step(found) for found in lanes.values() if {"launch", "device", "answer"} <= found.keys()]
    if not steps:
        raise ValueError(f"{path} has no step with a device's times; --step-trace records them on CUDA")
    return sorted(steps, key=lambda step: step.begin)


def _step(lanes: dict[str, dict[str, Any]]) -> Step:
    def span(lane: str) -> tuple[float, float]:
        event = lanes[lane]
        return event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000

    what = lanes["device"]["args"]
    return Step(
        what["step"], lanes["device"]["mode"], what["rows"], what["tokens"], *span("launch"), *span("device"),
        span("answer")[0],
    )  # fmt: skip


def stretches(steps: Sequence[Step], pause_ms: float = DEFAULT_PAUSE_MS) -> list[list[Step]]:
    """The steps, split where the device had nothing to do for that long."""
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
    """Microseconds that the device had between the two steps of each pair."""
    return [(b.begin - a.end) * 1000 for a, b in pairs]


def busy_share(pairs: Sequence[Pair]) -> float | None:
    """The part of the time, from each pair's first begin to its second, that the first step took; None for no pair."""
    whole = sum(b.begin - a.begin for a, b in pairs)
    return sum(a.took for a, _ in pairs) / whole if pairs else None
