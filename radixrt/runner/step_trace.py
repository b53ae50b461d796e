"""`StepTrace`: times at which each step was launched, computed and answered, in the Chrome trace event format.

Perfetto (https://ui.perfetto.dev) and chrome://tracing open the file. It has one process with three lanes: `launch`,
the work of the runner's thread that puts the forward pass and, once the step's mask has come, the sampling into the
stream; `device`, both on the device, timed by events in the stream so that overlapping steps are timed correctly (CUDA
only), so that a gap between the two is the time for which the device waited for a mask; and `answer`, the moment its
tokens left for the scheduler.

Each rank writes a file of its own. Only the one that answers has the lane `answer`. In that of a pipeline stage behind
the first one, a span `receive` within `launch`, and within `device` on CUDA, is the time for which the step waited for
the stage before.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from radixrt.distributed.rank_info import SINGLE_RANK, RankInfo
from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.messages.runner import ForwardStep
from radixrt.messages.step_shape import StepShape, step_shape


@dataclass
class StepRecord:
    """Times of one step: seconds on the host's clock, and events in the device's stream (none on a CPU).

    Attributes:
        shape: amount of work, by which a step-time model can be fitted to the trace.
        started, forward, forwarded: the step has come, its forward pass is about to enter the stream, and is in it.
        received: what the stage before has sent is there, or, on CUDA, the stream waits for it.
        sampling, launched: its mask, if it has one, has come, and all of the step is in the stream.
        events: in the stream, at `forward`, `received`, `forwarded`, `sampling` and `launched`.
    """

    step_id: int
    mode: str
    rows: int
    tokens: int
    shape: StepShape
    started: float
    forward: float = 0.0
    received: float = 0.0
    forwarded: float = 0.0
    sampling: float = 0.0
    launched: float = 0.0
    events: dict[str, torch.cuda.Event] = field(default_factory=dict)


LANES = ("launch", "device", "answer")
"""Names of the lanes, whose thread ids are 1, 2 and 3."""


class StepTrace:
    """Writes a JSON array of trace events, one event a line. `close` completes the array; viewers also accept an array
    without its end, which is what a killed runner leaves.

    Events carry the rank as their process id, and the first one the wall clock's time of their time 0 in seconds, so
    that the traces of several ranks can be laid side by side.

    Args:
        path: see `trace_path`; the rank's file is overwritten.
    """

    def __init__(self, path: str, device: torch.device, rank: RankInfo = SINGLE_RANK) -> None:
        self._rank = rank
        self._unfinished: deque[StepRecord] = deque()  # that nobody waits for
        self._file: TextIO = trace_path(path, rank.rank, rank.size).open("w", encoding="utf-8")
        name = "ModelRunner" if rank.size == 1 else f"ModelRunner {rank.known_as}"
        self._name = name if rank.stages == 1 else f"{name}, stage {rank.stage}"
        self._cuda = device.type == "cuda"
        self._zero_event = self._event()
        if self._cuda:
            torch.cuda.synchronize(device)
        self._zero = time.perf_counter()
        self._file.write("[\n" + json.dumps(self._metadata("process_name", 0, self._name, began=time.time())))
        for lane, each in enumerate(LANES, 1):
            self._append(self._metadata("thread_name", lane, each))

    def begin(self, step: ForwardStep) -> StepRecord:
        """Record that the step's message has arrived."""
        mode = ForwardMode(step.mode).name.lower()
        rows, tokens = len(step.req_pool_idx) // 4, len(step.out_cache_loc) // 4
        return StepRecord(step.step_id, mode, rows, tokens, step_shape(step), time.perf_counter())

    def forward(self, times: StepRecord) -> None:
        """Record that the forward pass is about to enter the stream."""
        self._record(times, "forward")

    def received(self, times: StepRecord) -> None:
        """Record that what the stage before has sent is there; the first stage receives nothing."""
        if self._rank.stage:
            self._record(times, "received")

    def forwarded(self, times: StepRecord) -> None:
        """Record that the forward pass is in the stream."""
        self._record(times, "forwarded")

    def sampling(self, times: StepRecord) -> None:
        """Record that sampling is about to enter the stream: the mask, if the step has one, is there."""
        self._record(times, "sampling")

    def sampled(self, times: StepRecord) -> None:
        """Record that all of the step's work is in the stream."""
        self._record(times, "launched")

    def answered(self, times: StepRecord) -> None:
        """Write the step's events; its tokens are on the host and leave for the scheduler."""
        self._write_step(times, time.perf_counter())

    def unanswered(self, times: StepRecord) -> None:
        """Write the events of a step that this rank does not answer, once the device has computed it."""
        self._unfinished.append(times)
        while self._unfinished and all(event.query() for event in self._unfinished[0].events.values()):  # type: ignore[no-untyped-call]
            self._write_step(self._unfinished.popleft(), None)

    def _write_step(self, times: StepRecord, answered: float | None) -> None:
        mode, shape = times.mode, times.shape
        args = {
            "step": times.step_id,
            "rows": times.rows,
            "tokens": times.tokens,
            "decode_rows": shape.rows,
            "context": shape.context,
            "prompt_tokens": shape.tokens,
            "pairs": shape.pairs,
        }
        self._write(f"launch {mode}", 1, times.started - self._zero, times.forwarded - self._zero, args)
        if times.received:
            self._write(f"receive {mode}", 1, times.forward - self._zero, times.received - self._zero, args)
        self._write(f"launch-sampling {mode}", 1, times.sampling - self._zero, times.launched - self._zero, args)
        if self._zero_event is not None:
            at = {name: self._zero_event.elapsed_time(event) / 1000 for name, event in times.events.items()}
            self._write(f"device {mode}", 2, at["forward"], at["forwarded"], args)
            if "received" in at:
                self._write(f"device-receive {mode}", 2, at["forward"], at["received"], args)
            self._write(f"device-sampling {mode}", 2, at["sampling"], at["launched"], args)
        if answered is not None:
            self._write(f"answer {mode}", 3, answered - self._zero, answered - self._zero, args)

    def close(self) -> None:
        if self._cuda and self._unfinished:
            torch.cuda.synchronize()
        while self._unfinished:
            self._write_step(self._unfinished.popleft(), None)
        self._file.write("\n]\n")
        self._file.close()

    def _event(self) -> torch.cuda.Event | None:
        if not self._cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _record(self, times: StepRecord, name: str) -> None:
        setattr(times, name, time.perf_counter())
        event = self._event()
        if event is not None:
            times.events[name] = event

    def _write(self, name: str, lane: int, begin: float, end: float, args: dict[str, Any]) -> None:
        entry = {"name": name, "ph": "X", "pid": self._rank.rank, "tid": lane, "args": args}
        self._append(entry | {"ts": begin * 1e6, "dur": (end - begin) * 1e6})

    def _append(self, event: dict[str, Any]) -> None:
        self._file.write(",\n" + json.dumps(event))
        self._file.flush()

    def _metadata(self, kind: str, lane: int, name: str, **more: float) -> dict[str, Any]:
        """Return the event that names a process or a lane."""
        args = {"name": name, **more}
        return {"name": kind, "ph": "M", "ts": 0, "pid": self._rank.rank, "tid": lane, "args": args}


def trace_path(path: str | Path, rank: int, size: int) -> Path:
    """Return the file of a rank's trace: steps.json becomes steps.rank1.json where there are several ranks."""
    given = Path(path)
    return given if size == 1 else given.with_name(f"{given.stem}.rank{rank}{given.suffix}")
