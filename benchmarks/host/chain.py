"""Latency chain of constrained rows on the host: from an answer to the next mask and the next step.

The scheduler's loop is the real one, with real grammars and masks in mapped memory; a device in the same thread answers
each step with tokens that its mask allows, once the mask is there. Times are the thread's own processor time from the
moment an answer is taken, so that other work on the machine does not count. Waiting for a message, waking up and cache
misses come on top.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common.thread_times import Times
from benchmarks.host.device import RandomTokens
from benchmarks.host.pipeline import LocalDevice, Wire, make_loop
from radixrt.config import SchedulerConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.executor.mask_table import MaskReader, MaskTable
from radixrt.messages.client import ToTokenizer
from radixrt.messages.request import Request
from radixrt.messages.runner import ForwardStep, FromRunner, GrammarMask, StepOutput
from radixrt.messages.scheduler import ToScheduler
from radixrt.messages.wire import pack_i32
from radixrt.parts.simulated import make_scheduler
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.loop import SchedulerLoop
from radixrt.scheduler.schedule_batch import DECODE

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
"""One unbounded string: nearly every token is allowed, and rows go on to the end."""
WARM_STEPS = 100
PARTS = ("take", "commit", "masks", "next_batch", "encode", "deltas", "settle")
SPANS = ("to mask", "to step", "whole turn")


class MaskedDevice(LocalDevice):
    """Answers each step that is not constrained, or whose mask has come, when it is asked for the answer.

    Attributes:
        times: seconds of the loop's turn by part; "device" and "encode" are this device's own.
        marks: times at which the turn took an answer and sent a step and a mask.
        profiler: runs from one answer until the next one is asked for.
        forward_s: seconds that the device reports for each step.
        decoding: whether the answer taken last belongs to a decode step.
    """

    def __init__(self, path: str, vocab_size: int, tokens: RandomTokens) -> None:
        super().__init__()
        self._path = path
        self._reader = MaskReader(path)
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._steps: deque[ForwardStep] = deque()
        self._masks: dict[int, GrammarMask] = {}
        self.times = Times()
        self.marks: dict[str, float] = {}
        self.profiler: cProfile.Profile | None = None
        self.forward_s = 0.0
        self.decoding = False
        self.times.book("encode", self._wire, "send")

    def submit(self, step: ForwardStep) -> None:
        self._wire.send(step)
        self.marks["step"] = time.thread_time()

    def send_mask(self, mask: GrammarMask) -> None:
        self._wire.send(mask)
        self.marks["mask"] = time.thread_time()

    def open_masks(self, slots: int, words: int) -> MaskTable:
        return MaskTable(slots, words, self._path)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        if self.profiler is not None:
            self.profiler.disable()
        begun = time.thread_time()
        self._run()
        started = time.thread_time()
        self.times.seconds["device"] += started - begun
        answer = self._answers.recv()
        self.times.seconds["take"] += time.thread_time() - started
        if answer is not None:
            self.marks["answer"] = started
            if self.profiler is not None:
                self.profiler.enable()
        return answer

    def _run(self) -> None:
        """Handle the messages, and answer the oldest step if its mask is there."""
        while (message := self._wire.recv()) is not None:
            if isinstance(message, ForwardStep):
                self._steps.append(message)
            elif isinstance(message, GrammarMask):
                self._masks[message.step_id] = message
        if not self._steps or (self._steps[0].has_mask and self._steps[0].step_id not in self._masks):
            return
        step = self._steps.popleft()
        mask = self._masks.pop(step.step_id, None)
        tokens = self._tokens.of(step, None if mask is None else self._reader.read(mask, self._vocab_size)[0])
        self.decoding = step.mode == DECODE
        self._answers.send(StepOutput(step.step_id, pack_i32(tokens), forward_s=self.forward_s))


def measure_chain(
    folder: Path, shape: Mapping[str, Any], rows: int, steps: int, schema: dict[str, Any] | None
) -> dict[str, list[float]]:
    """Seconds of each of PARTS and SPANS, one for each decode step of `rows`, constrained unless schema is None.

    Args:
        shape: config.json of the model in `folder`.
        schema: leaves room for outputs of any length; the first one that ends, ends the measurement.
    """
    vocab_size, eos_ids = shape["vocab_size"], (shape["eos_token_id"],)
    with TemporaryDirectory(prefix="radixrt-host-") as scratch:
        device = MaskedDevice(f"{scratch}/masks", vocab_size, RandomTokens(vocab_size, eos_ids[0]))
        config = SchedulerConfig(max_running_requests=rows, max_queued_requests=1024, chunked_prefill_size=8192)
        grammars = GrammarManager(lambda: Vocabulary.from_folder(folder, vocab_size, eos_ids), inline=True)
        scheduler = make_scheduler(
            config, 1 << 20, context_length=16_384, eos_ids=eos_ids, vocab_size=vocab_size, grammars=grammars
        )
        for name in ("commit", "next_batch"):
            device.times.book(name, scheduler, name)
        for name in ("masks", "settle"):
            device.times.book(name, scheduler.parts.taker, name)
        inbox: Wire[ToScheduler] = Wire(ToScheduler)
        outbox: Wire[ToTokenizer] = Wire(ToTokenizer)
        device.times.book("deltas", outbox, "send")
        device.times.book("deltas", scheduler, "take_deltas")
        loop = make_loop(scheduler, device, inbox, outbox, depth=2)
        given: dict[str, Any] = {} if schema is None else {"json_schema": schema}
        sampling = SamplingParams(
            temperature=0.6, max_tokens=steps + 2 * WARM_STEPS, ignore_eos=schema is None, **given
        )
        random = np.random.default_rng(1)
        for i in range(rows):
            inbox.send(Request.generate(str(i), pack_i32(random.integers(10, 10_000, 512)), sampling))
        found: dict[str, list[float]] = {name: [] for name in (*PARTS, *SPANS)}
        while len(found["to step"]) < steps and not scheduler.counters.finished:
            warm = scheduler.counters.decode_steps > WARM_STEPS
            if warm and not found["to step"]:
                gc.collect()
                gc.freeze()
            _turn(loop, device, found, warm=warm, masked=schema is not None)
            outbox.clear()
        loop.close()
    return found


def _turn(
    loop: SchedulerLoop, device: MaskedDevice, found: dict[str, list[float]], *, warm: bool, masked: bool
) -> None:
    device.times.clear()
    device.marks.clear()
    loop.run_once(wait=False)
    ended, marks = time.thread_time(), device.marks
    wanted = {"answer", "step", "mask"} if masked else {"answer", "step"}
    if not warm or not device.decoding or wanted - marks.keys() or marks["step"] < marks["answer"]:
        return
    for name in PARTS:
        found[name].append(device.times.seconds[name])
    if masked:
        found["to mask"].append(marks["mask"] - marks["answer"])
    found["to step"].append(marks["step"] - marks["answer"])
    found["whole turn"].append(ended - marks["answer"])
