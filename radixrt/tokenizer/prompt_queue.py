"""`PromptQueue`: encodes the prompts of requests in order of arrival, beside the thread that detokenizes outputs.

Encoding a long prompt takes tens of milliseconds, during which the library releases the GIL; rendering a chat template
holds the GIL, which Python hands over every few milliseconds. So the outputs of running requests never wait for the
prompts of others, and neither do requests that need no encoding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from radixrt.task_thread import TaskThread

Start = Callable[[], None]
"""Remaining work of a request once its prompt is encoded, for the thread that detokenizes: registers the request and
sends it to the scheduler."""
Prepare = Callable[[], Start]

EVERYTHING = ""
"""In place of a program: an action that no request overtakes."""

ENCODED_CHARS_PER_S = 100_000.0
"""Characters that every tokenizer encodes in a second, however loaded the machine is.

The slowest of the BPE and Unigram tokenizers that were measured, with the texts that suit them least (one character
8 million times, random letters), encodes 580,000 in a second of processor time, and 170,000 in a second of a machine
with six programs for each core.
"""
TASK_S = 1.0
"""Time for everything else about a prompt: JSON, rendering, checks. A rendering that takes longer ends itself within
`chat_template.MAX_RENDER_S`, which the process's own `hang_timeout_s` allows for."""


class PromptQueue:
    """See the module's docstring. The detokenizing thread calls all methods but `announce`.

    Args:
        threaded: encode in a thread; otherwise in `submit`.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, *, threaded: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._thread: TaskThread[tuple[str, int], Start] | None = None
        if threaded:
            self._thread = TaskThread("radixrt-prompts", clock)
        self._done: list[tuple[tuple[str, int], Start | Exception]] = []
        self._tickets: dict[str, int] = {}  # of the requests that are in the queue, by rid
        self._actions: Counter[str] = Counter()  # actions that are in the queue, by program
        self._last_ticket = 0

    def __contains__(self, rid: str) -> bool:
        return rid in self._tickets

    def submit(self, rid: str, prepare: Prepare, *, encodes: bool = True, program: str = EVERYTHING) -> None:
        """Queue a request. `take` gives what `prepare` returns or raises, unless the request is cancelled before.

        Args:
            encodes: False if `prepare` takes no time worth mentioning; the request then overtakes all others, but no
                action that concerns it.
            program: the program that sends the request; default: none.
        """
        self._last_ticket += 1
        ticket = self._tickets[rid] = self._last_ticket

        def task() -> Start:
            return prepare() if self._tickets.get(rid) == ticket else _nothing

        waits = encodes or self._actions[EVERYTHING] or self._actions[program]
        self._run((rid, ticket), task, self._thread if waits else None)

    def submit_action(self, action: Start, program: str = EVERYTHING) -> None:
        """Queue an action that must not overtake the requests submitted before it.

        Args:
            program: later requests of this program do not overtake the action; default: no request does.
        """
        self._actions[program] += 1
        self._run((program, 0), lambda: action, self._thread)

    def announce(self, chars: int) -> None:
        """Announce, in `prepare`, that the next text to be encoded has so many characters."""
        if self._thread is not None:
            self._thread.expect(TASK_S + chars / ENCODED_CHARS_PER_S)

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
                self._actions -= Counter([rid])
                found.append(("", result))
            elif self._tickets.get(rid) == ticket:
                del self._tickets[rid]
                found.append((rid, result))
        self._done.clear()
        return found

    def fileno(self) -> int | None:
        """Descriptor that is readable when `take` has results; None without a thread."""
        return None if self._thread is None else self._thread.fileno()

    def is_overdue(self) -> bool:
        """Return whether encoding a text takes longer than any text of its length does."""
        return self._thread is not None and self._thread.is_overdue()

    def close(self) -> None:
        """End the thread, after the prompt that it encodes."""
        self._tickets.clear()
        if self._thread is not None:
            self._thread.close()

    def _run(self, key: tuple[str, int], task: Prepare, thread: TaskThread[tuple[str, int], Start] | None) -> None:
        """Run a task in the thread; None: now."""
        if thread is not None:

            def announced() -> Start:
                thread.expect(TASK_S)
                return task()

            thread.submit(key, announced)
            return
        try:
            self._done.append((key, task()))
        except Exception as error:
            self._done.append((key, error))


def _nothing() -> None: ...
