"""From the bytes of a request's body to a typed request, or to a 400 that names the field at fault."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from radixrt.errors import RequestError
from radixrt.server.http.errors import ClientGone

T = TypeVar("T")

BODY_TIMEOUT_S = 60.0
DISCARD_FACTOR = 4
"""A body that is too large is read on and thrown away up to this many times the limit, so that the client, which is
still sending, gets to read the answer instead of a broken pipe."""

_PATH = re.compile(r"`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


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
    too_large = RequestError(
        f"the request's body is larger than {limit} bytes (max_body_bytes)", code="body_too_large", status=413
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > DISCARD_FACTOR * limit:
        raise too_large
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
            raise too_large
        else:
            parts.clear()
        if not message.get("more_body", False):
            break
    if size > limit:
        raise too_large
    return b"".join(parts)


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode and type-check a body. Unknown fields are ignored.

    Raises:
        RequestError: 400; `param` is the path of the offending field, e.g. "messages[2].content".
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not valid UTF-8: {error.reason}", code="invalid_utf8") from None
    except ValueError as error:  # msgspec.DecodeError is one; so is Python's limit on the digits of an integer
        raise _malformed(body, str(error)) from None


def _wrong_type(message: str) -> RequestError:
    found = _PATH.search(message)
    param = found.group(1) if found else ""
    missing = _MISSING.search(message)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return RequestError(f"{param} is required", param=param, code="missing_field")
    what = message.split(" - at ")[0].replace("`", "")
    if not param:
        return RequestError(f"the body: {what}", code="invalid_type")
    return RequestError(f"{param}: {what}", param=param, code="invalid_type")


class _NonFinite:
    def __init__(self, literal: str) -> None:
        self.literal = literal


def _malformed(body: bytes, message: str) -> RequestError:
    """Why msgspec refused the body, in more words than its own: Python's slower parser accepts NaN and Infinity, which
    JSON does not have, so it can tell which field holds them."""
    try:
        value = json.loads(body.decode(), parse_constant=_NonFinite)
    except UnicodeDecodeError as error:
        return RequestError(f"the body is not valid UTF-8: {error.reason}", code="invalid_utf8")
    except RecursionError:
        return RequestError("the body is nested too deeply", code="invalid_json")
    except ValueError as error:
        return RequestError(f"the body is not valid JSON: {error}", code="invalid_json")
    found = _find_non_finite(value)
    if found is None:
        return RequestError(f"the body is not valid JSON: {message}", code="invalid_json")
    path, literal = found
    return RequestError(f"{path}: {literal} is not a JSON number", param=path, code="invalid_json")


def _find_non_finite(value: Any) -> tuple[str, str] | None:
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, _NonFinite):
            return path, item.literal
        if isinstance(item, dict):
            stack.extend((f"{path}.{key}" if path else str(key), child) for key, child in item.items())
        elif isinstance(item, list):
            stack.extend((f"{path}[{i}]", child) for i, child in enumerate(item))
    return None
