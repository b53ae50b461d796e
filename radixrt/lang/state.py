"""`State`: what a program appends to and reads from.

A state belongs to the program's side. It queues steps for its `Branch`, which the event loop works through; it keeps
who wrote which name, so that a read waits for that value alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, overload

from radixrt.lang.branch import Branch, Fork, ForkPoint, Step, Write, WriteJoined
from radixrt.lang.branches import Branches
from radixrt.lang.calls import Choose, Generate
from radixrt.lang.errors import NotReadyError, ProgramError
from radixrt.lang.events import RunLog
from radixrt.lang.names import MetaView, Names
from radixrt.lang.program import Program
from radixrt.lang.prompt import as_messages
from radixrt.lang.slot import Slot
from radixrt.lang.standing import Standing
from radixrt.lang.transcript import Begin, End, Text, Tools, fold
from radixrt.lang.words import (
    Expr,
    Gen,
    Join,
    RoleBegin,
    RoleEnd,
    Select,
    Sequence_,
    SubProgram,
    TextWord,
    as_expr,
)

if TYPE_CHECKING:
    from radixrt.lang.usage import ProgramUsage

T = TypeVar("T")


class State:
    """See the module's docstring. A function gets one as its first argument; `rt.State(backend)` makes one for trying
    things out, which `close()` or leaving its `with` block ends.

    `state += word` appends; `state["name"]` is the value of a gen or select, and waits for it. In an `async def`
    program `await state.get("name")` does.

    Args:
        backend: an Engine, a Backend or the URL of a radixrt server; default: the default backend.
        sampling: sampling parameters for gens that do not say otherwise.

    Attributes:
        log: what the run has done; see `radixrt.lang.events`.
        returned: what the function returned.
    """

    def __init__(self, backend: Any = None, *, sampling: Mapping[str, Any] | None = None) -> None:
        from radixrt.lang.local import as_backend

        self._set_up(Program("state", as_backend(backend)), None, sampling or {})

    def _set_up(self, program: Program, branch: Branch | None, defaults: Mapping[str, Any]) -> None:
        self._program = program
        self._branch = program.root if branch is None else branch
        self._names = Names()
        self._standing = Standing()
        self._defaults = dict(defaults)
        self._forks = self._children = 0
        self.returned: Any = None

    @classmethod
    def of(cls, program: Program, defaults: Mapping[str, Any], branch: Branch | None = None) -> State:
        """The state of a program, or of one of its branches."""
        state = cls.__new__(cls)
        state._set_up(program, branch, defaults)
        return state

    # --- appending ---

    def __iadd__(self, value: Expr | str) -> State:
        self.append(value)
        return self

    def append(self, value: Expr | str) -> State:
        """Append a text or a word; returns at once. Of several joined with `+`, those before a wrong one are appended.

        Raises:
            TypeError: it is neither.
            ProgramError: it cannot stand here.
            RequestError: a sampling parameter of the program is not valid.
            ProgramCancelled: the program was cancelled.
        """
        self._check_open()
        steps: list[Step] = []
        try:
            for item in _flat(as_expr(value)):
                if isinstance(item, SubProgram):
                    self._branch.add(steps)
                    steps = []
                    item.body(self)
                else:
                    steps += self._steps(item)
        finally:
            if steps:
                self._branch.add(steps)
        return self

    def _check_open(self) -> None:
        if self._program.cancelled:
            raise self._program.cancellation(self._branch.id)
        if self._program.closed:
            raise ProgramError(f"{self._program.log.name} has ended; its states can be read, not appended to")

    def _steps(self, item: Expr) -> list[Step]:
        if isinstance(item, RoleBegin):
            self._standing = self._standing.begin(item.role)
            return [Write(Begin(item.role))]
        if isinstance(item, RoleEnd):
            self._standing = self._standing.end(item.role)
            return [Write(End())]
        if isinstance(item, TextWord) and not item.text:
            return []
        self._standing = self._standing.say(item)
        if isinstance(item, TextWord):
            return [Write(Text(item.text))]
        if isinstance(item, Join):
            return [WriteJoined(item)]
        if isinstance(item, Gen):
            sampling = item.params(self._defaults)
            generate = Generate(item, sampling, self._named(item.name, "gen"))
            return [generate] if item.tools is None else [Write(Tools(item.tools)), generate]
        if isinstance(item, Select):
            return [Choose(item, self._named(item.name, "select"))]
        raise TypeError(f"{type(item).__name__} cannot be appended to a state")

    def _named(self, name: str | None, kind: str) -> Slot:
        slot = Slot(name, f'{kind} "{name}"' if name else f"a {kind} without a name", self._branch.id)
        if name is not None:
            self._names[name] = slot
        return slot

    @contextlib.contextmanager
    def defaults(self, sampling: Mapping[str, Any]) -> Iterator[None]:
        """Inside the block, these sampling parameters hold for gens that do not say otherwise."""
        before, self._defaults = self._defaults, {**self._defaults, **sampling}
        try:
            yield
        finally:
            self._defaults = before

    # --- messages as blocks ---

    def role(self, name: str) -> contextlib.AbstractContextManager[State]:
        """`with state.role("tool"): state += ...`: what is appended inside is one message."""
        return self._block(name)

    def system(self) -> contextlib.AbstractContextManager[State]:
        return self._block("system")

    def user(self) -> contextlib.AbstractContextManager[State]:
        return self._block("user")

    def assistant(self) -> contextlib.AbstractContextManager[State]:
        return self._block("assistant")

    @contextlib.contextmanager
    def _block(self, role: str) -> Iterator[State]:
        self.append(RoleBegin(role))
        yield self
        self.append(RoleEnd(role))

    # --- reading ---

    def __getitem__(self, name: str) -> Any:
        """The value of the last gen or select of that name, here or before the fork.

        Raises:
            KeyError: there is none.
            CallError: it failed, or something before it in its branch.
            NotReadyError: an async program must await it.
        """
        slot = self.slot(name)
        self._wait(slot.done, f'await state.get("{name}")')
        self._check_cancelled(slot)
        return slot.value

    async def get(self, name: str) -> Any:
        """`state[name]` for async programs."""
        slot = self.slot(name)
        await _arrival(slot.done)
        self._check_cancelled(slot)
        return slot.value

    def get_meta(self, name: str) -> Any:
        """The `Meta` of a value (for n > 1 a list); waits like `state[name]`."""
        slot = self.slot(name)
        self._wait(slot.done, f'await state.get("{name}") first')
        self._check_cancelled(slot)
        return slot.meta

    @property
    def meta(self) -> Mapping[str, Any]:
        """`state.meta[name]` is `state.get_meta(name)`."""
        return MetaView(self)

    def __contains__(self, name: object) -> bool:
        """Whether a gen or select of that name has been appended."""
        return isinstance(name, str) and self._names.find(name) is not None

    def names(self) -> list[str]:
        """Names of all gens and selects up to here."""
        return list(self._names.all())

    def done(self, name: str) -> bool:
        """Whether a read of that name would not wait."""
        return self.slot(name).done.done()

    def values(self) -> dict[str, Any]:
        """All values by name; waits for them."""
        return {name: self[name] for name in self._names.all()}

    def sync(self) -> State:
        """Wait until everything appended so far has been done.

        Raises:
            CallError: something failed.
        """
        self._wait(self._reached(), "await state.wait()")
        self._raise()
        return self

    async def wait(self) -> State:
        """`sync` for async programs."""
        await _arrival(self._reached())
        self._raise()
        return self

    def text(self) -> str:
        """Everything so far as the model sees it, with the chat template's text."""
        self.sync()
        return self._program.read_text(self._branch.transcript)

    def messages(self) -> list[dict[str, Any]]:
        """Everything so far as messages of the OpenAI API; a program without roles has none."""
        self.sync()
        return as_messages(fold(self._branch.transcript).messages)

    @property
    def error(self) -> BaseException | None:
        """What ended this state, as far as is known now."""
        return self._branch.error

    @property
    def usage(self) -> ProgramUsage:
        """Tokens and calls of this state and those forked from it, as far as they are done."""
        from radixrt.lang.usage import usage_of

        return usage_of(self.log, self._branch.id)

    @property
    def log(self) -> RunLog:
        return self._program.log

    @property
    def awaits(self) -> bool:
        """Whether it is an async program's."""
        return self._program.awaits

    @property
    def branch(self) -> str:
        """Id of its branch: "0" is the program's own state, "0/1" the first forked from it."""
        return self._branch.id

    def report(self) -> str:
        """What the run computed and what it reused, as text."""
        from radixrt.lang.report import report

        return report(self.log)

    def save_report(self, path: str) -> None:
        """Write the report as a self-contained HTML page."""
        from radixrt.lang.report_page import save_report

        save_report(self.log, path)

    @property
    def key(self) -> str:
        """What `fork` named it by, as text."""
        return self._branch.record.key

    def slot(self, name: str) -> Slot:
        """Where the value of that name will be. Raises KeyError."""
        slot = self._names.find(name)
        if slot is None:
            known = ", ".join(self._names.all()) or "none yet"
            raise KeyError(f"no gen or select is named {name!r}; known are: {known}")
        return slot

    def read_join(self, join: Join) -> str:
        """The text of a join; waits for it."""
        for slot in join.slots:
            self._wait(slot.done, "state += rt.join(...), which waits by itself")
        return join.text()

    def _wait(self, done: Future[None], instead: str) -> None:
        if done.done():
            return
        if self._program.awaits:
            raise NotReadyError(f"this is not there yet, and an async program must not block: write {instead}")
        self._program.runtime.wait(done, instead)

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

    # --- forking ---

    @overload
    def fork(self, by: int) -> Branches[int]: ...
    @overload
    def fork(self, by: Iterable[T]) -> Branches[T]: ...
    def fork(self, by: int | Iterable[Any] = 1) -> Branches[Any]:
        """States that go on from here, each on its own and all at once; this one can go on too.

        Args:
            by: how many, or a key for each.

        Raises:
            ProgramError: the number is negative.
        """
        keys = list(range(by)) if isinstance(by, int) else list(by)
        if isinstance(by, int) and by < 0:
            raise ProgramError(f"fork takes a number of states or their keys, not {by}")
        self._check_open()
        point = ForkPoint(len(keys))
        self._branch.add([Fork(point)])
        inherited = self._names
        self._names = Names(inherited)
        self._forks += 1
        return Branches(keys, [self._child(str(key), point, inherited) for key in keys])

    def _child(self, key: str, point: ForkPoint, names: Names) -> State:
        self._children += 1
        branch = self._program.branch(self._branch, key, self._forks, point, self._children)
        child = State.of(self._program, self._defaults, branch)
        child._names = Names(names)
        child._standing = self._standing
        return child

    def copy(self) -> State:
        """One state that goes on from here."""
        return self.fork(1)[0]

    # --- ending ---

    def end(self) -> None:
        """Nothing more will be appended, so that what the cache keeps for this state may go. A hint: appending stays
        possible."""
        self._branch.end()

    def cancel(self) -> None:
        """Abort what this state is doing and has still to do. Reading what it has not got raises ProgramCancelled."""
        self._branch.cancel()

    def close(self) -> None:
        """Wait until all that was appended is done and end the run. Only for a state made with `rt.State(...)`.

        Raises:
            CallError: something failed.
        """
        if not self._program.closed:
            self._program.runtime.wait(self._program.end(), "this in a thread of its own")

    def __enter__(self) -> State:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        own = self._branch is self._program.root
        if error is not None:
            if own:
                self._program.abort(error).result()
            self.cancel()
        elif own:
            self.close()
        self.end()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, RuntimeError):  # made by halves, or the interpreter is ending
            if not self._program.closed and self._branch is not self._program.root:
                self._branch.end()

    def __repr__(self) -> str:
        return f"<State {self._branch.id} of {self._program.log.name}: {', '.join(self._names.all()) or 'no names'}>"


async def _arrival(done: Future[None]) -> None:
    if not done.done():
        await asyncio.wrap_future(done)


def _flat(item: Expr) -> Iterator[Expr]:
    if isinstance(item, Sequence_):
        for part in item.items:
            yield from _flat(part)
    else:
        yield item
