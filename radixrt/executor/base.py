"""`Executor`: the interface between the scheduler and the ranks that run its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from radixrt.errors import EngineError
from radixrt.executor.mask_table import MaskTable
from radixrt.messages.runner import (
    DebugReply,
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    PartOrder,
    PartReport,
    RunnerReady,
    StepFailed,
    StepOutput,
)
from radixrt.messages.wire import pack_i32

DEBUG_TIMEOUT_S = 10.0


class PoolBytes(NamedTuple):
    """Sizes in one rank.

    Attributes:
        token: bytes of one token's keys and values.
        state: bytes of a state of the recurrent layers; 0 without such layers.
    """

    token: int
    state: int = 0


class Executor(ABC):
    """Runs steps on one or more ranks, in the order in which they are submitted.

    A step with `has_mask` samples only after its mask has arrived. One rank answers each step, in order: rank 0, or
    with pipeline stages the first one of the last stage. Any rank may report a failure.
    """

    @abstractmethod
    def wait_ready(self, timeout_s: float) -> RunnerReady:
        """Wait until every rank is ready; return the message of the answering rank.

        Raises:
            EngineError: a rank failed or was not ready in time.
        """

    @property
    def pool_bytes(self) -> list[PoolBytes]:
        """Sizes of the pools' entries in each rank, known after `wait_ready`. Pipeline stages differ."""
        raise EngineError("the ranks of this engine do not report the sizes of keys and values")

    def restart(self, epoch: int) -> None:
        """Connect to the ranks that were restarted for an epoch. Messages to and from earlier ranks are lost.

        Steps may be submitted once `poll_ready` has returned a message.

        Raises:
            EngineError: these ranks cannot be restarted.
        """
        raise EngineError("the ranks of this engine cannot be restarted")

    def poll_ready(self) -> RunnerReady | None:
        """Return the answering rank's message once after `restart`, when every rank is ready; None before. Never
        waits."""
        raise EngineError("the ranks of this engine cannot be restarted")

    @abstractmethod
    def submit(self, step: ForwardStep) -> None:
        """Send a step to every rank without waiting."""

    @abstractmethod
    def send_mask(self, mask: GrammarMask) -> None:
        """Send the mask of the oldest step that waits for a mask."""

    def order(self, order: PartOrder) -> None:
        """Send an order of a part to every rank, after all submitted steps and before all later ones.

        Raises:
            EngineError: these ranks have no ends of parts.
        """
        raise EngineError("the ranks of this engine take no orders of parts")

    def open_masks(self, slots: int, words: int) -> MaskTable:
        """Return the table of masks for these ranks; see `MaskTable`."""
        return MaskTable(slots, words)

    @abstractmethod
    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        """Return the next message from the ranks, after waiting at most timeout_s; None if there is none."""

    @abstractmethod
    def ask(self, question: DebugReq) -> None:
        """Send a question to the rank that answers, after all submitted steps."""

    def recv(self, reported: Callable[[PartReport], None]) -> StepOutput | StepFailed | None:
        """Return the next answer if there is one; never waits.

        Args:
            reported: called with each report of a part that arrived before the answer.
        """
        while isinstance(message := self.take(), PartReport):
            reported(message)
        if message is None or isinstance(message, (StepOutput, StepFailed)):
            return message
        raise EngineError(f"unexpected {type(message).__name__} from a runner")

    def debug_rows(self, rows: list[int], lens: list[int]) -> DebugReply:
        """Return the answering rank's mirror of req_to_token, after all submitted steps have run (tests)."""
        self.ask(DebugReq(pack_i32(rows), pack_i32(lens)))
        reply = self.take(DEBUG_TIMEOUT_S)
        if not isinstance(reply, DebugReply):
            raise EngineError(f"expected a DebugReply, got {reply!r:.100}")
        return reply

    @abstractmethod
    def close(self) -> None:
        """Close the sockets and, in-process, release the model."""

    @property
    def socket(self) -> Any | None:
        """ZMQ socket that becomes readable with an answer; None if answers need no socket."""
        return None

    def check_ranks(self) -> None:  # noqa: B027 (most executors have no such ranks)
        """Look for ranks that are gone without main's notice, while no step is in flight.

        Raises:
            EngineError: a rank is gone.
        """

    @property
    def is_restartable(self) -> bool:
        """True if the main process restarts ranks that died; see `restart`."""
        return False

    @property
    def runs_ahead(self) -> bool:
        """True if `submit` returns before the step has run."""
        return self.socket is not None
