"""`StepTrace`: times at which each step was launched, computed and answered, in the Chrome trace event format.

Perfetto (https://ui.perfetto.dev) and chrome://tracing open the file. It has one process with three lanes: `launch`,
the work of the runner's thread until the step is in the stream; `device`, the step on the device, timed by events in
the stream so that overlapping steps are timed correctly (CUDA only); and `answer`, the moment its tokens left for the
scheduler.
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
    """Times of one step: seconds on the host's clock, and events in the device's stream (none on a CPU)."""

    step_id: int
    mode: str
    rows: int
    tokens: int
    started: float
    launched: float = 0.0
    begin: torch.cuda.Event | None = None
    end: torch.cuda.Event | None = None


LANES = ("launch", "device", "answer")
"""Names of the lanes, whose thread ids are 1, 2 and 3."""


class StepTrace:
    """Writes a JSON array of trace events, one event a line. `close` completes the array; viewers also accept an array
    without its end, which is what a killed runner leaves.

    Args:
        path: the file, overwritten.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115 (open as long as the runner)
        self._file.write("[\n" + json.dumps(_metadata("process_name", 0, "ModelRunner")))
        for lane, name in enumerate(LANES, 1):
            self._append(_metadata("thread_name", lane, name))
        self._cuda = device.type == "cuda"
        self._zero_event = self._event()
        if self._cuda:
            torch.cuda.synchronize(device)
        self._zero = time.perf_counter()

    def begin(self, step: ForwardStep) -> StepTimes:
        """Record that the step's message has arrived."""
        mode = ForwardMode(step.mode).name.lower()
        rows, tokens = len(step.req_pool_idx) // 4, len(step.out_cache_loc) // 4
        return StepTimes(step.step_id, mode, rows, tokens, time.perf_counter())

    def forward(self, times: StepTimes) -> None:
        """Record that the step's work is about to enter the stream."""
        times.begin = self._event()

    def sampled(self, times: StepTimes) -> None:
        """Record that all of the step's work is in the stream."""
        times.launched = time.perf_counter()
        times.end = self._event()

    def answered(self, times: StepTimes) -> None:
        """Write the step's events; its tokens are on the host and leave for the scheduler."""
        now = time.perf_counter()
        args = {"step": times.step_id, "rows": times.rows, "tokens": times.tokens}
        self._write("launch", 1, times.mode, times.started - self._zero, times.launched - self._zero, args)
        if times.begin is not None and times.end is not None and self._zero_event is not None:
            begin, end = (self._zero_event.elapsed_time(event) / 1000 for event in (times.begin, times.end))
            self._write("device", 2, times.mode, begin, end, args)
        self._write("answer", 3, times.mode, now - self._zero, now - self._zero, args)

    def close(self) -> None:
        self._file.write("\n]\n")
        self._file.close()

    def _event(self) -> torch.cuda.Event | None:
        if not self._cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _write(self, name: str, lane: int, mode: str, begin: float, end: float, args: dict[str, Any]) -> None:
        entry = {
            "name": f"{name} {mode}", "ph": "X", "pid": 0, "tid": lane, "ts": begin * 1e6, "dur": (end - begin) * 1e6,
            "args": args,
        }  # fmt: skip
        self._append(entry)

    def _append(self, event: dict[str, Any]) -> None:
        self._file.write(",\n" + json.dumps(event))
        self._file.flush()


def _metadata(kind: str, lane: int, name: str) -> dict[str, Any]:
    """The event that names a process or a lane."""
    return {"name": kind, "ph": "M", "ts": 0, "pid": 0, "tid": lane, "args": {"name": name}}
