"""`State`: the text to which a program appends; `Branches`: the states of a fork; `join`: their values as text.

The program's thread owns its states. Appending queues steps for the `Branch` of a state, which the event loop runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from radixrt.lang.core.branch import Branch, Fork, ForkPoint, Step
from radixrt.lang.core.expr import Expr, ImageWord, Join, RoleBegin, RoleEnd, SubProgram, as_expr
from radixrt.lang.core.program import Program
from radixrt.lang.core.state_reader import StateReader
from radixrt.lang.core.step_builder import StepBuilder, flat
from radixrt.lang.core.tools import Functions, OnError, check_on_error, result_text, run_call, run_calls
from radixrt.lang.core.values import Names
from radixrt.lang.errors import ProgramError

T = TypeVar("T")
K = TypeVar("K")


class State(StateReader):
    """State of a program. A function gets a state as its first argument. `rt.State(backend)` makes a state for trying
    things out; `close()`, or the end of its `with` block, ends this state.

    `state += primitive` appends a primitive. `state["name"]` waits for the value of a gen or select and returns the
    value; in an `async def` program, use `await state.get("name")`.

    Args:
        backend: an Engine, a Backend or the URL of a radixrt server; default: the default backend.
        sampling: sampling parameters for gens that do not set their own.

    Attributes:
        returned: return value of the function.
    """

    def __init__(self, backend: Any = None, *, sampling: Mapping[str, Any] | None = None) -> None:
        from radixrt.lang.backends.default import as_backend

        program = Program("state", as_backend(backend))
        self._set_up(program, program.root, StepBuilder(program.root.id, sampling or {}))

    def _set_up(self, program: Program, branch: Branch, builder: StepBuilder) -> None:
        self._program = program
        self._branch = branch
        self._builder = builder
        self._forks = self._children = 0
        self.returned: Any = None

    @classmethod
    def of(cls, program: Program, defaults: Mapping[str, Any]) -> State:
        """The state of a program."""
        state = cls.__new__(cls)
        state._set_up(program, program.root, StepBuilder(program.root.id, defaults))
        return state

    # --- appending ---

    def __iadd__(self, value: Expr | str) -> State:
        self.append(value)
        return self

    def append(self, value: Expr | str) -> State:
        """Append a text or a primitive; return at once. Of primitives joined with `+`, the primitives before an error
        are appended.

        Raises:
            TypeError: the value is neither a text nor a primitive.
            ProgramError: the primitive may not stand here.
            RequestError: a sampling parameter of the program is not valid.
            Unsupported: the model reads no pictures.
            ProgramCancelled: the program was cancelled.
        """
        self._check_open()
        steps: list[Step] = []
        try:
            for item in flat(as_expr(value)):
                if isinstance(item, SubProgram):
                    self._branch.add(steps)
                    steps = []
                    item.run_on(self)
                else:
                    made = self._builder.steps(item)
                    if isinstance(item, ImageWord):
                        self._program.check_picture(in_message=self._builder.in_message)
                    steps += made
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
        """Inside the block, these sampling parameters apply to gens that do not set their own."""
        return self._builder.defaults(sampling)

    # --- messages as blocks ---

    def role(self, name: str) -> contextlib.AbstractContextManager[State]:
        """`with state.role("tool"): state += ...`: everything appended inside is one message."""
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

    # --- tools ---

    def run_tools(self, name: str, *, on_error: OnError = "raise") -> list[Any]:
        """Run the Python functions that the gen of that name has called, and append each result as a tool's message.

        Waits for the gen. Arguments are converted to the types of the function's parameters; a result that is not a
        text is written as JSON.

        Args:
            on_error: "raise" an exception of a function, or "tell" the model about the exception as the result.

        Returns:
            The results of the functions; an empty list without calls, so that `while s.run_tools("step"):` is an
            agent's loop.

        Raises:
            ProgramError: the tool is not a Python function, or is an async function; or the gen has n > 1.
        """
        calls, functions = self._tool_calls(name, on_error)
        return self._answered([run_call(call, functions, on_error) for call in calls])

    async def async_run_tools(self, name: str, *, on_error: OnError = "raise") -> list[Any]:
        """`run_tools` for async programs; the functions run at once, and may be async."""
        await self.get(name)
        calls, functions = self._tool_calls(name, on_error)
        return self._answered(await run_calls(calls, functions, on_error))

    def _tool_calls(self, name: str, on_error: str) -> tuple[Sequence[Mapping[str, Any]], Functions]:
        check_on_error(on_error)
        meta = self.get_meta(name)
        if isinstance(meta, list):
            raise ProgramError(f"{name!r} has {len(meta)} samples; run_tools answers the calls of one")
        return meta.tool_calls, self.slot(name).tools

    def _answered(self, results: list[Any]) -> list[Any]:
        for result in results:
            self.append(RoleBegin("tool"))
            self.append(result_text(result))
            self.append(RoleEnd("tool"))
        return results

    # --- forking ---

    @overload
    def fork(self, by: int) -> Branches[int]: ...
    @overload
    def fork(self, by: Iterable[T]) -> Branches[T]: ...
    def fork(self, by: int | Iterable[Any] = 1) -> Branches[Any]:
        """Create states that continue from here, independently and concurrently; this state can continue too.

        Args:
            by: number of states, or a key for each state.

        Raises:
            ProgramError: the number is negative.
        """
        keys = list(range(by)) if isinstance(by, int) else list(by)
        if isinstance(by, int) and by < 0:
            raise ProgramError(f"fork takes a number of states or their keys, not {by}")
        self._check_open()
        point = ForkPoint(len(keys))
        self._branch.add([Fork(point)])
        inherited = self._builder.fork()
        self._forks += 1
        return Branches(keys, [self._child(str(key), point, inherited) for key in keys])

    def _child(self, key: str, point: ForkPoint, names: Names) -> State:
        self._children += 1
        branch = self._program.branch(self._branch, key, self._forks, point, self._children)
        child = State.__new__(State)
        child._set_up(self._program, branch, self._builder.child(branch.id, names))
        return child

    def copy(self) -> State:
        """Create a state that continues from here."""
        return self.fork(1)[0]

    # --- ending ---

    def end(self) -> None:
        """Declare that nothing more will be appended, so that the cache may evict the entries of this state. This is a
        hint: appending stays possible."""
        self._branch.end()

    def cancel(self) -> None:
        """Abort the running and queued steps of this state. Reading a missing value raises ProgramCancelled."""
        self._branch.cancel()

    def close(self) -> None:
        """Wait until all appended steps have run, and end the run. Only for a state made with `rt.State(...)`.

        Raises:
            CallError: a step failed.
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
        with contextlib.suppress(AttributeError, RuntimeError):  # not fully constructed, or the interpreter is ending
            if not self._program.closed and self._branch is not self._program.root:
                self._branch.end()

    def __repr__(self) -> str:
        names = ", ".join(self.names()) or "no names"
        return f"<State {self._branch.id} of {self._program.log.name}: {names}>"


