"""Runs the cases of a client's script, in the client's own environment; so it imports only the standard library.

A case is a function that raises if the client does not do what it should. Its docstring is not read; its name is what
`make clients` prints and what the recorded requests are filed under.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import struct
import traceback
import urllib.request
import zlib
from collections.abc import Callable
from typing import Any

URL = os.environ.get("RADIXRT_URL", "http://127.0.0.1:30000")
MODEL = os.environ.get("RADIXRT_MODEL", "smollm2-135m-instruct")
V1 = f"{URL}/v1"

_cases: list[Callable[[], Any]] = []


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a case, which may be a coroutine function."""
    _cases.append(function)
    return function


def picture(seed: int = 0, width: int = 64, height: int = 48) -> str:
    """Return a PNG file of an RGB gradient in base64; each seed has other pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (
        b"\0" + bytes((4 * (x + y) + 40 * seed * c) % 256 for x in range(width) for c in range(3))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"".join(rows), 9)), chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def raises(kind: type[BaseException], call: Callable[[], Any], *said: str) -> Any:
    """Return the error of this kind that a call ends with; its text must contain what is `said`."""
    try:
        call()
    except kind as error:
        for text in said:
            expect(error, text)
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def expect(error: BaseException, *texts: str) -> None:
    """Check that an error says one of these texts."""
    if not any(text in str(error) for text in texts):
        raise AssertionError(f"another error: {error}") from error


def main() -> None:
    """Run the cases one after another, or those named in RADIXRT_CASES; print a line of JSON for each."""
    wanted = os.environ.get("RADIXRT_CASES", "").split()
    for function in _cases:
        name = function.__name__
        if wanted and name not in wanted:
            continue
        urllib.request.urlopen(f"{URL}/record/{name}").read()
        error = None
        try:
            made = function()
            if inspect.isawaitable(made):
                asyncio.run(_wait(made))
        except Exception as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps({"case": name, "error": error}), flush=True)


async def _wait(made: Any) -> None:
    await made
