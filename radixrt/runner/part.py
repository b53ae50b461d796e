"""`RunnerPart`: the end of a part in a rank, for parts that send orders between steps (`PartOrder`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixrt.runner.model_runner import ModelRunner


class RunnerPart:
    """Base class; the methods of the base class do nothing. The worker calls all methods in its own thread, between
    steps.

    Attributes:
        name: name of the part.
    """

    name = ""

    @property
    def is_busy(self) -> bool:
        """True while `poll` may return a report although no order arrives."""
        return False

    def attach(self, runner: ModelRunner) -> None:
        """Keep what the part needs of an initialized runner. Called once, before any other method."""

    def order(self, data: bytes) -> None:
        """Execute an order as far as possible without waiting. On CUDA the work is enqueued on the current stream,
        between the steps before and after the order.

        Raises:
            Exception: the rank cannot continue; it ends, and the main process restarts the rank.
        """

    def poll(self) -> bytes | None:
        """Return a report to the part's end in the scheduler; None if there is none. Never waits."""
        return None

    def reset(self) -> None:
        """Drop all orders under way: a new scheduler begins. Work that the device has begun may end first."""

    def close(self) -> None:
        """Release all memory and threads."""
