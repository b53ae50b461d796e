"""The seam between the scheduler and whatever runs its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from radixrt.messages import DebugReply, ForwardStep, GrammarMask, RunnerReady, StepFailed, StepOutput


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

    @abstractmethod
    def recv(self) -> StepOutput | StepFailed | None:
        """The next answer if it is there; never waits."""

    @abstractmethod
    def debug_rows(self, rows: list[int], lens: list[int]) -> DebugReply:
        """Rank 0's mirror of req_to_token, once everything submitted has run (tests)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and, in-process, of the model."""

    @property
    def socket(self) -> Any | None:
        """ZMQ socket that becomes readable with an answer; None where answers come without one."""
        return None
