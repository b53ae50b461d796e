"""`PromptQueue`: encodes the prompts of requests, beside the thread that detokenizes outputs.

Encoding a long prompt takes tens of milliseconds, during which the library releases the GIL; rendering a chat template
holds the GIL, which Python hands over every few milliseconds. So the outputs of running requests never wait for the
prompts of others, and neither do requests that need no encoding.

Clients take turns (`Turns`), and the rows of a request are turns of their own, so that a client waits for at most one
text of each other client. The prompts of one client are encoded in order of arrival. While a request waits for its
pictures, the prompts of other clients are encoded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixrt.task_thread import TaskThread
from radixrt.tokenizer.turns import Turns

Start = Callable[[], None]
"""Remaining work of a request once its prompt is encoded, for the thread that detokenizes: registers the request and
sends it to the scheduler."""
Slices = Generator[Future[Any] | None, None, Start]
"""Work that yields where another client may have its turn, and returns the remaining work. If it yields a future, it
continues once the future is done."""
Prepare = Callable[[], Slices]

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
        self._thread: TaskThread[None, _Result | None] | None = None
        if threaded:
            self._thread = TaskThread("radixrt-prompts", clock)
        self._turns: Turns[tuple[_Key, Slices]] = Turns()
        self._done: list[_Result] = []
        self._tickets: dict[str, int] = {}  # of the requests that are in the queue, by rid
        self._actions: Counter[str] = Counter()  # actions that are in the queue, by program
        self._programs: dict[str, _Program] = {}  # with requests or actions in the queue
        self._last_ticket = 0

    def __contains__(self, rid: str) -> bool:
        return rid in self._tickets

    def submit(
        self, rid: str, prepare: Prepare, *, encodes: bool = True, program: str = EVERYTHING, client: str = ""
    ) -> None:
        """Queue a request. `take` gives what `prepare` returns or raises, unless the request is cancelled before.

        Args:
            encodes: False if `prepare` takes no time worth mentioning; the request then overtakes all others, but no
                action that concerns it.
            program: the program that sends the request; default: none.
            client: whose turn it takes.
        """
        self._last_ticket += 1
        ticket = self._tickets[rid] = self._last_ticket

        def slices() -> Slices:
            work = prepare()
            while self._tickets.get(rid) == ticket:
                try:
                    waits_for = next(work)
                except StopIteration as end:
                    result: Start = end.value
                    return result
                yield waits_for
            return _nothing

        waits = encodes or self._actions[EVERYTHING] or self._actions[program]
        self._run(_Key(rid, ticket, program), slices(), client, waits=bool(waits))

    def submit_action(self, action: Start, program: str = EVERYTHING) -> None:
        """Queue an action that must not overtake the requests submitted before it.

        Args:
            program: only the requests of this program count, before the action and after it; default: all requests.
        """
        self._actions[program] += 1

        def slices() -> Slices:
            yield from ()
            return action

        self._run(_Key("", 0, program), slices(), "", waits=True)

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
            for _, answer in self._thread.take():
                if isinstance(answer, Exception):
                    raise answer
                if answer is not None:
                    self._done.append(answer)
        found: list[tuple[str, Start | Exception]] = []
        for (rid, ticket, program), result in self._done:
            self._leave(program)
            if not ticket:
                self._actions -= Counter([program])
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

    def _run(self, key: _Key, slices: Slices, client: str, *, waits: bool) -> None:
        """Run a task in the thread, or now if it does not wait or there is no thread."""
        thread = self._thread if waits else None
        client = self._enter(key.program, client)
        if thread is None:
            while not isinstance(done := _slice(key, slices), tuple):
                if done is not None:
                    wait([done])
            self._done.append(done)
            return
        self._turns.add(client, (key, slices), alone=not key.ticket and key.program == EVERYTHING)
        thread.submit(None, self._take_turn)

    def _take_turn(self) -> _Result | None:
        """Run the next slice of the task whose turn it is; return the result if that ends the task."""
        assert self._thread is not None
        self._thread.expect(TASK_S)
        taken = self._turns.take()
        if taken is None:
            return None
        client, task = taken
        done = _slice(*task)
        if isinstance(done, tuple):
            return done
        self._turns.put_back(client, task, park=done is not None)
        if done is None:
            self._thread.submit(None, self._take_turn)
        else:
            done.add_done_callback(lambda _: self._resume(client))
        return None

    def _resume(self, client: str) -> None:
        """Continue a client's first task, which has waited for a future. Called in any thread."""
        assert self._thread is not None
        for _ in range(self._turns.resume(client)):
            self._thread.submit(None, self._take_turn)

    def _enter(self, program: str, client: str) -> str:
        """Count a task of a program; return whose turn the task takes. All tasks of a program that are in the queue at
        a time take the turns of one client, so that they keep their order."""
        if program == EVERYTHING:
            return client
        known = self._programs.setdefault(program, _Program(client))
        known.tasks += 1
        return known.client

    def _leave(self, program: str) -> None:
        known = self._programs.get(program)
        if known is not None:
            known.tasks -= 1
            if not known.tasks:
                del self._programs[program]


class _Key(NamedTuple):
    """Request, or an action if `ticket` is 0."""

    rid: str
    ticket: int
    program: str


_Result = tuple[_Key, Start | Exception]


@dataclass
class _Program:
    client: str
    tasks: int = 0


def _slice(key: _Key, slices: Slices) -> _Result | Future[Any] | None:
    """Run a task until it yields; return its result, or what it yields if there is more to do."""
    try:
        return next(slices)
    except StopIteration as end:
        return key, end.value
    except Exception as error:
        return key, error


def _nothing() -> None: ...
