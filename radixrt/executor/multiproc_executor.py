"""`MultiprocExecutor`: one worker process for each rank, over ZMQ. The launcher starts and watches the processes."""

from __future__ import annotations

import time
from typing import Any

import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.errors import EngineError
from radixrt.executor.base import Executor
from radixrt.messages import (
    DebugReply,
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    RunnerReady,
    StepFailed,
    StepOutput,
    ToRunner,
    pack_i32,
)


class MultiprocExecutor(Executor):
    """The same encoded bytes go to each rank's inbox; all ranks answer into one."""

    def __init__(self, context: zmq.Context[Any], rank_endpoints: list[str], answer_endpoint: str) -> None:
        self._answers: ZmqInbox[FromRunner] = ZmqInbox(context, answer_endpoint, FromRunner)
        self._ranks: list[ZmqOutbox[ToRunner]] = [ZmqOutbox(context, endpoint) for endpoint in rank_endpoints]

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        deadline = time.monotonic() + timeout_s
        ready: dict[int, RunnerReady] = {}
        while len(ready) < len(self._ranks):
            message = self._answers.recv(max(0.0, deadline - time.monotonic()))
            if message is None:
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

    def recv(self) -> StepOutput | StepFailed | None:
        message = self._answers.recv()
        if message is None or isinstance(message, (StepOutput, StepFailed)):
            return message
        raise EngineError(f"unexpected {type(message).__name__} from a runner")

    def debug_rows(self, rows: list[int], lens: list[int]) -> DebugReply:
        self._ranks[0].send(DebugReq(pack_i32(rows), pack_i32(lens)))
        reply = self._answers.recv(10.0)
        if not isinstance(reply, DebugReply):
            raise EngineError(f"expected a DebugReply, got {reply!r:.100}")
        return reply

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._answers.close()

    @property
    def socket(self) -> Any | None:
        return self._answers.socket

    def _send(self, message: ToRunner) -> None:
        for rank in self._ranks:
            rank.send(message)
