"""`Turns`: a queue in which clients take turns, and the tasks of each client have their order."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """See the module's docstring. One thread adds tasks, another one takes them, and any thread resumes a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Within a section clients take turns; a section begins when all earlier ones are empty.
        self._sections: deque[OrderedDict[str, deque[T]]] = deque([OrderedDict()])
        self._last = ""  # client that had its turn last
        self._parked: set[str] = set()  # clients whose first task waits for something
        self._missed = 0  # calls of `take` that found only parked clients

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

    def take(self) -> tuple[str, T] | None:
        """Remove the next task, and return its client and the task; None if the clients of all tasks are parked.

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
            client = next((each for each in section if each not in self._parked), None)
            if client is None:
                self._missed += 1
                return None
            self._last, tasks = client, section[client]
            task = tasks.popleft()
            if not tasks:
                del section[self._last]
            return self._last, task

    def put_back(self, client: str, task: T, *, park: bool = False) -> None:
        """Put the task that was just taken before all tasks of its client.

        Args:
            park: give the client no turns until `resume`.
        """
        with self._lock:
            self._sections[0].setdefault(client, deque()).appendleft(task)
            if park:
                self._parked.add(client)

    def resume(self, client: str) -> int:
        """Give a parked client turns again; return the number of calls of `take` that are to be made for it, and for
        those that found no task."""
        with self._lock:
            self._parked.discard(client)
            calls, self._missed = 1 + self._missed, 0
            return calls
