"""Requests as the tokenizer process sends them, for tests of what is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixrt.messages.parts import LogprobColumns, Pooling, ReadValues
from radixrt.messages.request import Envelope, Request, Row, pooled_row
from radixrt.messages.wire import pack_f32, pack_i32


def score_request(rid: str, prefixes: Sequence[bytes], rows: Sequence[Row], **envelope: Any) -> Request:
    """A request that scores rows, each with its prefix."""
    return Request(Envelope(rid, **envelope), list(rows), list(prefixes))


def embed_request(rid: str, prompts: Sequence[bytes], pooling: Pooling, **envelope: Any) -> Request:
    """A request that pools prompts."""
    return Request(Envelope(rid, **envelope), [pooled_row(ids, pooling) for ids in prompts])


def scores(values: Sequence[float]) -> ReadValues:
    """Answer to a request that scores rows."""
    return ReadValues([LogprobColumns(pack_f32(values), b"", b"", 0)])


def hidden(values: Sequence[float]) -> ReadValues:
    """Answer to a request that pools prompts."""
    return ReadValues(hidden=pack_f32(values))


def prompt_of(request: Request) -> bytes:
    """int32 column of the first row's tokens."""
    return pack_i32(request.tokens(0))
