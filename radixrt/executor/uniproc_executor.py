"""`UniProcExecutor`: runs rank 0 in the scheduler's own process and thread."""

from __future__ import annotations

from typing import Protocol

from radixrt.channel import LocalChannel
from radixrt.errors import EngineError
from radixrt.executor.base import Executor, PoolBytes
from radixrt.messages.runner import DebugReq, ForwardStep, FromRunner, GrammarMask, PartOrder, RunnerReady, ToRunner


class StepWorker(Protocol):
    """The part of `radixrt.runner.worker.Worker` that an executor in the same process drives."""

    def start(self) -> None: ...

    def handle(self, message: ToRunner) -> None: ...

    def answer_ready(self, *, wait: bool = False) -> None: ...

    def shutdown(self) -> None: ...


class UniProcExecutor(Executor):
    """Runs a step when the step is submitted or, if the step is constrained, when its mask is sent.

    Args:
        worker: executes the messages, and sends its answers to `answers`.
        encode: encode and decode each message, as between processes (tests).
    """

    def __init__(self, worker: StepWorker, answers: LocalChannel[FromRunner], *, encode: bool = False) -> None:
        self._worker = worker
        self._inbox: LocalChannel[ToRunner] = LocalChannel(ToRunner if encode else None)
        self._answers = answers
        self._pool_bytes: list[PoolBytes] = []

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        self._worker.start()
        message = self._answers.recv()
        if not isinstance(message, RunnerReady):
            raise EngineError(f"the runner failed to start: {message!r:.400}")
        self._pool_bytes = [PoolBytes(message.token_bytes, message.state_bytes)]
        return message

    @property
    def pool_bytes(self) -> list[PoolBytes]:
        return self._pool_bytes

    def submit(self, step: ForwardStep) -> None:
        self._deliver(step)

    def send_mask(self, mask: GrammarMask) -> None:
        self._deliver(mask)

    def order(self, order: PartOrder) -> None:
        self._deliver(order)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        self._worker.answer_ready(wait=timeout_s > 0.0)
        return self._answers.recv()

    def ask(self, question: DebugReq) -> None:
        self._deliver(question)

    def close(self) -> None:
        self._worker.shutdown()

    def _deliver(self, message: ToRunner) -> None:
        self._inbox.send(message)
        received = self._inbox.recv()
        if received is not None:
            self._worker.handle(received)
