"""`Answer`: base of the types of answers, and the encoding of answers as JSON and as server-sent events."""

from __future__ import annotations

from functools import cache

import msgspec

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
"""Last event of a stream whose events have no names."""


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all answers. An answer has no members but its fields, and has them in their order.

    A member that is UNSET by default is missing from some answers. All other members are always there; a default of
    such a member is its usual value.
    """


def data_event(data: Answer) -> bytes:
    """Encode an event without a name."""
    return b"data: %b\n\n" % encode(data)


def around_choices(chunk: Answer) -> tuple[bytes, bytes]:
    """Return the event of a chunk without choices, as the parts before and after them."""
    # Quotes within strings are escaped in JSON, so that this text stands nowhere else.
    before, _, after = data_event(chunk).partition(b'"choices":[]')
    return before + b'"choices":[', b"]" + after


def named_event(data: Answer) -> bytes:
    """Encode an event whose name is its `type`, which is the tag of its class."""
    return b"%b%b\n\n" % (_head(type(data)), encode(data))


@cache
def _head(kind: type[Answer]) -> bytes:
    return f"event: {kind.__struct_config__.tag}\ndata: ".encode()
