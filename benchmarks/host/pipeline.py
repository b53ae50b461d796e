"""The engine's host path in one thread, with a device that answers at once.

The parts are the real ones and every message crosses its wire form; only the model is missing. Time is attributed to
the part that spends it, encoding to the sender and decoding to the receiver. It is the thread's own processor time, so
that other work on the machine does not count.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from benchmarks.common.thread_times import Times
from radixrt.attention.cascade_costs import cascade_costs
from radixrt.client.engine_client import EngineClient
from radixrt.config import SchedulerConfig
from radixrt.executor.base import Executor
from radixrt.messages.client import ToMain, ToTokenizer
from radixrt.messages.runner import DebugReq, ForwardStep, FromRunner, GrammarMask, RunnerReady, StepOutput, ToRunner
from radixrt.messages.scheduler import SchedulerReady, TokenBatch, ToScheduler
from radixrt.messages.wire import pack_i32
from radixrt.parts.simulated import make_scheduler, num_sampled
from radixrt.scheduler.loop import SchedulerLoop
from radixrt.scheduler.scheduler import Scheduler
from radixrt.tokenizer.tokenizer import Tokenizer
from radixrt.tokenizer.worker import TokenizerWorker

VOCAB = 100_000
LOWEST, HIGHEST = 10, 10_000
KV_LAYER_BYTES = 2 * 8 * 128 * 2
QUERY_SIZE = 16 * 128
"""Sizes of a token in a layer with 16 heads on 8 KV heads of 128 values in bf16, on which the sharing of prefixes
depends."""
M = TypeVar("M")


class Wire(Generic[M]):
    """A channel of frames within one thread; encodes on send, decodes on recv."""

    def __init__(self, message_type: Any) -> None:
        self._frames: deque[bytes] = deque()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)

    def send(self, message: M) -> None:
        self._frames.append(self._encoder.encode(message))

    def recv(self, timeout_s: float | None = 0.0) -> M | None:
        return self._decoder.decode(self._frames.popleft()) if self._frames else None

    def __len__(self) -> int:
        return len(self._frames)

    def clear(self) -> None:
        self._frames.clear()

    def close(self) -> None: ...


class LocalDevice(Executor):
    """A device in the scheduler's thread, without ranks that start or hold a mirror. Every message crosses its wire."""

    def __init__(self) -> None:
        self._wire: Wire[ToRunner] = Wire(ToRunner)
        self._answers: Wire[FromRunner] = Wire(FromRunner)

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        raise NotImplementedError("always ready")

    def ask(self, question: DebugReq) -> None:
        raise NotImplementedError("holds no mirror")

    def close(self) -> None: ...

    @property
    def runs_ahead(self) -> bool:
        return True


class InstantDevice(LocalDevice):
    """Answers each step with random tokens; its time is booked as "device"."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times
        self._tokens = np.random.default_rng(0).integers(LOWEST, HIGHEST, 1 << 16, dtype=np.int32)
        self._answered = 0.0  # when the last answer was taken that no step has followed yet
        self.steps = 0
        self.tokens = 0

    def submit(self, step: ForwardStep) -> None:
        with self._times.of("submit"):
            self._wire.send(step)
        if self._answered:
            self._times.seconds["turnaround"] += time.thread_time() - self._answered
            self._answered = 0.0
        with self._times.of("device"):
            self._wire.recv()
            sampled = num_sampled(step)
            start = self.tokens % (len(self._tokens) - sampled)
            self.steps += 1
            self.tokens += sampled
            self._answers.send(StepOutput(step.step_id, pack_i32(self._tokens[start : start + sampled])))

    def send_mask(self, mask: GrammarMask) -> None:
        raise NotImplementedError("no constraints here")

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        answer = self._answers.recv()
        if answer is not None:
            self._answered = time.thread_time()
        return answer


def make_loop(scheduler: Scheduler, executor: Executor, inbox: Any, to_tokenizer: Any, *, depth: int) -> SchedulerLoop:
    """Return the real loop."""
    return SchedulerLoop(scheduler, executor, inbox, to_tokenizer, max_inflight=depth)


class Pipe:
    """Main, tokenizer, scheduler and instant device, turned by hand.

    Attributes:
        times: "main in" (a client's submissions), "tokenizer in", "loop" (the scheduler's, and within it "next_batch",
            "submit", "commit", "deltas" with their encoding, and "device"), "tokenizer out", "main out"; "turnaround"
            is from an answer to the next submission.
    """

    def __init__(self, folder: Path, *, context: int = 16_384, num_slots: int = 1 << 20, depth: int = 2) -> None:
        self.times = Times()
        self.config = SchedulerConfig(max_running_requests=512, max_queued_requests=1024, chunked_prefill_size=8192)
        self._to_tokenizer: Wire[ToTokenizer] = Wire(ToTokenizer)
        self._to_main: Wire[ToMain] = Wire(ToMain)
        self._to_scheduler: Wire[ToScheduler] = Wire(ToScheduler)
        self.client = EngineClient(self._to_tokenizer)
        self.tokenizer = TokenizerWorker(
            Tokenizer.from_folder(folder), model="m", vocab_size=VOCAB, context_length=context,
            to_scheduler=self._to_scheduler, to_main=self._to_main,
        )  # fmt: skip
        self.device = InstantDevice(self.times)
        self.scheduler = make_scheduler(
            self.config, num_slots, context_length=context, eos_ids=[1], vocab_size=VOCAB,
            cascade=cascade_costs("cuda", KV_LAYER_BYTES, QUERY_SIZE),
        )  # fmt: skip
        for name, part in (("next_batch", "next_batch"), ("commit", "commit"), ("take_deltas", "deltas")):
            self.times.book(part, self.scheduler, name)
        outbox = copy.copy(self._to_tokenizer)  # the same frames; the loop's encoding is booked, the client's is not
        self.times.book("deltas", outbox, "send")
        self.loop = make_loop(self.scheduler, self.device, self._to_scheduler, outbox, depth=depth)
        self.loop.announce(SchedulerReady(num_slots, self.config.max_running_requests, "cpu", "float32"))
        self.turn()

    def turn(self) -> bool:
        """Run one turn of each process; returns whether anything was done."""
        busy = self._tokenizer()
        with self.times.of("loop"):
            busy |= self.loop.run_once(wait=False)
        busy |= self._tokenizer()
        while len(self._to_main):
            with self.times.of("main out"):
                message = self._to_main.recv()
                assert message is not None
                self.client.dispatch(message)
        return busy

    def _tokenizer(self) -> bool:
        busy = False
        while len(self._to_tokenizer):
            busy = True
            started = time.thread_time()
            message = self._to_tokenizer.recv()
            assert message is not None
            self.tokenizer.handle(message)
            part = "tokenizer out" if isinstance(message, TokenBatch) else "tokenizer in"
            self.times.seconds[part] += time.thread_time() - started
        return busy

    def close(self) -> None:
        self.loop.close()
