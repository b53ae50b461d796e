"""`StepTrace`: times at which each step was launched, computed and answered, in the Chrome trace event format.

Perfetto (https://ui.perfetto.dev) and chrome://tracing open the file. It has one process with three lanes: `launch`,
the work of the runner's thread that puts the forward pass and, once the step's mask has come, the sampling into the
stream; `device`, both on the device, timed by events in the stream so that overlapping steps are timed correctly (CUDA
only), so that a gap between the two is the time for which the device waited for a mask; and `answer`, the moment its
tokens left for the scheduler.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch

from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.messages.runner import ForwardStep
from radixrt.messages.step_shape import StepShape, step_shape


@dataclass
class StepRecord:
    """Times of one step: seconds on the host's clock, and events in the device's stream (none on a CPU).

    Attributes:
        shape: amount of work, by which a step-time model can be fitted to the trace.
        started, forwarded: the step has come, and its forward pass is in the stream.
        sampling, launched: its mask, if it has one, has come, and all of the step is in the stream.
        events: in the stream, before and after the forward pass and before and after sampling.
    """

    step_id: int
    mode: str
    rows: int
    tokens: int
    shape: StepShape
    started: float
    forwarded: float = 0.0
    sampling: float = 0.0
    launched: float = 0.0
    events: list[torch.cuda.Event] = field(default_factory=list)


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

    def begin(self, step: ForwardStep) -> StepRecord:
        """Record that the step's message has arrived."""
        mode = ForwardMode(step.mode).name.lower()
        rows, tokens = len(step.req_pool_idx) // 4, len(step.out_cache_loc) // 4
        return StepRecord(step.step_id, mode, rows, tokens, step_shape(step), time.perf_counter())

    def forward(self, times: StepRecord) -> None:
        """Record that the forward pass is about to enter the stream."""
        self._record(times)

    def forwarded(self, times: StepRecord) -> None:
        """Record that the forward pass is in the stream."""
        times.forwarded = time.perf_counter()
        self._record(times)

    def sampling(self, times: StepRecord) -> None:
        """Record that sampling is about to enter the stream: the mask, if the step has one, is there."""
        times.sampling = time.perf_counter()
        self._record(times)

    def sampled(self, times: StepRecord) -> None:
        """Record that all of the step's work is in the stream."""
        times.launched = time.perf_counter()
        self._record(times)

    def answered(self, times: StepRecord) -> None:
        """Write the step's events; its tokens are on the host and leave for the scheduler."""
        now = time.perf_counter()
        mode, shape = times.mode, times.shape
        args = {
            "step": times.step_id, "rows": times.rows, "tokens": times.tokens, "decode_rows": shape.rows,
            "context": shape.context, "prompt_tokens": shape.tokens, "pairs": shape.pairs,
        }  # fmt: skip
        self._write(f"launch {mode}", 1, times.started - self._zero, times.forwarded - self._zero, args)
        self._write(f"launch-sampling {mode}", 1, times.sampling - self._zero, times.launched - self._zero, args)
        if self._zero_event is not None:
            begin, forwarded, sampling, end = (self._zero_event.elapsed_time(event) / 1000 for event in times.events)
            self._write(f"device {mode}", 2, begin, forwarded, args)
            self._write(f"device-sampling {mode}", 2, sampling, end, args)
        self._write(f"answer {mode}", 3, now - self._zero, now - self._zero, args)

    def close(self) -> None:
        self._file.write("\n]\n")
        self._file.close()

    def _event(self) -> torch.cuda.Event | None:
        if not self._cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _record(self, times: StepRecord) -> None:
        event = self._event()
        if event is not None:
            times.events.append(event)

    def _write(self, name: str, lane: int, begin: float, end: float, args: dict[str, Any]) -> None:
        entry = {"name": name, "ph": "X", "pid": 0, "tid": lane, "ts": begin * 1e6, "dur": (end - begin) * 1e6}
        self._append(entry | {"args": args})

    def _append(self, event: dict[str, Any]) -> None:
        self._file.write(",\n" + json.dumps(event))
        self._file.flush()


def _metadata(kind: str, lane: int, name: str) -> dict[str, Any]:
    """The event that names a process or a lane."""
    return {"name": kind, "ph": "M", "ts": 0, "pid": 0, "tid": lane, "args": {"name": name}}
