"""`StateReader`: reads of a state, which wait until the value is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from radixrt.lang.core.expr import Join
from radixrt.lang.core.program import Program
from radixrt.lang.core.prompt import as_messages
from radixrt.lang.core.step_builder import StepBuilder
from radixrt.lang.core.transcript import fold
from radixrt.lang.core.values import Slot
from radixrt.lang.errors import NotReadyError, ProgramError
from radixrt.lang.observe.run_log import ProgramUsage, RunLog, usage_of

if TYPE_CHECKING:
    from radixrt.lang.core.branch import Branch


class StateReader:
    """The reading half of `State`. A read waits only for its own value.

    In a plain function reads block; in an `async def` program they are awaited.
    """

    _program: Program
    _branch: Branch
    _builder: StepBuilder

    # --- values ---

    def __getitem__(self, name: str) -> Any:
        """The value of the last gen or select of that name, here or before the fork.

        Raises:
            KeyError: no gen or select has the name.
            CallError: the gen or select failed, or an earlier step of its branch.
            NotReadyError: the value is not known yet, and an async program must await it.
        """
        return self._filled(name, f'await state.get("{name}")').value

    async def get(self, name: str) -> Any:
        """`state[name]` for async programs."""
        slot = self.slot(name)
        await _wait_for(slot.done)
        self._check_cancelled(slot)
        return slot.value

    def get_meta(self, name: str) -> Any:
        """The `Meta` of a value (for n > 1 a list); waits like `state[name]`."""
        return self._filled(name, f'await state.get("{name}") first').meta

    @property
    def meta(self) -> Mapping[str, Any]:
        """`state.meta[name]` is `state.get_meta(name)`."""
        return MetaView(self)

    def __contains__(self, name: object) -> bool:
        """Return True if a gen or select of that name has been appended."""
        return isinstance(name, str) and self._builder.names.find(name) is not None

    def names(self) -> list[str]:
        """Names of all gens and selects up to here."""
        return list(self._builder.names.all())

    def done(self, name: str) -> bool:
        """Return True if a read of that name would return without waiting."""
        return self.slot(name).done.done()

    def values(self) -> dict[str, Any]:
        """Return all values by name; waits for the values."""
        return {name: self[name] for name in self.names()}

    def types(self) -> dict[str, Any]:
        """Return the Python type of each value for which the program gave one."""
        slots = self._builder.names.all()
        return {name: slot.python_type for name, slot in slots.items() if slot.python_type is not None}

    def slot(self, name: str) -> Slot:
        """The slot of a name.

        Raises:
            KeyError: nothing of that name has been appended.
        """
        slot = self._builder.names.find(name)
        if slot is None:
            known = ", ".join(self.names()) or "none yet"
            raise KeyError(f"no gen or select is named {name!r}; known are: {known}")
        return slot

    def read_join(self, join: Join) -> str:
        """The text of a join; waits for its values."""
        for slot in join.slots:
            self._wait(slot.done, "state += rt.join(...), which waits by itself")
        return join.text()

    # --- the conversation ---

    def sync(self) -> Self:
        """Wait until all steps appended so far have run.

        Raises:
            CallError: a step failed.
        """
        self._wait(self._reached(), "await state.wait()")
        self._raise()
        return self

    async def wait(self) -> Self:
        """`sync` for async programs."""
        await _wait_for(self._reached())
        self._raise()
        return self

    def text(self) -> str:
        """Return the text so far as the model sees it, chat template included."""
        self.sync()
        return self._program.read_text(self._branch.transcript)

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation so far as messages of the OpenAI API; empty for a program without roles."""
        self.sync()
        return as_messages(fold(self._branch.transcript).messages)

    # --- the run ---

    @property
    def error(self) -> BaseException | None:
        """The error that ended this state, or None so far."""
        return self._branch.error

    @property
    def log(self) -> RunLog:
        """Everything that the run has done; see `radixrt.lang.observe.run_log`."""
        return self._program.log

    @property
    def awaits(self) -> bool:
        """True if the program is an `async def`."""
        return self._program.awaits

    @property
    def usage(self) -> ProgramUsage:
        """Tokens and calls of this state and those forked from it, as far as they are done."""
        return usage_of(self.log, self._branch.id)

    @property
    def branch(self) -> str:
        """Id of its branch: "0" is the program's own state, "0/1" the first forked from it."""
        return self._branch.id

    @property
    def key(self) -> str:
        """The key of `fork` for this state, as text."""
        return self._branch.record.key

    def report(self) -> str:
        """The calls of the run with their computed and reused tokens, as text."""
        from radixrt.lang.observe.report import report

        return report(self.log)

    def save_report(self, path: str) -> None:
        """Write the report as a self-contained HTML page."""
        from radixrt.lang.observe.report_page import save_report

        save_report(self.log, path)

    # --- waiting ---

    def _filled(self, name: str, instead: str) -> Slot:
        """The slot of a name, once it is done.

        Args:
            instead: what to write where blocking is not possible.
        """
        slot = self.slot(name)
        self._wait(slot.done, instead)
        self._check_cancelled(slot)
        return slot

    def _wait(self, done: Future[None], instead: str) -> None:
        if done.done():
            return
        if self._program.awaits:
            raise NotReadyError(f"this is not there yet, and an async program must not block: write {instead}")
        self._program.runtime.wait(done, instead)

    def _reached(self) -> Future[None]:
        """A future that is done when the steps appended so far are."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        if self._program.closed or self._branch.at_rest:
            done.set_result(None)
        else:
            self._branch.mark(done)
        return done

    def _check_cancelled(self, slot: Slot) -> None:
        """Raise ProgramError where a cancelled value is read after the run; inside the program its own cancellation is
        a ProgramCancelled, which is no Exception."""
        if slot.cancelled and self._program.closed and not self._program.inside:
            raise ProgramError(f"{self._program.log.name}, branch {slot.branch}, {slot.label}: it was cancelled")

    def _raise(self) -> None:
        """Raise a fresh copy of the error that ended the branch, if one did."""
        error = self._branch.error
        if error is not None:
            slot = Slot(None, "text", self._branch.id)
            slot.fail(error)
            self._check_cancelled(slot)
            slot.raise_error()


class MetaView(Mapping[str, Any]):
    """`state.meta`."""

    def __init__(self, state: StateReader) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return self._state.get_meta(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.names())

    def __len__(self) -> int:
        return len(self._state.names())


async def _wait_for(done: Future[None]) -> None:
    if not done.done():
        await asyncio.wrap_future(done)
