"""`PromptQueue`: encodes the prompts of requests in order of arrival, beside the thread that detokenizes outputs.

Encoding a long prompt takes tens of milliseconds, during which the library releases the GIL; rendering a chat template
holds the GIL, which Python hands over every few milliseconds. So the outputs of running requests never wait for the
prompts of others.
"""

from __future__ import annotations

from collections.abc import Callable

from radixrt.task_thread import TaskThread

Start = Callable[[], None]
"""Remaining work of a request once its prompt is encoded, for the thread that detokenizes: registers the request and
sends it to the scheduler."""
Prepare = Callable[[], Start]


class PromptQueue:
    """See the module's docstring. All methods are for one thread, the one that detokenizes.

    Args:
        threaded: encode in a thread; otherwise in `submit`.
    """

    def __init__(self, *, threaded: bool) -> None:
        self._thread: TaskThread[tuple[str, int], Start] | None = TaskThread("radixrt-prompts") if threaded else None
        self._done: list[tuple[tuple[str, int], Start | Exception]] = []
        self._tickets: dict[str, int] = {}  # of the requests that are in the queue, by rid
        self._last_ticket = 0

    def __contains__(self, rid: str) -> bool:
        return rid in self._tickets

    def submit(self, rid: str, prepare: Prepare) -> None:
        """Queue a request. `take` gives what `prepare` returns or raises, unless the request is cancelled before."""
        self._last_ticket += 1
        ticket = self._tickets[rid] = self._last_ticket

        def task() -> Start:
            return prepare() if self._tickets.get(rid) == ticket else _nothing

        self._run((rid, ticket), task)

    def submit_action(self, action: Start) -> None:
        """Queue an action that must not overtake the requests submitted before it."""
        self._run(("", 0), lambda: action)

    def cancel(self, rid: str) -> bool:
        """Remove a request from the queue; False if it is not in the queue."""
        return self._tickets.pop(rid, None) is not None

    def take(self) -> list[tuple[str, Start | Exception]]:
        """Return requests whose prompts are encoded, and actions (under the rid ""), in the order of submission."""
        if self._thread is not None:
            self._done += self._thread.take()
        found: list[tuple[str, Start | Exception]] = []
        for (rid, ticket), result in self._done:
            if not ticket:
                found.append((rid, result))
            elif self._tickets.get(rid) == ticket:
                del self._tickets[rid]
                found.append((rid, result))
        self._done.clear()
        return found

    def fileno(self) -> int | None:
        """Descriptor that is readable when `take` has results; None without a thread."""
        return None if self._thread is None else self._thread.fileno()

    def busy_s(self) -> float:
        """Return for how many seconds the prompt that is being encoded has been; 0 if none is."""
        return 0.0 if self._thread is None else self._thread.busy_s()

    def close(self) -> None:
        """End the thread, after the prompt that it encodes."""
        self._tickets.clear()
        if self._thread is not None:
            self._thread.close()

    def _run(self, key: tuple[str, int], task: Prepare) -> None:
        if self._thread is not None:
            self._thread.submit(key, task)
            return
        try:
            self._done.append((key, task()))
        except Exception as error:
            self._done.append((key, error))


def _nothing() -> None: ...
