"""`SharedCalls`: one request for the equal calls that a program makes at the same time.

The branches of a fork often begin with the same call. Where the answer is a function of the prompt, which it is for a
greedy call on a backend that works on tokens, one of them is sent, and the others read the same answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from radixrt.lang.backends.base import Backend, Call
from radixrt.messages.client import RequestOutput
from radixrt.tasks.prompts import pack_parts

JOIN_SHARE = 0.1
"""Share of a call's time limit within which other calls may join the call. Joined calls end together with the call, so
they keep at least the rest of their own time limits."""


class SharedCalls:
    """Open calls of a run whose outputs other calls may share. Used only in the event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._open: dict[bytes, _Sharing] = {}

    def generate(self, call: Call, number: int) -> tuple[AsyncGenerator[RequestOutput, None], int | None]:
        """Return the outputs of a call, as `Backend.generate` yields them, and the number of the call that computes the
        outputs; None if the call computes its own outputs.

        Args:
            number: number of the call in its run.
        """
        if not self._backend.tokens or self._backend.dry_run or call.sampling.temperature != 0.0:
            return self._backend.generate(call), None
        key = _key(call)
        sharing = self._open.get(key)
        if sharing is not None and (
            call.timeout_s is None or time.monotonic() - sharing.began <= JOIN_SHARE * call.timeout_s
        ):
            return sharing.read(), sharing.number
        sharing = self._open[key] = _Sharing(self._backend.generate(call), number, lambda over: self._close(key, over))
        return sharing.read(), None

    def _close(self, key: bytes, over: _Sharing) -> None:
        if self._open.get(key) is over:  # an equal call may have begun while `over` was aborted
            del self._open[key]


def _key(call: Call) -> bytes:
    """Return a key of everything that the answer depends on. A greedy answer does not depend on the seed."""
    sampling = msgspec.structs.replace(call.sampling, seed=None)
    pictures = [picture.digest for picture in call.prompt.pictures]
    return msgspec.msgpack.encode([pack_parts(call.prompt.parts), pictures, sampling, call.stream, call.timeout_s])


class _Sharing:
    """Outputs of a request, for any number of readers. The request is aborted when all readers have left early.

    Args:
        ended: called with this object once no further reader may join.

    Attributes:
        number: number of the call in its run.
        began: time at which the call was sent, in seconds of this machine's monotonic clock.
    """

    def __init__(
        self, outputs: AsyncGenerator[RequestOutput, None], number: int, ended: Callable[[_Sharing], object]
    ) -> None:
        self.number = number
        self.began = time.monotonic()
        self._ended = ended
        self._outputs: list[RequestOutput] = []
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._readers = 0
        self._is_over = False
        self._task = asyncio.ensure_future(self._receive(outputs))

    async def _receive(self, outputs: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    self._outputs.append(output)
                    self._wake()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_over = True
            self._ended(self)
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self) -> AsyncGenerator[RequestOutput, None]:
        """Yield all outputs, from the first on; raise what has ended the request."""
        self._readers += 1
        try:
            at = 0
            while True:
                changed = self._changed
                while at < len(self._outputs):
                    at += 1
                    yield self._outputs[at - 1]
                if self._is_over:
                    break
                await changed.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            if not self._readers and not self._is_over:
                self._ended(self)
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)  # until the request is closed
