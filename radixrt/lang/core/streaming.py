"""Events of a running program, and the channel that passes them to a reader in any thread or event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from radixrt.lang.core.answer_type import NOTHING, AnswerType

T = TypeVar("T")


@dataclass(frozen=True)
class Streamed:
    """Content of an event: the new text and the whole text so far or, at the end, the values."""

    text: str
    so_far: str
    values: Sequence[Any] | None = None

    @classmethod
    def done(cls, values: Sequence[Any]) -> Streamed:
        return cls("", "", values)


@dataclass(frozen=True)
class StreamEvent:
    """New text of one gen, or its end.

    Attributes:
        name: name of the value; "" for a gen without one.
        text: the new text.
        so_far: the whole text up to now.
        branch, key: id of the branch, and its key in `fork`.
        call: id of the call in the run's log.
        index: index of the sample among n.
        done: the last event of the call (one for all n samples); `value` is the value, or the list of n values.
    """

    name: str
    text: str
    so_far: str
    branch: str
    key: str
    call: int
    index: int = 0
    done: bool = False
    value: Any = None
    type: AnswerType | None = None

    @property
    def partial(self) -> Any:
        """The value so far: plain JSON values where the type is written in JSON; None while nothing is certain."""
        if self.done or self.type is None:
            return self.value
        value = self.type.partial(self.so_far)
        return None if value is NOTHING else value


class Closed(Exception):
    """The channel was closed."""


class Channel(Generic[T]):
    """A queue from any thread to one reader, which may wait in a thread or in an event loop."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the channel; the reader gets the error after the last item."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
                self._wake()

    def get(self) -> T:
        """Wait for the next item.

        Raises:
            Closed: there are no more items. If the channel was closed with an error, that is raised instead.
        """
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            return self._take()

    async def aget(self) -> T:
        """`get` for an event loop."""
        while True:
            with self._changed:
                if self._items or self._closed:
                    return self._take()
                waiter = (asyncio.get_running_loop(), asyncio.Event())
                self._waiters.append(waiter)
            await waiter[1].wait()

    def _take(self) -> T:
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            raise self._error
        raise Closed

    def _wake(self) -> None:
        self._changed.notify_all()
        for loop, event in self._waiters:
            with contextlib.suppress(RuntimeError):  # that loop was closed, and its reader with it
                loop.call_soon_threadsafe(event.set)
        self._waiters.clear()
