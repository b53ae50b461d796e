"""`Branch`: the event loop's side of a state: a queue of steps, and a coroutine that runs the steps in order.

The program appends steps from its own thread; all other state of a branch belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from radixrt.lang.core.expr import Join
from radixrt.lang.core.transcript import Begin, End, Image, Text, Tools, Transcript, append, last_call
from radixrt.lang.errors import CallError, ProgramCancelled
from radixrt.lang.observe.run_log import BranchRecord

if TYPE_CHECKING:
    from radixrt.lang.core.run import Run

Failure = CallError | ProgramCancelled


class Step(ABC):
    """One step of a branch."""

    label = "text"

    @property
    def leads_to_call(self) -> bool:
        """True if the step calls the model, or passes the transcript to branches that may call the model."""
        return False

    @abstractmethod
    async def run(self, branch: Branch) -> None:
        """Run the step; an exception ends the branch."""

    def fail(self, error: Failure) -> None:  # noqa: B027 (most steps have no readers)
        """Tell readers that the step will not run."""


class Write(Step):
    """Append an entry to the transcript."""

    def __init__(self, entry: Text | Image | Begin | End | Tools) -> None:
        self._entry = entry

    async def run(self, branch: Branch) -> None:
        branch.transcript = append(branch.transcript, self._entry)


class WriteJoined(Step):
    """Wait for values of other branches and append their text."""

    label = "join"

    def __init__(self, join: Join) -> None:
        self._join = join

    async def run(self, branch: Branch) -> None:
        for slot in self._join.slots:
            if not slot.done.done():
                await asyncio.wrap_future(slot.done)
        branch.transcript = append(branch.transcript, Text(self._join.text()))
        calls = (meta.call for slot in self._join.slots if slot.error is None for meta in slot.metas[:1])
        branch.joined += calls


class Mark(Step):
    """Tell a reader that all earlier steps have run."""

    def __init__(self, done: Future[None]) -> None:
        self._done = done

    async def run(self, branch: Branch) -> None:
        self._done.set_result(None)

    def fail(self, error: Failure) -> None:
        self._done.set_result(None)


class ForkPoint:
    """State of the parent at a fork, from which the branches continue.

    Attributes:
        reached: done when the parent has reached the fork; then `transcript` is set, or `error` if the parent failed.
        length: number of tokens up to the fork; 0 while the number is unknown.
        parent: the branch that forked; None until the branch has reached the fork.
        open: number of branches that may still send calls, themselves or by branches forked from them.
    """

    def __init__(self, size: int) -> None:
        self.reached: asyncio.Future[None] | None = None
        self.transcript: Transcript = None
        self.joined: tuple[int, ...] = ()
        self.error: Failure | None = None
        self.done = False
        self.parent: Branch | None = None
        self.length = 0
        self.size = self.open = size

    async def wait(self) -> None:
        if not self.done:
            if self.reached is None:
                self.reached = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.reached)

    def reach(self) -> None:
        self.done = True
        if self.reached is not None and not self.reached.done():
            self.reached.set_result(None)


class Fork(Step):
    """Give the transcript so far to the branches of a fork."""

    label = "fork"

    def __init__(self, point: ForkPoint) -> None:
        self._point = point

    async def run(self, branch: Branch) -> None:
        point = self._point
        point.transcript, point.joined = branch.transcript, tuple(branch.joined)
        if point.size > 1:
            point.length = await branch.program.prefix_length(branch.transcript)
        point.parent = branch
        branch.forks.append(point)
        point.reach()

    @property
    def leads_to_call(self) -> bool:
        return self._point.open > 0

    def fail(self, error: Failure) -> None:
        self._point.error = error
        self._point.reach()


class Branch:
    """See the module's docstring.

    Attributes:
        transcript: the conversation after the steps that have run.
        joined: ids of the calls whose answers were joined in since the last call of this branch.
        over: no more steps are expected; only a hint, since steps may still be added.
        error: the error that ended the branch.
        forks: the forks that the branch has reached.
        announced: the hint of the branch's last call said that another call is likely to follow.
    """

    def __init__(self, program: Run, record: BranchRecord, origin: ForkPoint | None) -> None:
        self.program = program
        self.record = record
        self.transcript: Transcript = None
        self.joined: list[int] = []
        self.over = False
        self.error: Failure | None = None
        self.forks: list[ForkPoint] = []
        self.announced = False
        self._origin = origin
        self._started = origin is None
        self._left = False
        self._rests = False  # the loop has seen that the branch is over
        self._closed = False  # the branch and all branches forked from it are over
        # Numbers of steps, marks not counted. The program's thread writes the first number, the loop the second.
        self._added = self._done = 0
        self._steps: deque[Step] = deque()
        self._task: asyncio.Task[None] | None = None

    # --- the program's side ---

    def add(self, steps: Sequence[Step]) -> None:
        """Queue steps. May be called from any thread."""
        self.over = self._rests = False
        self._added += len(steps)
        self._steps.extend(steps)
        self.program.runtime.call(self._kick)

    def mark(self, done: Future[None]) -> None:
        """Set a future when all steps so far have run or failed. May be called from any thread."""
        self._steps.append(Mark(done))
        self.program.runtime.call(self._kick)

    @property
    def at_rest(self) -> bool:
        """True if all steps so far have run or failed."""
        return self._done == self._added

    def end(self) -> None:
        """Note that no more steps are expected. May be called from any thread."""
        self.over = True
        self.program.runtime.call(self._kick)

    def cancel(self) -> None:
        """Abort the running step and all queued steps. May be called from any thread."""
        self.program.runtime.call(self.abort)

    # --- the loop's side ---

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def group(self) -> tuple[int, int]:
        """(tokens of the prefix that the branches of the same fork share, number of these branches that are open)."""
        if self._origin is None or self._origin.size == 1:
            return 0, 1
        return self._origin.length, max(1, self._origin.open)

    @property
    def will_continue(self) -> bool:
        """True if another call is likely to follow the running call, in this branch or in branches forked from it."""
        return any(step.leads_to_call for step in self._steps) or not (self.over or self.program.body_done)

    def failure(self, label: str, error: Exception) -> CallError:
        if isinstance(error, CallError):
            return error
        return CallError(self.program.log.name, self.id, self.record.key, label, error)

    def _kick(self) -> None:
        if self._task is None and (self._steps or (self.over and not self._rests)):
            self._task = asyncio.get_running_loop().create_task(self._work())
            self.program.tasks.add(self._task)
            self._task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self.program.tasks.discard(task)
        self._task = None
        if task.cancelled():  # the coroutine may have been cancelled before its first step
            self._fail(self.program.cancellation(self.id))
        self._kick()

    async def _work(self) -> None:
        while self._steps:
            await self._next()
        if self.over and not self._rests:
            self._rests = True
            self.leave()
            self._close()

    def _close(self) -> None:
        """If the branch and all branches forked from it are over, tell a backend that expects another call that no call
        will follow."""
        if not self._rests or any(point.open for point in self.forks):
            return
        if self.announced:
            self.announced = False
            self.program.release(self.id)
        if self._origin is not None and not self._closed:
            self._closed = True
            self._origin.open -= 1
            if self._origin.parent is not None:
                self._origin.parent._close()

    async def _next(self) -> None:
        if not self._started and self._origin is not None:
            await self._origin.wait()
            self._started = True
            self.transcript, self.joined = self._origin.transcript, list(self._origin.joined)
            self.record.after = last_call(self.transcript)
            if self._origin.error is not None:
                self._fail(self._origin.error)
                return
        step = self._steps.popleft()
        if (self.program.cancelled or self.program.closed) and self.error is None:
            self.error = self.program.cancellation(self.id)
        if self.error is not None:
            self._refuse(step, self.error)
            return
        try:
            await step.run(self)
            self._done += not isinstance(step, Mark)
        except asyncio.CancelledError:
            self._steps.appendleft(step)
            raise
        except Exception as error:  # the program's next read raises the error
            failure = self.failure(step.label, error)
            self._refuse(step, failure)
            self._fail(failure)

    def _fail(self, error: Failure) -> None:
        self.error = self.error or error
        self.record.error = self.record.error or str(error)
        while self._steps:
            self._refuse(self._steps.popleft(), self.error)

    def _refuse(self, step: Step, error: Failure) -> None:
        step.fail(error)
        self._done += not isinstance(step, Mark)

    def abort(self) -> None:
        """End the branch now: close its open request and fail its queued steps."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._fail(self.program.cancellation(self.id))

    def leave(self) -> None:
        """Record that the branch has ended."""
        if not self._left:
            self._left = True
            self.record.ended = time.monotonic()
            self.program.log.emit("branch_end", self.record)
