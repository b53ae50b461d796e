"""`StepTrace`: when each step was prepared, computed and answered, as a file that trace viewers open.

The device's times come from events in its stream, so that they hold while steps overlap. One process, three lanes: what
the runner's thread did to launch a step, what the device did for it, and from when the answer was on its way.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, TextIO

import torch

from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.messages.runner import ForwardStep


@dataclass
class StepTimes:
    """One step's marks: seconds on the host's clock, and events in the device's stream (none on a CPU)."""

    step_id: int
    mode: str
    rows: int
    tokens: int
    started: float
    launched: float = 0.0
    begin: torch.cuda.Event | None = None
    end: torch.cuda.Event | None = None


class StepTrace:
    """Writes Chrome trace events, one JSON object a line within an array that viewers accept unclosed.

    Args:
        path: the file, overwritten.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115 (open as long as the runner)
        self._file.write("[\n")
        self._cuda = device.type == "cuda"
        self._zero_event = self._event()
        if self._cuda:
            torch.cuda.synchronize(device)
        self._zero = time.perf_counter()

    def begin(self, step: ForwardStep) -> StepTimes:
        """The step's message has come."""
        mode = ForwardMode(step.mode).name.lower()
        rows, tokens = len(step.req_pool_idx) // 4, len(step.out_cache_loc) // 4
        return StepTimes(step.step_id, mode, rows, tokens, time.perf_counter())

    def forward(self, times: StepTimes) -> None:
        """The first of the step's work is about to enter the stream."""
        times.begin = self._event()

    def sampled(self, times: StepTimes) -> None:
        """All of the step's work is in the stream."""
        times.launched = time.perf_counter()
        times.end = self._event()

    def answered(self, times: StepTimes) -> None:
        """The step's tokens are on the host and go to the scheduler."""
        now = time.perf_counter()
        what = {"step": times.step_id, "rows": times.rows, "tokens": times.tokens}
        self._write("launch", 1, times.mode, times.started - self._zero, times.launched - self._zero, what)
        if times.begin is not None and times.end is not None and self._zero_event is not None:
            begin, end = (self._zero_event.elapsed_time(event) / 1000 for event in (times.begin, times.end))
            self._write("device", 2, times.mode, begin, end, what)
        self._write("answer", 3, times.mode, now - self._zero, now - self._zero, what)

    def close(self) -> None:
        self._file.close()

    def _event(self) -> torch.cuda.Event | None:
        if not self._cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _write(self, name: str, lane: int, mode: str, begin: float, end: float, what: dict[str, Any]) -> None:
        entry = {
            "name": f"{name} {mode}", "ph": "X", "pid": 0, "tid": lane, "ts": begin * 1e6, "dur": (end - begin) * 1e6,
            "args": what,
        }  # fmt: skip
        self._file.write(json.dumps(entry) + ",\n")
        self._file.flush()
