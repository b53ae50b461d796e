"""Scheduler time of the first steps of rounds of constrained rows, beside a device whose steps take time.

A round is as in benchmarks.structure.rounds: new prompts of 256 tokens, all submitted at once, with schemas in turn.
The parser states that its rows reach are new in the first round, and many of them later. Grammars are compiled in the
same thread before the first step, so that the steps of every run are the same. All times are the thread's processor
time, the device's steps included: while one is computed, the scheduler may look ahead.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.host.chain import MaskedDevice
from benchmarks.host.device import HIGHEST, LOWEST, RandomTokens
from benchmarks.host.pipeline import Wire, make_loop
from radixrt.config import SchedulerConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.messages.client import ToTokenizer
from radixrt.messages.request import Request
from radixrt.messages.runner import ForwardStep, FromRunner
from radixrt.messages.scheduler import ToScheduler
from radixrt.messages.step_shape import step_shape
from radixrt.messages.wire import pack_i32
from radixrt.parts.simulated import make_scheduler
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.loop import SchedulerLoop
from radixrt.scheduler.scheduler import Scheduler

PROMPT_TOKENS, OUTPUT_TOKENS = 256, 200
CONTEXT = 16_384
PROFILED_STEPS = 25
SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["person", "place", "organization"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "kind", "tags"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "score": {"type": "number", "minimum": 0},
            "open": {"type": "boolean"},
        },
    },
    {
        "type": "array",
        "minItems": 30,
        "items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]},
    },
)
"""For a measurement without a file of schemas."""


STEP_S, TOKEN_S = 1.6e-3, 3e-6
"""Seconds of a decode step, and of each prompt token, about those of the 0.6B shape on an H200."""


class TimedDevice(MaskedDevice):
    """A device whose steps take time, of the scheduler's thread, in which the scheduler is free. It is the loop's
    poller too, which tells when a step has ended."""

    def __init__(self, path: str, vocab_size: int, tokens: RandomTokens) -> None:
        super().__init__(path, vocab_size, tokens)
        self._seconds: deque[float] = deque()  # of each step
        self._begun = 0.0  # when the oldest step began

    def submit(self, step: ForwardStep) -> None:
        super().submit(step)
        if not self._seconds:
            self._begun = time.thread_time()
        self._seconds.append(STEP_S + TOKEN_S * step_shape(step).tokens)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        if not self.poll():
            return None
        self.forward_s = self._seconds[0]
        answer = super().take(timeout_s)
        if answer is not None:
            self._seconds.popleft()
            self._begun = self.marks["answer"]
        return answer

    def poll(self, timeout_ms: int = 0) -> bool:
        """Return True if the oldest step has ended, but for the mask that it may need."""
        return bool(self._seconds) and time.thread_time() >= self._begun + self._seconds[0]

    @property
    def sockets(self) -> bool:
        return False


@dataclass
class FirstSteps:
    """One round, in seconds.

    Attributes:
        admission: requests, grammars (compiled in the first round), the first step and its mask.
        to_mask: of each step, from its answer until the next mask was sent; None where no mask followed.
        turns: of each step, from its answer until the loop was ready for the next one, with deferred work.
        tokens: output tokens of all rows, forced ones included.
    """

    admission: float = 0.0
    to_mask: list[float | None] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    tokens: int = 0

    def sums(self) -> tuple[float, float, float, float]:
        """Return seconds to the masks and of the turns of steps 1 to 5, and of steps 6 to 25."""
        masks = [seconds or 0.0 for seconds in self.to_mask]
        return sum(masks[:5]), sum(self.turns[:5]), sum(masks[5:25]), sum(self.turns[5:25])


def measure_first_steps(
    folder: Path, shape: Mapping[str, Any], rows: int, rounds: int, schemas: Sequence[Any],
    profiler: cProfile.Profile | None = None, seed: int = 0,
) -> list[FirstSteps]:  # fmt: skip
    """Measure whole rounds, one after the other in one scheduler.

    Args:
        shape: config.json of the model in `folder`.
        profiler: runs during the first `PROFILED_STEPS` of each round, and not during admission.
        seed: of prompts and sampled tokens.
    """
    vocab_size, eos_ids = shape["vocab_size"], (shape["eos_token_id"],)
    with TemporaryDirectory(prefix="radixrt-host-") as scratch:
        device = TimedDevice(f"{scratch}/masks", vocab_size, RandomTokens(vocab_size, eos_ids[0], seed))
        config = SchedulerConfig(max_running_requests=rows, max_queued_requests=1024, chunked_prefill_size=8192)
        grammars = GrammarManager(lambda: Vocabulary.from_folder(folder, vocab_size, eos_ids), inline=True)
        scheduler = make_scheduler(
            config, 1 << 20, context_length=CONTEXT, eos_ids=eos_ids, vocab_size=vocab_size, grammars=grammars
        )
        inbox: Wire[ToScheduler] = Wire(ToScheduler)
        outbox: Wire[ToTokenizer] = Wire(ToTokenizer)
        loop = make_loop(scheduler, device, inbox, outbox, depth=2)
        loop._poller = device  # type: ignore[assignment]
        random = np.random.default_rng(seed)
        found = []
        for number in range(rounds):
            gc.collect()
            gc.freeze()
            for i in range(rows):
                prompt = random.integers(LOWEST, HIGHEST, PROMPT_TOKENS)
                sampling = SamplingParams(
                    temperature=0.6, max_tokens=OUTPUT_TOKENS, json_schema=schemas[i % len(schemas)]
                )
                inbox.send(Request.generate(f"{number}-{i}", pack_i32(prompt), sampling))
            found.append(_round(loop, scheduler, device, outbox, profiler))
        loop.close()
    return found


def _round(
    loop: SchedulerLoop, scheduler: Scheduler, device: TimedDevice, outbox: Wire[ToTokenizer],
    profiler: cProfile.Profile | None,
) -> FirstSteps:  # fmt: skip
    found = FirstSteps(tokens=-scheduler.counters.generated_tokens)
    busy = True
    while busy:
        device.marks.clear()
        if profiler is not None and len(found.turns) >= PROFILED_STEPS:
            profiler.disable()
            device.profiler = profiler = None
        device.profiler = profiler
        started = time.thread_time()
        busy = loop.run_once(wait=True)
        ended, marks = time.thread_time(), device.marks
        outbox.clear()
        if not found.admission:
            found.admission = ended - started
        if "answer" not in marks:
            continue
        sent = marks.get("mask", 0.0)
        found.to_mask.append(sent - marks["answer"] if sent > marks["answer"] else None)
        found.turns.append(ended - marks["answer"])
    found.tokens += scheduler.counters.generated_tokens
    return found
