"""Section of a step with the values that its rows read."""

from __future__ import annotations

import msgspec

NAME = "reads"


class ReadSection(msgspec.Struct, frozen=True, array_like=True):
    """Values that a step reads for its rows, in row order; `ReadValues` answers it.

    Attributes:
        index: int32[q], ascending indices of the step's new tokens after which a token is scored.
        targets: int32[q], token to score at each index.
        counts: int32[r * 2], (number of targets, alternatives of each) of every row that scores tokens.
        spans: int32[m * 2], (first, count) of each sum of hidden states, over the step's new tokens
            [first, first + count).
    """

    index: bytes = b""
    targets: bytes = b""
    counts: bytes = b""
    spans: bytes = b""


def encode(section: ReadSection) -> bytes:
    """Return the section as the bytes that a step carries."""
    return msgspec.msgpack.encode(section)


def decode(data: bytes) -> ReadSection:
    """Return the section that a step carries."""
    return msgspec.msgpack.decode(data, type=ReadSection)
