"""`State`: what a program appends to and reads from.

A state belongs to the program's side. It queues steps for its `Branch`, which the event loop works through; it keeps
who wrote which name, so that a read waits for that value alone. `Writer` makes the steps, `Reader` does the waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from radixrt.lang.core.branch import Branch, Fork, ForkPoint, Step
from radixrt.lang.core.branches import Branches
from radixrt.lang.core.names import MetaView, Names
from radixrt.lang.core.primitives import Expr, Join, RoleBegin, RoleEnd, SubProgram, as_expr
from radixrt.lang.core.program import Program
from radixrt.lang.core.prompt import as_messages
from radixrt.lang.core.state_reader import Reader
from radixrt.lang.core.step_builder import Writer, flat
from radixrt.lang.core.transcript import fold
from radixrt.lang.core.values import Slot
from radixrt.lang.errors import ProgramError
from radixrt.lang.observe.run_log import RunLog

if TYPE_CHECKING:
    from radixrt.lang.observe.usage import ProgramUsage

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
        log: what the run has done; see `radixrt.lang.observe.run_log`.
        returned: what the function returned.
    """

    def __init__(self, backend: Any = None, *, sampling: Mapping[str, Any] | None = None) -> None:
        from radixrt.lang.backends.default import as_backend

        program = Program("state", as_backend(backend))
        self._set_up(program, program.root, Writer(program.root.id, sampling or {}))

    def _set_up(self, program: Program, branch: Branch, writer: Writer) -> None:
        self._program = program
        self._branch = branch
        self._writer = writer
        self._reader = Reader(program, branch)
        self._forks = self._children = 0
        self.returned: Any = None

    @classmethod
    def of(cls, program: Program, defaults: Mapping[str, Any]) -> State:
        """The state of a program."""
        state = cls.__new__(cls)
        state._set_up(program, program.root, Writer(program.root.id, defaults))
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
            for item in flat(as_expr(value)):
                if isinstance(item, SubProgram):
                    self._branch.add(steps)
                    steps = []
                    item.body(self)
                else:
                    steps += self._writer.steps(item)
        finally:
            if steps:
                self._branch.add(steps)
        return self

    def _check_open(self) -> None:
        if self._program.cancelled:
            raise self._program.cancellation(self._branch.id)
        if self._program.closed:
            raise ProgramError(f"{self._program.log.name} has ended; its states can be read, not appended to")

    def defaults(self, sampling: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Inside the block, these sampling parameters hold for gens that do not say otherwise."""
        return self._writer.defaults(sampling)

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
        return self._reader.filled(self.slot(name), f'await state.get("{name}")').value

    async def get(self, name: str) -> Any:
        """`state[name]` for async programs."""
        return (await self._reader.arrived(self.slot(name))).value

    def get_meta(self, name: str) -> Any:
        """The `Meta` of a value (for n > 1 a list); waits like `state[name]`."""
        return self._reader.filled(self.slot(name), f'await state.get("{name}") first').meta

    @property
    def meta(self) -> Mapping[str, Any]:
        """`state.meta[name]` is `state.get_meta(name)`."""
        return MetaView(self)

    def __contains__(self, name: object) -> bool:
        """Whether a gen or select of that name has been appended."""
        return isinstance(name, str) and self._writer.names.find(name) is not None

    def names(self) -> list[str]:
        """Names of all gens and selects up to here."""
        return list(self._writer.names.all())

    def done(self, name: str) -> bool:
        """Whether a read of that name would not wait."""
        return self.slot(name).done.done()

    def values(self) -> dict[str, Any]:
        """All values by name; waits for them."""
        return {name: self[name] for name in self._writer.names.all()}

    def sync(self) -> State:
        """Wait until everything appended so far has been done.

        Raises:
            CallError: something failed.
        """
        self._reader.sync("await state.wait()")
        return self

    async def wait(self) -> State:
        """`sync` for async programs."""
        await self._reader.async_sync()
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
        from radixrt.lang.observe.usage import usage_of

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
        from radixrt.lang.observe.report import report

        return report(self.log)

    def save_report(self, path: str) -> None:
        """Write the report as a self-contained HTML page."""
        from radixrt.lang.observe.report_page import save_report

        save_report(self.log, path)

    @property
    def key(self) -> str:
        """What `fork` named it by, as text."""
        return self._branch.record.key

    def slot(self, name: str) -> Slot:
        """Where the value of that name will be. Raises KeyError."""
        slot = self._writer.names.find(name)
        if slot is None:
            known = ", ".join(self._writer.names.all()) or "none yet"
            raise KeyError(f"no gen or select is named {name!r}; known are: {known}")
        return slot

    def read_join(self, join: Join) -> str:
        """The text of a join; waits for it."""
        for slot in join.slots:
            self._reader.wait(slot.done, "state += rt.join(...), which waits by itself")
        return join.text()

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
        inherited = self._writer.fork()
        self._forks += 1
        return Branches(keys, [self._child(str(key), point, inherited) for key in keys])

    def _child(self, key: str, point: ForkPoint, names: Names) -> State:
        self._children += 1
        branch = self._program.branch(self._branch, key, self._forks, point, self._children)
        child = State.__new__(State)
        child._set_up(self._program, branch, self._writer.child(branch.id, names))
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
        names = ", ".join(self.names()) or "no names"
        return f"<State {self._branch.id} of {self._program.log.name}: {names}>"
