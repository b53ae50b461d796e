"""Responses to generating requests: cancelled when the client disconnects, sent whole or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.errors import RequestError
from radixrt.messages.client import RequestOutput
from radixrt.server.answers.base import data_event
from radixrt.server.answers.errors import ErrorBody, error_detail
from radixrt.server.http.errors import ClientGone, as_request_error, json_response
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service

T = TypeVar("T")

_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result; cancel it, and wait for its end, if the client disconnects first.

    `receive` must be past the request's body, so that it can only report the disconnect.

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
    """A response sent by `work` while the client stays connected. Errors before the first send become HTTP errors."""

    def __init__(self, work: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def run() -> None:
            await self._work(scope, receive, send)

        with suppress(ClientGone):
            await until_disconnect(receive, run())


class Encoder(Protocol):
    """Encodes the outputs of one request group for the client."""

    def body(self, outputs: list[RequestOutput]) -> Any:
        """Build the body of an answer that is sent whole; `outputs` are whole, in order."""

    def event(self, index: int, output: RequestOutput) -> bytes:
        """Encode the next output of a completion as framed events; empty if all of it is held back."""

    def last_event(self) -> bytes:
        """Encode the end of the stream."""


def openai_error_event(error: RequestError) -> bytes:
    """Encode an error within a stream as OpenAI's clients expect it."""
    return data_event(ErrorBody(error_detail(error)))


def generated(
    service: Service,
    group: RequestGroup,
    encoder: Encoder,
    *,
    stream: bool,
    error_event: Callable[[RequestError], bytes] = openai_error_event,
) -> Generated:
    """The response to a generating request, sent whole or as a stream of events.

    Args:
        error_event: encodes the error that ends a stream.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if stream:
            await send_events(send, _events(service, group, encoder), error_event)
        else:
            await json_response(encoder.body(await service.groups.collect(group)))(scope, receive, send)

    return Generated(answer)


def answered(work: Callable[[], Awaitable[Any]]) -> Generated:
    """The response whose body `work` returns, which the client's disconnect cancels."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await json_response(await work())(scope, receive, send)

    return Generated(answer)


async def _events(service: Service, group: RequestGroup, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    async with aclosing(service.groups.generate(group)) as outputs:
        async for index, output in outputs:
            event = encoder.event(index, output)
            if event:
                yield event
    yield encoder.last_event()


async def send_events(
    send: Send,
    events: AsyncGenerator[bytes, None],
    error_event: Callable[[RequestError], bytes],
    headers: Sequence[tuple[bytes, bytes]] = _EVENT_HEADERS,
) -> None:
    """Send events, each already framed, one write each; by default server-sent events.

    The response starts with the first event, so an error before it is still an HTTP error. A later one is sent as an
    event, encoded by `error_event`, and ends the stream.
    """
    async with aclosing(events):
        event = await anext(events)
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await send({"type": "http.response.body", "body": event, "more_body": True})
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            event = error_event(as_request_error(error))
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
