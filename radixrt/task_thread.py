"""`TaskThread`: a thread that runs tasks in order. Another thread takes the results without blocking."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from radixrt.portable import Wake

K = TypeVar("K")
T = TypeVar("T")


class TaskThread(Generic[K, T]):
    """A thread that runs tasks in order; `take` returns their results in the thread of the caller.

    Args:
        name: of the thread.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks: queue.SimpleQueue[tuple[K, Callable[[], T]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[K, T | Exception]] = queue.SimpleQueue()
        self._clock = clock
        self._due = math.inf
        self._event = Wake()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, key: K, task: Callable[[], T]) -> None:
        """Queue a task. `take` returns the key with the task's result, or with the exception raised by the task."""
        self._tasks.put((key, task))

    def take(self) -> list[tuple[K, T | Exception]]:
        """Results that came since the last call."""
        self._event.clear()  # a result can be queued before its event is set
        results: list[tuple[K, T | Exception]] = []
        while not self._results.empty():
            results.append(self._results.get())
        return results

    def fileno(self) -> int:
        """Readable when there are results."""
        return self._event.fileno()

    def expect(self, seconds: float) -> None:
        """Announce, in a task, that its next part takes at most so long."""
        self._due = self._clock() + seconds

    def is_overdue(self) -> bool:
        """Return whether a task has taken longer than it announced."""
        return self._clock() > self._due

    def stop(self) -> None:
        """End the thread once the tasks submitted so far are done; `take` still gives their results."""
        self._tasks.put(None)
        self._thread.join()

    def close(self) -> None:
        """End the thread and close the descriptor."""
        self.stop()
        self._event.close()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            key, call = task
            result: T | Exception
            try:
                result = call()
            except Exception as error:
                result = error
            self._due = math.inf
            self._results.put((key, result))
            self._event.set()
