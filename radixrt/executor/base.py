"""The seam between the scheduler and whatever runs its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from radixrt.constrained.grammar import Bitmask
from radixrt.errors import EngineError
from radixrt.messages.runner import (
    DebugReply,
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    RunnerReady,
    StepFailed,
    StepOutput,
)
from radixrt.messages.wire import pack_i32

DEBUG_TIMEOUT_S = 10.0


class Executor(ABC):
    """Runs steps on one or more ranks, in the order in which they were submitted.

    A step with `has_grammar` samples only when its mask has come. Answers come in the order of the steps, one for each,
    from rank 0 alone, except for failures, which any rank may report.
    """

    @abstractmethod
    def wait_ready(self, timeout_s: float) -> RunnerReady:
        """Wait until every rank is ready; returns rank 0's message.

        Raises:
            EngineError: a rank failed or did not come up in time.
        """

    @abstractmethod
    def submit(self, step: ForwardStep) -> None:
        """Send a step to every rank; does not wait."""

    @abstractmethod
    def send_mask(self, mask: GrammarMask) -> None:
        """Send the mask of the oldest step that still waits for one."""

    def mask_rows(self, num_masks: int, words: int) -> tuple[Bitmask, int]:
        """Memory for a step's masks (uint32 [num_masks, words]), and its offset where ranks map it (-1: send them)."""
        return np.empty((num_masks, words), np.uint32), -1

    @abstractmethod
    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        """The next message from the ranks, waiting for it at most timeout_s."""

    @abstractmethod
    def ask(self, question: DebugReq) -> None:
        """Send a question to rank 0, behind everything submitted."""

    def recv(self) -> StepOutput | StepFailed | None:
        """The next answer if it is there; never waits."""
        message = self.take()
        if message is None or isinstance(message, (StepOutput, StepFailed)):
            return message
        raise EngineError(f"unexpected {type(message).__name__} from a runner")

    def debug_rows(self, rows: list[int], lens: list[int]) -> DebugReply:
        """Rank 0's mirror of req_to_token, once everything submitted has run (tests)."""
        self.ask(DebugReq(pack_i32(rows), pack_i32(lens)))
        reply = self.take(DEBUG_TIMEOUT_S)
        if not isinstance(reply, DebugReply):
            raise EngineError(f"expected a DebugReply, got {reply!r:.100}")
        return reply

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and, in-process, of the model."""

    @property
    def socket(self) -> Any | None:
        """ZMQ socket that becomes readable with an answer; None where answers come without one."""
        return None

    @property
    def runs_ahead(self) -> bool:
        """Whether `submit` returns before the step has run."""
        return self.socket is not None
