"""`Turns`: a queue in which clients take turns, and the tasks of each client have their order."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """See the module's docstring. One thread adds tasks, another one takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Within a section clients take turns; a section begins when all earlier ones are empty.
        self._sections: deque[OrderedDict[str, deque[T]]] = deque([OrderedDict()])
        self._last = ""  # client that had its turn last

    def add(self, client: str, task: T, *, alone: bool = False) -> None:
        """Add a task behind all tasks of its client.

        Args:
            alone: the task comes after all earlier tasks and before all later ones, of all clients.
        """
        with self._lock:
            if alone:
                self._sections += [OrderedDict(), OrderedDict()]
            section = self._sections[-2 if alone else -1]
            section.setdefault(client, deque()).append(task)

    def take(self) -> tuple[str, T]:
        """Remove the next task, and return its client and the task.

        Raises:
            IndexError: there is no task.
        """
        with self._lock:
            while not self._sections[0] and len(self._sections) > 1:
                self._sections.popleft()
            section = self._sections[0]
            if not section:
                raise IndexError("no task")
            # Clients whose tasks came while the last task ran are before the client of that task.
            if self._last in section:
                section.move_to_end(self._last)
            self._last, tasks = next(iter(section.items()))
            task = tasks.popleft()
            if not tasks:
                del section[self._last]
            return self._last, task

    def put_back(self, client: str, task: T) -> None:
        """Put the task that was just taken before all tasks of its client."""
        with self._lock:
            self._sections[0].setdefault(client, deque()).appendleft(task)
