"""`ProgramStream`: a running program whose texts are read as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, Future

from radixrt.lang.core.program import Program
from radixrt.lang.core.state import State
from radixrt.lang.core.streaming import Channel, Closed, StreamEvent
from radixrt.lang.errors import ProgramError


class ProgramStream:
    """Iterate with `for` or `async for`; each item is a `StreamEvent`. An error of the program is raised at its end.

    Leaving it early takes `close()` (or a `with` block), which cancels the program. A reader may come late: nothing is
    lost, and the program does not wait for him.

    Attributes:
        state: the program's state, from the beginning; it is complete when the iteration has ended.
    """

    def __init__(self) -> None:
        self.channel: Channel[StreamEvent] = Channel()

    def begin(self, program: Program, state: State, future: Future[State]) -> None:
        self.state = state
        self._program = program
        self._future = future
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[State]) -> None:
        try:
            future.result()
        except CancelledError:
            self.channel.close(ProgramError(f"{self._program.log.name}: the stream was closed"))
        except BaseException as error:
            self.channel.close(error)
        else:
            self.channel.close()

    def text(self, name: str) -> Iterator[str]:
        """Only the new text of the gens of one name."""
        for event in self:
            if event.name == name and event.text:
                yield event.text

    def result(self) -> State:
        """Wait for the end, and the state; raises what the program raised."""
        return self._program.runtime.wait(self._future, "async for over the stream, and then its state")

    def close(self) -> None:
        """Cancel the program, if it still runs."""
        self._future.cancel()

    def __iter__(self) -> Iterator[StreamEvent]:
        while True:
            try:
                event = self.channel.get()
            except Closed:
                return
            yield event

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        while True:
            try:
                event = await self.channel.aget()
            except Closed:
                return
            yield event

    def __enter__(self) -> ProgramStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> ProgramStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.wait([asyncio.wrap_future(self._future)])
