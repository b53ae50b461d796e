"""`LoopWatch`: longest gap between two turns of an event loop, in processor time."""

from __future__ import annotations

import asyncio
import time

INTERVAL_S = 0.002


class LoopWatch:
    """Wakes up every 2 ms, and notes how much processor time was used since.

    Processor time does not grow while other processes of a busy machine run.

    Attributes:
        loop_s: most processor time that the loop's thread used between two turns: the longest callbacks.
        process_s: most processor time that all threads of the process used between two turns: also work of another
            thread that kept the interpreter's lock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clocks = (time.thread_time, time.process_time)
        self._last = [clock() for clock in self._clocks]
        self.reset()
        loop.call_later(INTERVAL_S, self._wake)

    def reset(self) -> None:
        self.loop_s = self.process_s = 0.0

    def _wake(self) -> None:
        now = [clock() for clock in self._clocks]
        loop_s, process_s = (after - before for after, before in zip(now, self._last, strict=True))
        self.loop_s = max(self.loop_s, loop_s)
        self.process_s = max(self.process_s, process_s)
        self._last = now
        self._loop.call_later(INTERVAL_S, self._wake)
