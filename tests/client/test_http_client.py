"""The client of a served engine: frames however they are cut, and answers that are not those of a radixrt server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from radixrt.client.http_client import HttpEngineClient
from radixrt.errors import EngineError
from radixrt.messages.client import RequestOutput
from radixrt.messages.http import FrameReader, encode_frame
from radixrt.messages.parts import Finish
from radixrt.messages.wire import pack_i32
from tests.client_requests import generating

OUTPUTS = [
    RequestOutput("r", "aé\u2028", pack_i32([1, 2])),
    RequestOutput("r", "b"),
    RequestOutput("r", "c", finish=Finish("length")),
]
FRAMES = b"".join(map(encode_frame, OUTPUTS))


@pytest.mark.parametrize("size", [1, 3, 7, len(FRAMES)])
def test_frames_are_read_however_they_are_cut(size: int) -> None:
    reader = FrameReader()
    pieces = [FRAMES[i : i + size] for i in range(0, len(FRAMES), size)]
    assert [output for piece in pieces for output in reader.read(piece)] == OUTPUTS


@asynccontextmanager
async def answering(body: bytes, kind: bytes = b"application/msgpack") -> AsyncIterator[HttpEngineClient]:
    """A client of a server that answers every request with this body."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = HttpEngineClient(f"http://127.0.0.1:{port}/v1", api_key=None, timeout_s=60.0, model=None)
        yield client
        await client.aclose()


async def outputs_of(client: HttpEngineClient) -> list[RequestOutput]:
    return [output async for output in client.astream(generating("r", prompt="a"))]


async def test_a_whole_answer() -> None:
    async with answering(FRAMES) as client:
        assert await outputs_of(client) == OUTPUTS


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (encode_frame(OUTPUTS[0]), b"application/msgpack", "ended its answer before it was finished"),
        (FRAMES[:-1], b"application/msgpack", "ended its answer before it was finished"),
        (b"\x01\x00\x00\x00\xc1", b"application/msgpack", "cannot be read.*is it a radixrt server"),
        (b"{}", b"application/json; charset=utf-8", "is application/json, not application/msgpack"),
    ],
)
async def test_an_answer_that_is_incomplete_or_another_servers(body: bytes, kind: bytes, words: str) -> None:
    async with answering(body, kind) as client:
        with pytest.raises(EngineError, match=words):
            await outputs_of(client)
