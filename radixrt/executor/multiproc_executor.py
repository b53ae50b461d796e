"""`MultiprocExecutor`: one worker process for each rank, over ZMQ. The launcher starts and supervises the processes.

When a rank dies, the launcher restarts all ranks. Each restart begins an *epoch* with separate endpoints, because ZMQ
would deliver messages queued for an earlier rank to its successor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import zmq

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.errors import EngineError
from radixrt.executor.base import Executor, PoolBytes
from radixrt.executor.mask_table import MaskTable
from radixrt.messages.runner import (
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    PartOrder,
    RunnerReady,
    StepFailed,
    ToRunner,
)

logger = logging.getLogger(__name__)

READY_WAIT_S = 0.05


class RankEndpoints(NamedTuple):
    """Endpoints of an epoch.

    Attributes:
        ranks: inbox of each rank.
        answers: inbox of the scheduler for all ranks.
        keys: if set, the endpoints are TCP addresses of this machine, on which the scheduler listens for the ranks.
    """

    ranks: list[str]
    answers: str
    keys: Curve | None = None


class MultiprocExecutor(Executor):
    """Sends the same encoded bytes to each rank's inbox; all ranks answer into one inbox.

    Args:
        endpoints: returns the endpoints of an epoch.
        epoch: epoch of the ranks that are starting now.
        mask_path: file of the table of grammar masks; None if messages carry the masks.
        answering: the rank that answers steps.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoints: Callable[[int], RankEndpoints],
        *,
        epoch: int = 0,
        mask_path: str | None,
        answering: int = 0,
    ) -> None:
        self._context = context
        self._endpoints = endpoints
        self._mask_path = mask_path
        self._answering = answering
        self._encoder = msgspec.msgpack.Encoder()
        self._connect(epoch)

    def _connect(self, epoch: int) -> None:
        endpoints = self._endpoints(epoch)
        self._keys = keys = endpoints.keys
        self._answers: ZmqInbox[FromRunner] = ZmqInbox(self._context, endpoints.answers, FromRunner, curve=keys)
        self._ranks: list[ZmqOutbox[ToRunner]] = [
            ZmqOutbox(self._context, endpoint, bind=keys is not None, curve=keys) for endpoint in endpoints.ranks
        ]
        self._ready: dict[int, RunnerReady] = {}

    def wait_ready(self, timeout_s: float) -> RunnerReady:
        deadline = time.monotonic() + timeout_s
        while len(self._ready) < len(self._ranks):
            message = self.take(READY_WAIT_S)
            if message is None and time.monotonic() > deadline:
                missing = f"only {len(self._ready)} of {len(self._ranks)} runners were ready"
                raise EngineError(f"{missing} after {timeout_s:g} s")
            if isinstance(message, StepFailed):
                raise EngineError(f"runner {message.rank} failed to start: {message.error}")
            if isinstance(message, RunnerReady):
                self._ready[message.rank] = message
        # Ranks that outlived a scheduler must have executed the same steps; otherwise collectives would not match.
        executed = sorted({ready.executed for ready in self._ready.values()})
        if len(executed) > 1:
            raise EngineError(
                f"the ranks have executed different steps of the last scheduler ({executed[0]} to {executed[-1]} "
                "messages), so that they must start anew"
            )
        return self._ready[self._answering]

    @property
    def pool_bytes(self) -> list[PoolBytes]:
        ranks = [self._ready[rank] for rank in sorted(self._ready)]
        return [PoolBytes(ready.token_bytes, ready.state_bytes) for ready in ranks]

    def restart(self, epoch: int) -> None:
        self.close()
        self._connect(epoch)

    def poll_ready(self) -> RunnerReady | None:
        if len(self._ready) == len(self._ranks):
            return None
        while (message := self.take()) is not None:
            if isinstance(message, RunnerReady):
                self._ready[message.rank] = message
                if len(self._ready) == len(self._ranks):
                    return self._ready[self._answering]
        return None

    def submit(self, step: ForwardStep) -> None:
        self._send(step)

    def send_mask(self, mask: GrammarMask) -> None:
        self._send(mask)

    def order(self, order: PartOrder) -> None:
        self._send(order)

    def open_masks(self, slots: int, words: int) -> MaskTable:
        try:
            return MaskTable(slots, words, self._mask_path)
        except OSError as error:
            logger.warning("grammar masks are sent in messages, which is slower: %s: %s", self._mask_path, error)
            return MaskTable(slots, words)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        return self._answers.recv(timeout_s)

    def ask(self, question: DebugReq) -> None:
        self._ranks[self._answering].send(question)

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._answers.close()

    @property
    def is_restartable(self) -> bool:
        return True

    @property
    def socket(self) -> Any | None:
        return self._answers.socket

    def _send(self, message: ToRunner) -> None:
        frame = self._encoder.encode(message)
        for rank in self._ranks:
            rank.send_frame(frame)
