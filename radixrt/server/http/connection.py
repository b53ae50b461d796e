"""The HTTP side of an answer that takes a while: it ends when the client leaves, and it may be a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.errors import RequestError
from radixrt.server.http.errors import ClientGone, as_request_error, error_body

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"

_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and has ended, when the client disconnects first.

    `receive` must be past the request's body: all that it can still tell is the disconnect.

    Raises:
        ClientGone: the client disconnected first.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Generated(Response):
    """A response that `work` generates and sends. Exceptions before its first send become HTTP errors as usual."""

    def __init__(self, work: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def run() -> None:
            await self._work(scope, receive, send)

        with suppress(ClientGone):
            await until_disconnect(receive, run())


async def send_events(send: Send, events: AsyncGenerator[bytes, None]) -> None:
    """Send server-sent events, each already framed, one write each.

    The response starts with the first event, so an error before it is still an HTTP error. A later one is sent as an
    event {"error": ...} and ends the stream.
    """
    async with aclosing(events):
        event = await anext(events)
        await send({"type": "http.response.start", "status": 200, "headers": list(_EVENT_HEADERS)})
        await send({"type": "http.response.body", "body": event, "more_body": True})
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            event = error_event(as_request_error(error))
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_event(error: RequestError) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(error_body(error))
