"""A device for `benchmarks.host`: a process that takes a fixed time for each step, in order, and answers at random.

Run by it: python -m benchmarks.host_device STEPS_ENDPOINT ANSWERS_ENDPOINT STEP_MS

A step begins when it has come and the one before it has ended, by the clock; so sleeping too long makes an answer late
but not a step longer. At the end, when no step comes for a second, it prints the busy share of the DECODE steps and the
milliseconds between their beginnings.
"""

from __future__ import annotations

import sys
import time
from collections import deque

import numpy as np
import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.messages import ForwardStep, FromRunner, RunnerReady, StepOutput, ToRunner, pack_i32
from radixrt.scheduler.schedule_batch import DECODE

WARM_STEPS = 10


def main(steps: str, answers: str, step_ms: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox: ZmqInbox[ToRunner] = ZmqInbox(context, steps, ToRunner)
    outbox: ZmqOutbox[FromRunner] = ZmqOutbox(context, answers)
    outbox.send(RunnerReady(0, 1 << 20, 100_000, "cpu", "float32"))
    tokens = np.random.default_rng(0).integers(10, 10_000, 1 << 12, dtype=np.int32)
    step_s = float(step_ms) / 1e3
    ends = 0.0  # of the last step that has come
    begun: list[float] = []
    running: deque[tuple[float, ForwardStep]] = deque()
    while True:
        until = running[0][0] - time.perf_counter() if running else 1.0 if begun else 60.0
        message = inbox.recv(0.0) if until <= 0 else _wait(inbox, until)
        now = time.perf_counter()
        if isinstance(message, ForwardStep):
            starts = max(now, ends)
            ends = starts + step_s
            running.append((ends, message))
            if message.mode == DECODE:
                begun.append(starts)
        elif message is None and not running:
            break
        while running and running[0][0] <= time.perf_counter():
            _, step = running.popleft()
            sampled = sum(step.samples) if step.samples else len(step.req_pool_idx) // 4
            outbox.send(StepOutput(step.step_id, pack_i32(tokens[:sampled]), forward_s=step_s))
    measured = np.diff(begun[WARM_STEPS:])
    print(f"{step_s * len(measured) / measured.sum():.4f} {measured.mean() * 1e3:.4f}", flush=True)


def _wait(inbox: ZmqInbox[ToRunner], seconds: float) -> ToRunner | None:
    """ZMQ waits whole milliseconds; the rest of a step is waited for by looking."""
    if seconds > 2e-3:
        return inbox.recv(seconds - 1e-3)
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        message = inbox.recv(0.0)
        if message is not None:
            return message
        time.sleep(20e-6)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
