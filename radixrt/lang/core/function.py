"""`function`: makes a program of a Python function, which can be run, streamed and mapped over many items."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, overload

from radixrt.lang.backends.default import as_backend
from radixrt.lang.core.batch import BatchItem, run_batch
from radixrt.lang.core.expr import SubProgram
from radixrt.lang.core.program import Program
from radixrt.lang.core.run import Publish
from radixrt.lang.core.runtime import runtime
from radixrt.lang.core.state import State
from radixrt.lang.core.streaming import Channel, Closed, StreamEvent
from radixrt.lang.core.type_names import scope_of
from radixrt.lang.errors import ProgramError, hand_over

if TYPE_CHECKING:
    from radixrt.lang.observe.explain import Explanation

RESERVED = ("backend", "sampling")
DEFAULT_CONCURRENCY = 32


class ProgramStream:
    """Events of a running program, for iteration with `for` or `async for`; the program's error is raised at the end.

    To leave it early, use `close()` or a `with` block, which cancels the program. Events are queued for a late reader,
    and the program does not wait for one.

    Attributes:
        state: the program's state; complete when the iteration has ended.
    """

    def __init__(self) -> None:
        self.channel: Channel[StreamEvent] = Channel()

    def begin(self, program: Program, state: State, future: Future[State]) -> None:
        self.state = state
        self._program = program
        self._future = future
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[State]) -> None:
        try:
            future.result()
        except CancelledError:
            self.channel.close(ProgramError(f"{self._program.log.name}: the stream was closed"))
        except BaseException as error:
            self.channel.close(error)
        else:
            self.channel.close()

    def text(self, name: str) -> Iterator[str]:
        """Iterate over the new text of the gens of one name."""
        for event in self:
            if event.name == name and event.text:
                yield event.text

    def result(self) -> State:
        """Wait for the end and return the state; raises what the program raised."""
        return self._program.runtime.wait(self._future, "async for over the stream, and then its state")

    def close(self) -> None:
        """Cancel the program, if it still runs."""
        self._future.cancel()

    def __iter__(self) -> Iterator[StreamEvent]:
        while True:
            try:
                event = self.channel.get()
            except Closed:
                return
            yield event

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        while True:
            try:
                event = await self.channel.aget()
            except Closed:
                return
            yield event

    def __enter__(self) -> ProgramStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> ProgramStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.wait([asyncio.wrap_future(self._future)])


class Function:
    """A program, made by `function`. `run`, `stream` and `batch` run the program; a call in another program runs the
    program as part of the other.

    `other(s, topic="x")` runs the body on the state s and returns what it returns (in an async program `await` it);
    `s += other(topic="x")` does the same as a primitive.

    Args:
        body: takes the state first; `def` or `async def`.
        sampling: sampling parameters for gens that do not set their own.
    """

    def __init__(self, body: Callable[..., Any], sampling: Mapping[str, Any]) -> None:
        signature = inspect.signature(body)
        names = list(signature.parameters)
        if not names:
            raise ProgramError(f"{body.__qualname__} must take the state as its first argument")
        for name in RESERVED:
            if name in names[1:]:
                raise ProgramError(f"{body.__qualname__} has a parameter {name!r}, which run() takes itself; rename it")
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise ProgramError(f"{body.__qualname__} yields; a program is a plain def or async def")
        functools.update_wrapper(self, body)
        self.body = body
        self.name = body.__qualname__.rpartition("<locals>.")[2]
        self.signature = signature
        self.sampling = dict(sampling)
        self.is_async = inspect.iscoroutinefunction(body)

    # --- inside another program ---

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], State):
            return self._inside(args[0], args[1:], kwargs)
        return SubProgram(self.name, lambda state: self._appended(state, args, kwargs))

    def _inside(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_async:
            with state.defaults(self.sampling):
                return self.body(state, *args, **kwargs)
        if not state.awaits:
            raise ProgramError(f"{self.name} is an async def; only an async def program can run it")

        async def run() -> Any:
            with state.defaults(self.sampling):
                return await self.body(state, *args, **kwargs)

        return run()

    def _appended(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_async:
            raise ProgramError(
                f"{self.name} is an async def and cannot be appended; write await {self.name}(state, ...)"
            )
        self._inside(state, args, kwargs)

    # --- running ---

    def run(self, *args: Any, backend: Any = None, sampling: Mapping[str, Any] | None = None, **kwargs: Any) -> State:
        """Run the program and wait for its end.

        Args:
            args, kwargs: arguments of the function.
            backend: an Engine, a Backend or a server's URL; default: the default backend.
            sampling: sampling parameters for gens that do not set their own; they override those of the function.

        Returns:
            The program's state, whose values can be read without waiting.

        Raises:
            CallError: a call of the program's own state failed, or one that the program read.
            Exception: the function itself raised it.
            Both have the state as the attribute `state`, so that `error.state.report()` shows what was done.

        Warns:
            RuntimeWarning: the caller runs in an event loop, which stops until the program ends.
        """
        if runtime().here:
            raise ProgramError(f"this would stop the event loop that does the work; write {self._awaited}")
        _warn_of_loop(f"{self.name}.run(...)", self._awaited)
        program, state = self._start(args, kwargs, backend, sampling)
        try:
            if self.is_async:
                return self._finish_elsewhere(program, state, args, kwargs)
            state.returned = program.call(functools.partial(self.body, state, *args, **kwargs))
            program.end().result()
        except BaseException as error:
            hand_over(error, state)
            program.abort(error).result()
            raise
        return state

    def _finish_elsewhere(self, program: Program, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        future = runtime().submit(self._through(program, state, args, kwargs))
        try:
            return future.result()
        finally:
            future.cancel()  # the wait may have ended before the program did

    async def async_run(
        self, *args: Any, backend: Any = None, sampling: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> State:
        """`run` for an event loop; cancelling it cancels the program. An `async def` runs in the caller's loop, a `def`
        in a thread of its own."""
        program, state = self._start(args, kwargs, backend, sampling)
        return await self._through(program, state, args, kwargs)

    def stream(
        self, *args: Any, backend: Any = None, sampling: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> ProgramStream:
        """Start the program and iterate over its texts while they are generated. See `ProgramStream`."""
        stream = ProgramStream()
        program, state = self._start(args, kwargs, backend, sampling, stream.channel.put)
        stream.begin(program, state, runtime().submit(self._through(program, state, args, kwargs)))
        return stream

    def batch(
        self, items: Iterable[Any], *, backend: Any = None, sampling: Mapping[str, Any] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY, progress: bool | None = None, output: Any = None, resume: bool = False,
        retries: int = 0,
    ) -> list[BatchItem]:  # fmt: skip
        """Run the program for each item, several at once.

        Args:
            items: for each run, a dict of the function's arguments, a tuple of them, or its only argument.
            concurrency: number of concurrent runs.
            progress: show a progress bar; default: on a terminal.
            output: a file to which each result is appended as a line of JSON when its run ends.
            resume: skip items that the file has results of, except failed ones; otherwise the file must not exist. The
                values of skipped items have the program's types, which the file names.
            retries: number of times that an item is run again after an error, with pauses of 0.25 to 30 s.

        Returns:
            One BatchItem for each item, in their order. A failed item has an `error` and the state of its run, and does
            not affect the others.

        Raises:
            ProgramError: an argument is wrong; the output file exists and resume is not set, or it has a line that is
                no result of this program as it is now.

        Warns:
            RuntimeWarning: as for `run`.
        """
        _warn_of_loop(f"{self.name}.batch(...)", f"await {self.name}.async_batch(...)")
        coroutine = self.async_batch(
            items, backend=backend, sampling=sampling, concurrency=concurrency, progress=progress, output=output,
            resume=resume, retries=retries,
        )  # fmt: skip
        future = runtime().submit(coroutine)
        try:
            return runtime().wait(future, f"await {self.name}.async_batch(...)")
        except BaseException:
            future.cancel()
            raise

    async def async_batch(
        self, items: Iterable[Any], *, backend: Any = None, sampling: Mapping[str, Any] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY, progress: bool | None = None, output: Any = None, resume: bool = False,
        retries: int = 0,
    ) -> list[BatchItem]:  # fmt: skip
        """`batch` for an event loop; cancelling it cancels the running items; the output file keeps the others."""
        chosen = await asyncio.to_thread(as_backend, backend)

        async def one(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
            return await self.async_run(*args, backend=chosen, sampling=sampling, **kwargs)

        return await run_batch(
            self.name, one, items, concurrency=concurrency, progress=progress, output=output, resume=resume,
            retries=retries, scope=scope_of(self.body),
        )  # fmt: skip

    def explain(
        self, *args: Any, backend: Any = None, sampling: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Explanation:
        """Return the calls of a run with these arguments and what they share, without running it."""
        from radixrt.lang.observe.explain import explain

        return explain(self.name, self.run, args, {**kwargs, "sampling": sampling}, backend)

    @property
    def _awaited(self) -> str:
        return f"await {self.name}.async_run(...)"

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], backend: Any, sampling: Mapping[str, Any] | None,
        publish: Publish | None = None,
    ) -> tuple[Program, State]:  # fmt: skip
        try:
            self.signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        program = Program(self.name, as_backend(backend), publish=publish, awaits=self.is_async)
        return program, State.of(program, {**self.sampling, **(sampling or {})})

    async def _through(self, program: Program, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """Run to the end, from any event loop."""
        try:
            if self.is_async:
                state.returned = await self.body(state, *args, **kwargs)
            else:
                body = functools.partial(self.body, state, *args, **kwargs)
                state.returned = await _in_thread(functools.partial(program.call, body), self.name)
            await asyncio.wrap_future(program.end())
        except BaseException as error:
            hand_over(error, state)
            await asyncio.shield(asyncio.wrap_future(program.abort(error)))
            raise
        return state


def _warn_of_loop(blocking: str, instead: str) -> None:
    """Warn the caller's caller if it runs in an event loop, all of whose tasks a blocking call stops."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # no loop runs in this thread
        return
    text = f"{blocking} stops the event loop in which it is called until the program ends; write {instead}"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


async def _in_thread(body: Callable[[], Any], name: str) -> Any:
    """Run a program's `def` in a daemon thread."""
    done: Future[Any] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(body)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run, name=f"radixrt-{name}", daemon=True).start()
    return await asyncio.wrap_future(done)


@overload
def function(body: Callable[..., Any], /) -> Function: ...
@overload
def function(**sampling: Any) -> Callable[[Callable[..., Any]], Function]: ...
def function(body: Callable[..., Any] | None = None, /, **sampling: Any) -> Any:
    """Make a program of a function whose first argument is the state.

    `@rt.function`, or `@rt.function(temperature=0)` with sampling parameters for gens that do not set their own.

    Raises:
        RequestError: a sampling parameter is unknown or out of bounds.
        ProgramError: the function cannot be a program.
    """
    from radixrt.tasks.generate import as_sampling_params

    as_sampling_params(sampling)
    if body is not None:
        return Function(body, sampling)
    return lambda body: Function(body, sampling)
