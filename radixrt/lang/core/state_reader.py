"""`Reader`: how a state waits for what it reads, on whichever side of the event loop it stands."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from radixrt.lang.core.values import Slot
from radixrt.lang.errors import NotReadyError, ProgramError

if TYPE_CHECKING:
    from radixrt.lang.core.branch import Branch
    from radixrt.lang.core.program import Program


class Reader:
    """Reads for one state.

    Args:
        branch: the state's own; slots may be of others.
    """

    def __init__(self, program: Program, branch: Branch) -> None:
        self._program = program
        self._branch = branch

    def filled(self, slot: Slot, instead: str) -> Slot:
        """The slot, once it is done.

        Args:
            instead: what to write where blocking is not possible.

        Raises:
            NotReadyError: an async program must not block.
            ProgramError: it was cancelled, and the run is over.
        """
        self.wait(slot.done, instead)
        self._check_cancelled(slot)
        return slot

    async def arrived(self, slot: Slot) -> Slot:
        """`filled` for async programs."""
        await _arrival(slot.done)
        self._check_cancelled(slot)
        return slot

    def wait(self, done: Future[None], instead: str) -> None:
        """Block until it is done; raises as `filled` does."""
        if done.done():
            return
        if self._program.awaits:
            raise NotReadyError(f"this is not there yet, and an async program must not block: write {instead}")
        self._program.runtime.wait(done, instead)

    def sync(self, instead: str) -> None:
        """Wait for all steps that the branch has so far. Raises what it failed on."""
        self.wait(self._reached(), instead)
        self._raise()

    async def async_sync(self) -> None:
        """`sync` for async programs."""
        await _arrival(self._reached())
        self._raise()

    def _reached(self) -> Future[None]:
        """Done when the steps so far are."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        if self._program.closed or self._branch.at_rest:
            done.set_result(None)
        else:
            self._branch.mark(done)
        return done

    def _check_cancelled(self, slot: Slot) -> None:
        """Inside the program its cancellation is no Exception; for others who read it is."""
        if slot.cancelled and self._program.closed and not self._program.inside:
            raise ProgramError(f"{self._program.log.name}, branch {slot.branch}, {slot.label}: it was cancelled")

    def _raise(self) -> None:
        error = self._branch.error
        if error is not None:
            slot = Slot(None, "text", self._branch.id)
            slot.fail(error)
            self._check_cancelled(slot)
            slot.value  # noqa: B018 (raises a fresh copy)


async def _arrival(done: Future[None]) -> None:
    if not done.done():
        await asyncio.wrap_future(done)
