"""Device for `benchmarks.host`: a process that takes a fixed time for each step, in order, and answers at random.

Run by it: python -m benchmarks.host.device STEPS_ENDPOINT ANSWERS_ENDPOINT STEP_MS PREPARE_MS MASK_FILE VOCAB EOS

A step begins when it has come, the runner has prepared it, and the one before it has ended, by the clock; so sleeping
too long makes an answer late but not a step longer. A constrained step does not end before its mask has come. At the
end, when no step comes for a second, it prints the busy share of the DECODE steps and the milliseconds between their
beginnings.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.executor.mask_table import Mask, MaskReader
from radixrt.messages.runner import ForwardStep, FromRunner, GrammarMask, RunnerReady, StepOutput, ToRunner
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.simulated import num_sampled
from radixrt.scheduler.schedule_batch import DECODE

WARM_STEPS = 10
TRIES = 16
LOWEST, HIGHEST = 10, 10_000


class RandomTokens:
    """Tokens as a model without weights samples them: uniform over those that the mask allows."""

    def __init__(self, vocab_size: int, eos_id: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._random = np.random.default_rng(seed)

    def of(self, step: ForwardStep, mask: Mask | None = None) -> Int32Array:
        """int32, one for each sampling row."""
        tokens = self._random.integers(LOWEST, HIGHEST, num_sampled(step), dtype=np.int32)
        if mask is not None:
            tokens[mask.rows] = self._allowed(mask.table, mask.slots)
        return tokens

    def _allowed(self, bits: npt.NDArray[np.uint32], index: Int32Array) -> Int32Array:
        """A token for each row's mask; one that ends the output only where there is no other."""
        tries = self._random.integers(0, self._vocab_size, (len(index), TRIES), dtype=np.int32)
        good = bits[index[:, None], tries >> 5] >> (tries & 31).astype(np.uint32) & 1
        good[tries == self._eos_id] = 0
        tokens: Int32Array = tries[np.arange(len(index)), good.argmax(1)]
        for row in np.flatnonzero(~good.any(1)).tolist():
            every = np.flatnonzero(np.unpackbits(bits[index[row]].view(np.uint8), bitorder="little"))
            others = every[every != self._eos_id]
            tokens[row] = self._random.choice(others if len(others) else every)
        return tokens


@dataclass
class _Running:
    """A step on the device; without tokens until its mask has come."""

    step: ForwardStep
    ends: float
    tokens: Int32Array | None = None
    mask: Mask | None = None


class Device:
    """See the module's docstring. Times are seconds of `time.perf_counter`."""

    def __init__(
        self, step_s: float, prepare_s: float, tokens: RandomTokens, masks: MaskReader, vocab_size: int
    ) -> None:
        self.step_s = step_s
        self.begun: list[float] = []  # the DECODE steps
        self.running: deque[_Running] = deque()
        self._prepare_s = prepare_s
        self._tokens = tokens
        self._masks = masks
        self._vocab_size = vocab_size
        self._prepared = self._ends = 0.0  # of the last step that has come

    def take(self, message: ToRunner, now: float) -> None:
        """Handle a message as the runner does."""
        if isinstance(message, ForwardStep):
            self._prepared = max(now, self._prepared) + self._prepare_s
            starts = max(self._prepared, self._ends)
            self._ends = starts + self.step_s
            tokens = None if message.has_mask else self._tokens.of(message)
            self.running.append(_Running(message, self._ends, tokens))
            if message.mode == DECODE:
                self.begun.append(starts)
        elif isinstance(message, GrammarMask):
            self._prepared = max(now, self._prepared)
            mask, _ = self._masks.read(message, self._vocab_size)
            for each in self.running:
                if each.step.step_id == message.step_id:
                    each.mask = mask
                    self._ends = each.ends = max(each.ends, now)

    def sample(self) -> None:
        """Tokens for the steps whose masks have come, before anybody waits for them."""
        for each in self.running:
            if each.mask is not None and each.tokens is None:
                each.tokens = self._tokens.of(each.step, each.mask)

    def answer(self, now: float) -> StepOutput | None:
        """The oldest step's, if it has ended."""
        if not self.running or self.running[0].tokens is None or self.running[0].ends > now:
            return None
        ended = self.running.popleft()
        assert ended.tokens is not None
        return StepOutput(ended.step.step_id, pack_i32(ended.tokens), forward_s=self.step_s)

    def patience(self, now: float) -> float:
        """Seconds to wait for a message until something else is to be done."""
        if not self.running:
            return 1.0 if self.begun else 60.0
        if any(each.tokens is None and each.mask is not None for each in self.running):
            return 0.0
        return 1.0 if self.running[0].tokens is None else max(self.running[0].ends - now, 0.0)


def main(steps: str, answers: str, step_ms: str, prepare_ms: str, mask_file: str, vocab: str, eos_id: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox: ZmqInbox[ToRunner] = ZmqInbox(context, steps, ToRunner)
    outbox: ZmqOutbox[FromRunner] = ZmqOutbox(context, answers)
    outbox.send(RunnerReady(0, 1 << 20, int(vocab), "cpu", "float32"))
    device = Device(
        float(step_ms) / 1e3, float(prepare_ms) / 1e3, RandomTokens(int(vocab), int(eos_id)), MaskReader(mask_file),
        int(vocab),
    )  # fmt: skip
    while True:
        message = _wait(inbox, device.patience(time.perf_counter()))
        if message is not None:
            device.take(message, time.perf_counter())
            continue
        if not device.running:
            break
        device.sample()
        answer = device.answer(time.perf_counter())
        if answer is not None:
            outbox.send(answer)
    measured = np.diff(device.begun[WARM_STEPS:])
    print(f"{device.step_s * len(measured) / measured.sum():.4f} {measured.mean() * 1e3:.4f}", flush=True)


def _wait(inbox: ZmqInbox[ToRunner], seconds: float) -> ToRunner | None:
    """ZMQ waits whole milliseconds; the rest of a step is waited for by looking."""
    if seconds > 2e-3:
        return inbox.recv(seconds - 1e-3)
    ends = time.perf_counter() + seconds
    while True:
        message = inbox.recv(0.0)
        if message is not None or time.perf_counter() >= ends:
            return message
        time.sleep(20e-6)


if __name__ == "__main__":
    main(*sys.argv[1:])
