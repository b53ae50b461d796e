"""`LargeWork`: a thread for work that grows with a request's body or with what is stored, beside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SMALL_BYTES = 64 * 1024
"""Work on this much takes about a millisecond, and is done in the event loop."""


class LargeWork:
    """Does the work of one request at a time, so that only one large body is decoded in memory.

    The interpreter's lock goes back to the event loop every few milliseconds, except during single calls of compiled
    code, such as decoding a body, which takes less than a tenth of a second for the largest. The thread starts with the
    first large request.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-work")

    async def run(self, num_bytes: int, work: Callable[[], T]) -> T:
        """Do the work in the caller's context: at once if it is about few bytes, else in the thread.

        Raises:
            Exception: as `work` raises it.
        """
        if num_bytes <= SMALL_BYTES:
            return work()
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, work)

    def close(self) -> None:
        """Drop the work that has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)
