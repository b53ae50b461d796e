"""`Loader`: one thread for what the scheduler must not wait for but cannot give to another process."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Loader(Generic[T]):
    """Runs tasks in order and hands their results over where they are asked for."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[str, Callable[[], T]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[str, T | Exception]] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="radixrt-grammar-loader", daemon=True)
        self._thread.start()

    def submit(self, key: str, task: Callable[[], T]) -> None:
        """Queue a task; `take` gives its result, or the exception that it raised, under this key."""
        self._tasks.put((key, task))

    def take(self) -> list[tuple[str, T | Exception]]:
        """Results that came since the last call."""
        with contextlib.suppress(BlockingIOError):  # also when a result is there before its event: that comes later
            os.eventfd_read(self._event)
        results: list[tuple[str, T | Exception]] = []
        while not self._results.empty():
            results.append(self._results.get())
        return results

    def fileno(self) -> int:
        """Readable when there are results."""
        return self._event

    def close(self) -> None:
        """End the thread once its present task is done."""
        self._tasks.put(None)
        self._thread.join()
        os.close(self._event)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            key, call = task
            result: T | Exception
            try:
                result = call()
            except Exception as error:
                result = error
            self._results.put((key, result))
            os.eventfd_write(self._event, 1)
