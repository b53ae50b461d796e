"""The HTTP client against servers that say exactly what a test wants: bytes on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from radixrt.errors import ConfigError, EngineError
from radixrt.lang.backends.http import HttpClient

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, **options: object) -> AsyncIterator[HttpClient]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}/base/", **options)
        yield client
        await client.aclose()


def answering(*pieces: bytes, close: bool = True, heads: list[bytes] | None = None) -> Handler:
    """Each request gets these bytes, in separate packets; `heads` collects what was asked."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            if heads is not None:
                heads.append(head)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)
            if close:
                break
        writer.close()

    return handle


async def get(client: HttpClient) -> tuple[int, bytes]:
    async with client.request("GET", "/path") as response:
        return response.status, await response.read()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",),
        (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 5\r\n\r\nhe", b"llo"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r",
            b"\n3;x=y\r\nl",
            b"lo\r\n0\r\nA: b\r\n\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",),
        (b"HTTP/1.0 200 OK\nContent-Length: 5\n\nhello",),
    ],
)
async def test_bodies(pieces: tuple[bytes, ...]) -> None:
    heads: list[bytes] = []
    async with serving(answering(*pieces, heads=heads), headers={"X-A": "b"}) as client:
        assert await get(client) == (200, b"hello")
    assert heads[0].startswith(b"GET /base/path HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"X-A: b\r\n" in heads[0]


async def test_no_body() -> None:
    async with serving(answering(b"HTTP/1.1 204 No Content\r\n\r\n")) as client:
        assert await get(client) == (204, b"")


async def test_a_connection_is_used_again() -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", close=False)(reader, writer)

    async with serving(handle) as client:
        for _ in range(3):
            assert await get(client) == (200, b"x")
        assert connections == 1
        async with client.request("GET", "/") as response:
            assert response.status == 200  # left unread, so it cannot be used again
        await get(client)
        assert connections == 2


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"  # it does not say that it closes
    async with serving(answering(answer)) as client:
        assert await get(client) == (200, b"x")
        await asyncio.sleep(0.05)
        assert await get(client) == (200, b"x")


async def test_never_more_connections_than_allowed() -> None:
    open_now = most = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.02)
        await answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(reader, writer)
        open_now -= 1

    async with serving(handle, max_connections=3) as client:
        answers = await asyncio.gather(*(get(client) for _ in range(12)))
    assert answers == [(200, b"")] * 12
    assert most == 3


async def test_events() -> None:
    body = b'data: {"a":\xc3\xa9}\n\n: note\n\ndata:[DONE]\r\n\r\ndata: end'
    pieces = [b"HTTP/1.1 200 OK\r\n\r\n", *(body[i : i + 3] for i in range(0, len(body), 3))]
    async with serving(answering(*pieces)) as client, client.request("GET", "/") as response:
        events = [data async for data in response.events()]
    assert events == [b'{"a":\xc3\xa9}', b"[DONE]", b"end"]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"SSH-2.0-OpenSSH\r\n",), "not HTTP"),
        ((b"",), "closed without an answer"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",), "in the middle of an answer"),
        ((b"HTTP/1.1 200 OK\r\nContent-Le",), "in the middle of an answer"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",), "has no size"),
        ((b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 2 + b"x" * 70_000,), "broke"),
        (
            (b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(300)) + b"\r\n",),
            "more than 256 headers",
        ),
    ],
)
async def test_broken_answers(pieces: tuple[bytes, ...], words: str) -> None:
    async with serving(answering(*pieces)) as client:
        with pytest.raises(EngineError, match=words):
            await get(client)


async def test_nobody_listens() -> None:
    async with serving(answering(b"")) as client:
        pass
    with pytest.raises(EngineError, match=r"cannot connect to 127.0.0.1:\d+: .*is the server running"):
        await get(client)


def test_one_client_in_several_event_loops() -> None:
    async def use() -> HttpClient:
        async with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", close=False)) as client:
            await get(client)
            return client

    client = asyncio.run(use())

    async def again() -> None:
        with pytest.raises(
            EngineError, match="cannot connect"
        ):  # the server went with its loop; no kept connection did
            await get(client)

    asyncio.run(again())


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://h", "http://", "http://h:99999", "http://h/?q=1"])
def test_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        HttpClient(url)


def test_headers() -> None:
    with pytest.raises(ConfigError, match="line break"):
        HttpClient("http://h", headers={"Authorization": "Bearer a\r\nX: y"})
