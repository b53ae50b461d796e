"""Receiving a request: its body as a typed value."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import Request

from radixrt.chat.decoding import DECODING_ERRORS, decoding_error
from radixrt.errors import RequestError
from radixrt.server.http.errors import ClientGone

T = TypeVar("T")

BODY_TIMEOUT_S = 60.0
DISCARD_FACTOR = 4
"""A body that is too large is read on and thrown away up to this many times the limit, so that the client, which is
still sending, gets to read the answer instead of a broken pipe."""


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        RequestError: 413 over `limit` bytes, 408 if it does not arrive in time.
        ClientGone: the client left while sending.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_body(request, limit)
    except TimeoutError:
        raise RequestError("the request's body did not arrive in time", code="body_timeout", status=408) from None


async def _read_body(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > DISCARD_FACTOR * limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > DISCARD_FACTOR * limit:
            raise _too_large(limit)
        else:
            parts.clear()
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the request's body is larger than {limit} bytes (max_body_bytes)", code="body_too_large", status=413
    )


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode and type-check a body. Unknown fields are ignored.

    Raises:
        RequestError: 400; `param` is the path of the offending field.
    """
    try:
        return decoder.decode(body)
    except DECODING_ERRORS as error:
        raise decoding_error(body, error) from None
