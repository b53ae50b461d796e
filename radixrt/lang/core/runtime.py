"""`Runtime`: the background thread whose event loop runs every call of every program of this process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from radixrt.lang.errors import ProgramError

T = TypeVar("T")


class Runtime:
    """See the module's docstring. `runtime()` returns the only instance."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="radixrt-programs", daemon=True)
        self._pending: deque[Callable[[], None]] = deque()
        self._woken = False
        self._thread.start()

    @property
    def here(self) -> bool:
        """True if the caller is in the loop's own thread, where waiting would block every program."""
        return threading.get_ident() == self._thread.ident

    def call(self, action: Callable[[], None]) -> None:
        """Run an action in the loop, in the order of the calls. Consecutive calls wake the loop once."""
        self._pending.append(action)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                self.loop.call_soon_threadsafe(self._drain)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop, after all earlier actions; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait(self, future: Future[T], instead: str) -> T:
        """Block until a future is done.

        Args:
            instead: what to write where blocking is not possible.

        Raises:
            ProgramError: called on the loop.
        """
        if self.here and not future.done():
            raise ProgramError(f"this would wait on the event loop that does the work; write {instead}")
        return future.result()

    def close(self) -> None:
        """Cancel all tasks and end the thread."""
        if self.loop.is_running():
            with contextlib.suppress(Exception):
                self.submit(_cancel_all()).result(timeout=2)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=2)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _drain(self) -> None:
        self._woken = False  # before the first action, so that later additions wake the loop again
        while self._pending:
            self._pending.popleft()()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_lock = threading.Lock()
_current: list[Runtime] = []


def runtime() -> Runtime:
    """The runtime of this process, started at first use. A forked process gets its own."""
    with _lock:
        if not _current or _current[0].pid != os.getpid():
            _current[:] = [Runtime()]
        return _current[0]


@atexit.register
def _close() -> None:
    if _current and _current[0].pid == os.getpid():
        _current[0].close()
