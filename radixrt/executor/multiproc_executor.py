"""`MultiprocExecutor`: one worker process for each rank, over ZMQ. The launcher starts and supervises the processes."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.constrained.grammar import Bitmask
from radixrt.errors import EngineError
from radixrt.executor.base import Executor
from radixrt.executor.mask_buffer import MaskBuffer
from radixrt.messages.runner import DebugReq, ForwardStep, FromRunner, GrammarMask, RunnerReady, StepFailed, ToRunner

READY_WAIT_S = 0.05


class MultiprocExecutor(Executor):
    """Sends the same encoded bytes to each rank's inbox; all ranks answer into one inbox.

    Args:
        mask_path, max_rows: file of the buffer for grammar masks, and its capacity in rows of a step.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        rank_endpoints: list[str],
        answer_endpoint: str,
        *,
        mask_path: str,
        max_rows: int,
    ) -> None:
        self._mask_path = mask_path
        self._max_rows = max_rows
        self._masks: MaskBuffer | None = None
        self._answers: ZmqInbox[FromRunner] = ZmqInbox(context, answer_endpoint, FromRunner)
        self._encoder = msgspec.msgpack.Encoder()
        self._ranks: list[ZmqOutbox[ToRunner]] = [ZmqOutbox(context, endpoint) for endpoint in rank_endpoints]

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        deadline = time.monotonic() + timeout_s
        ready: dict[int, RunnerReady] = {}
        while len(ready) < len(self._ranks):
            message = self.take(READY_WAIT_S)
            if message is None and time.monotonic() > deadline:
                raise EngineError(f"only {len(ready)} of {len(self._ranks)} runners were ready after {timeout_s:g} s")
            if isinstance(message, StepFailed):
                raise EngineError(f"runner {message.rank} failed to start: {message.error}")
            if isinstance(message, RunnerReady):
                ready[message.rank] = message
        return ready[0]

    def submit(self, step: ForwardStep) -> None:
        self._send(step)

    def send_mask(self, mask: GrammarMask) -> None:
        self._send(mask)

    def mask_rows(self, num_masks: int, words: int) -> tuple[Bitmask, int]:
        if self._masks is None:
            self._masks = MaskBuffer(self._mask_path, self._max_rows, words)
        return self._masks.next_rows(num_masks)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        return self._answers.recv(timeout_s)

    def ask(self, question: DebugReq) -> None:
        self._ranks[0].send(question)

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._answers.close()

    @property
    def socket(self) -> Any | None:
        return self._answers.socket

    def _send(self, message: ToRunner) -> None:
        frame = self._encoder.encode(message)
        for rank in self._ranks:
            rank.send_frame(frame)
