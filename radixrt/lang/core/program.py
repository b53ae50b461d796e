"""`Program`: a run of a function; owns the run's branches and ends the run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from radixrt.lang.backends.base import Backend
from radixrt.lang.core.branch import Branch, ForkPoint
from radixrt.lang.core.run import Publish, Run
from radixrt.lang.observe.run_log import BranchRecord

RELEASE_S = 2.0
"""Longest time, in seconds, that the end of a run waits until the backend has received the release."""


class Program(Run):
    """See the module's docstring.

    Attributes:
        root: the branch of the program's own state.
    """

    def __init__(self, name: str, backend: Backend, *, publish: Publish | None = None, awaits: bool = False) -> None:
        super().__init__(name, backend, publish=publish, awaits=awaits)
        self._branches: list[Branch] = []
        self._thread: int | None = None
        self.log.emit("program_start")
        self.root = self.branch(None, "", 0, None)

    @property
    def inside(self) -> bool:
        """True if the caller is the function's own thread."""
        return self._thread == threading.get_ident()

    def call(self, body: Callable[[], Any]) -> Any:
        """Run a `def` in the caller's thread."""
        self._thread = threading.get_ident()
        try:
            return body()
        finally:
            self._thread = None

    def branch(self, parent: Branch | None, key: str, group: int, origin: ForkPoint | None, number: int = 0) -> Branch:
        """Add the number-th branch of a parent."""
        branch_id = "0" if parent is None else f"{parent.id}/{number}"
        record = BranchRecord(branch_id, None if parent is None else parent.id, key, group, time.monotonic())
        self.log.branches[branch_id] = record
        self.log.emit("branch_start", record)
        branch = Branch(self, record, origin)
        self._branches.append(branch)
        return branch

    def end(self) -> Future[None]:
        """Tell that the function has returned. The future is done when all that it appended has been done and the run
        is over; it raises what ended the program's own branch."""
        self.body_done = True
        return self.runtime.submit(self._end())

    def abort(self, error: BaseException) -> Future[None]:
        """Cancel everything. The future is done when every open request has been closed."""
        self.cancelled = self.body_done = True
        self.log.error = self.log.error or str(error) or type(error).__name__
        return self.runtime.submit(self._abort())

    async def _end(self) -> None:
        await self._close()
        if self.root.error is not None:
            raise self.root.error

    async def _abort(self) -> None:
        if not self.closed:
            for branch in self._branches:
                branch.abort()
            await self._close()

    async def _close(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)
        if self.closed:  # an abort and the end of the run came together
            return
        self.closed = True
        for branch in self._branches:
            branch.leave()
        if self.root.error is not None:
            self.log.error = self.log.error or str(self.root.error)
        self.log.end = time.monotonic()
        self.log.emit("program_end")
        self.release(None)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=RELEASE_S)
