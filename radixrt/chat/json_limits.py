"""Limits on the shape of JSON, checked before it is decoded, so that decoding and refusing cost memory in proportion.

Decoded, a JSON value of two bytes may take over two hundred bytes of memory. The limits bound what a text of any length
can become: `MAX_MEMBERS` the objects, arrays and members, which are large, and `MAX_VALUES` the values of arrays, such
as token ids, which are small.
"""

from __future__ import annotations

import numpy as np

from radixrt.errors import RequestError

MAX_DEPTH = 256
MAX_MEMBERS = 200_000
MAX_VALUES = 2_000_000

MAX_UNCHECKED_BYTES = 64 * 1024
"""A text of this length is within all limits if it has few brackets. Counting brackets costs less than checking."""

_CHUNK = 256 * 1024
_QUOTE, _COLON, _COMMA = b'":,'

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def check_json(text: bytes, max_string_bytes: int | None = None) -> None:
    """Hold a JSON text to the limits, as `check_json_limits`, which is called only where the text may exceed one."""
    if len(text) > MAX_UNCHECKED_BYTES or text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        check_json_limits(text, max_string_bytes)


def check_json_limits(text: bytes, max_string_bytes: int | None = None) -> None:
    """Hold a JSON text to the limits, in linear time and constant memory beyond two copies of the text.

    For a malformed text, the function may consider only the part before the first mistake. The decoder reports the
    mistake.

    Raises:
        RequestError: 400 with the limit.
    """
    text = text.replace(b"\\\\", b"--").replace(b'\\"', b"--")  # every other quote begins or ends a string
    depth = members = values = 0
    inside = False  # a string has begun and not ended
    run = 0  # its bytes so far
    for start in range(0, len(text), _CHUNK):
        chunk = np.frombuffer(text, np.uint8, min(_CHUNK, len(text) - start), start)
        quotes = chunk == _QUOTE
        gaps = np.diff(np.flatnonzero(quotes), prepend=-run, append=len(chunk))
        longest = gaps[0 if inside else 1 :: 2].max(initial=0)
        if max_string_bytes is not None and longest - 1 > max_string_bytes:
            raise _limit(f"holds a string of more than {max_string_bytes} bytes (half of max_body_bytes)")
        outside = chunk[(np.cumsum(quotes) + inside) & 1 == 0]
        inside ^= bool(np.count_nonzero(quotes) & 1)
        run = int(gaps[-1]) if inside else 0
        steps = _STEPS[outside]
        levels = np.cumsum(steps, dtype=np.int64) + depth
        if levels.max(initial=0) > MAX_DEPTH:
            raise _limit(f"is nested more than {MAX_DEPTH} levels deep")
        depth = int(levels[-1]) if len(levels) else depth
        members += int(np.count_nonzero(steps > 0) + np.count_nonzero(outside == _COLON))
        values += int(np.count_nonzero(outside == _COMMA))
        if members > MAX_MEMBERS:
            raise _limit(f"holds more than {MAX_MEMBERS} objects, arrays and members of objects")
        if values > MAX_VALUES:
            raise _limit(f"holds more than {MAX_VALUES} values")


def _limit(what: str) -> RequestError:
    return RequestError(f"the JSON {what}", code="json_limit_exceeded")