class Branches(Generic[K]):
    """The states of a fork, in order: `branches[0]`, or `branches["key"]` if the keys are not numbers.

    The end of a `with` block over the branches ends the states, so that no more steps are expected; an exception
    cancels the states.
    """

    def __init__(self, keys: Sequence[K], states: Sequence[State]) -> None:
        self._keys = list(keys)
        self._states = list(states)

    @overload
    def __getitem__(self, index: int | str | tuple[Any, ...] | None) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: Any) -> State | list[State]:
        """Return a state by position if the index is a number, otherwise by key. Raises IndexError, KeyError."""
        if isinstance(index, (int, slice)):
            return self._states[index]
        if index not in self._keys:
            raise KeyError(f"no branch has the key {index!r}; there are {', '.join(map(repr, self._keys))}")
        return self._states[self._keys.index(index)]

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def keys(self) -> list[K]:
        """The keys of the fork."""
        return list(self._keys)

    def items(self) -> list[tuple[State, K]]:
        """Each state with its key: `for view, topic in views.items()`."""
        return list(zip(self._states, self._keys, strict=True))

    def values(self, name: str) -> list[Any]:
        """Return the values of a name in all branches; waits for the values."""
        return [state[name] for state in self._states]

    def end(self) -> None:
        """End all branches; see `State.end`."""
        for state in self._states:
            state.end()

    def cancel(self) -> None:
        """Cancel all branches; see `State.cancel`."""
        for state in self._states:
            state.cancel()

    def __enter__(self) -> Branches[K]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.cancel()
        self.end()


def join(
    branches: Iterable[State] | Mapping[Any, State],
    name: str,
    *,
    sep: str = "\n",
    format: str = "{value}",
    skip_errors: bool = False,
) -> Join:
    """Join the texts of a name in several branches to a single text. The state to which the join is appended waits for
    the texts.

    The branches are ended; appending more to them is still possible.

    Args:
        branches: states, most often the result of `fork`.
        name: name of a gen or select in each.
        sep: separator.
        format: format of each text; may use {value} (the text), {key} (the key of `fork`) and {index}.
        skip_errors: exclude branches that failed; otherwise the join fails with the first failed branch.

    Raises:
        KeyError: a branch has no such name.
        ProgramError: the format uses another name.
    """
    states = list(branches.values()) if isinstance(branches, Mapping) else list(branches)
    try:
        format.format(value="", key="", index=0)
    except (KeyError, IndexError, ValueError) as error:
        raise ProgramError(f"join: format may use {{value}}, {{key}} and {{index}}; {error!r}") from None
    keys = branches.keys() if isinstance(branches, Branches) else [state.key for state in states]
    slots = [state.slot(name) for state in states]
    for state in states:
        state.end()
    return Join(slots, keys, sep, format, skip_errors, states[0].read_join if states else Join.text)
