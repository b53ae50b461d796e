"""The HTTP client against servers that send exactly the bytes of a test, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from radixrt.client.http import HttpClient
from radixrt.errors import ConfigError, EngineError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEY = b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"hey"'


@asynccontextmanager
async def serving(handler: Handler, headers: Mapping[str, str] | None = None) -> AsyncIterator[HttpClient]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, backlog=1024)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}/base/", headers=headers)
        yield client
        await client.aclose()


def answering(*pieces: bytes, close: bool = True, heads: list[bytes] | None = None) -> Handler:
    """Each request gets these bytes, in separate packets; `heads` collects what was asked."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
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


async def get(client: HttpClient) -> bytes:
    """The body that a GET is answered with."""
    async with client.stream("GET", "/x") as response:
        return await response.aread()


async def streamed(client: HttpClient) -> AsyncGenerator[bytes, None]:
    async with client.stream("POST", "/generate", b"{}") as response:
        async for data in response.aiter_raw():
            yield data


@pytest.mark.parametrize(
    "pieces",
    [
        (HEY,),
        (b"HTTP/1.1 200 OK\r\nContent-Le", b'ngth: 5\r\n\r\n"h', b'ey"'),
        (
            b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n"h\r',
            b"\n3;x=y\r\ne",
            b'y"\r\n0\r\nA: b\r\n\r\n',
        ),
        (b'HTTP/1.1 200 OK\r\n\r\n"he', b'y"'),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEY,),
        (b'HTTP/1.0 200 OK\nContent-Length: 5\n\n"hey"',),
    ],
)
async def test_bodies(pieces: tuple[bytes, ...]) -> None:
    heads: list[bytes] = []
    async with serving(answering(*pieces, heads=heads), headers={"Authorization": "Bearer b"}) as client:
        assert await get(client) == b'"hey"'
    assert heads[0].startswith(b"GET /base/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer b\r\n" in heads[0]


async def test_no_body() -> None:
    async with serving(answering(b"HTTP/1.1 204 No Content\r\n\r\n")) as client, client.stream("GET", "/x") as response:
        assert (response.status_code, await response.aread()) == (204, b"")


async def test_a_connection_is_used_again() -> None:
    connections = 0
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"a piece"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.readline():
            body_length = 0
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                body_length = int(value) if name.lower() == b"content-length" else body_length
            await reader.readexactly(body_length)
            writer.write(HEY if head.startswith(b"GET") else answer + b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.close()

    async with serving(handle) as client:
        for _ in range(3):
            assert await get(client) == b'"hey"'
        assert connections == 1
        stream = streamed(client)
        assert await anext(stream) == piece
        await stream.aclose()  # left unread, so that its connection cannot be used again
        await get(client)
        assert connections == 2


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async with serving(answering(HEY)) as client:  # the answer has no "Connection: close"
        for _ in range(20):
            assert await get(client) == b'"hey"'


async def test_any_number_of_connections() -> None:
    """The server answers no request before all have arrived."""
    number = 300
    all_here = asyncio.Barrier(number)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await all_here.wait()
        await answering(HEY)(reader, writer)

    async with serving(handle) as client:
        assert await asyncio.gather(*(get(client) for _ in range(number))) == [b'"hey"'] * number


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"SSH-2.0-OpenSSH\r\n",), "disconnected without sending a response"),
        ((b"",), "disconnected without sending a response"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",), "without sending complete message body"),
        ((b"HTTP/1.1 200 OK\r\nContent-Le",), "disconnected without sending a response"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",), "illegal chunk header"),
        ((b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 2 + b"x" * 200_000,), "exceed|too long|Too many|Receive buffer"),
        (
            (b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(30_000)) + b"\r\n",),
            "exceed|too long|Too many|Receive buffer",
        ),
    ],
)
async def test_broken_answers(pieces: tuple[bytes, ...], words: str) -> None:
    async with serving(answering(*pieces)) as client:
        with pytest.raises(EngineError, match=rf"the connection to 127.0.0.1:\d+ broke: .*({words})"):
            await get(client)


async def test_nobody_listens() -> None:
    async with serving(answering(b"")) as client:
        pass
    with pytest.raises(EngineError, match=r"cannot connect to 127.0.0.1:\d+: .*is the server running"):
        await get(client)


def test_one_client_in_several_event_loops() -> None:
    async def use() -> HttpClient:
        async with serving(answering(HEY, close=False)) as client:
            await get(client)
            return client

    client = asyncio.run(use())

    async def again() -> None:
        with pytest.raises(EngineError, match="cannot connect"):  # the server was closed with its loop
            await get(client)

    asyncio.run(again())


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://h", "http://", "http://h:99999", "http://h/?q=1"])
def test_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        HttpClient(url)


def test_headers() -> None:
    with pytest.raises(ConfigError, match="line break"):
        HttpClient("http://h", headers={"A": "a\r\nX: y"})
