"""Requests to an engine over HTTP: POST /generate with a JSON body `EngineCall`, asked for as `CONTENT_TYPE`.

The answer is a sequence of frames, one for each RequestOutput: the length as a little-endian uint32, then the output in
msgpack, as it is sent between the engine's own processes. GET /v1/models, asked for as `CONTENT_TYPE`, answers with the
EngineReady in msgpack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from radixrt.messages.client import ClientRequest, RequestOutput

CONTENT_TYPE = "application/msgpack"

_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(RequestOutput)


class EngineCall(msgspec.Struct, kw_only=True):
    """Body of the HTTP request.

    Attributes:
        model: name of the model that the server must serve; None for any.
        request: the request, as a client of the engine sends it.
    """

    model: str | None = None
    request: ClientRequest


def encode_frame(output: RequestOutput) -> bytes:
    """Encode an output as one frame."""
    data = _encode(output)
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Reads frames from the bytes of an answer, however these are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def read(self, data: bytes) -> Iterator[RequestOutput]:
        """Take more bytes, and yield the outputs that are complete; raises msgspec.DecodeError for other content."""
        self._rest += data
        start = 0
        while len(self._rest) >= start + _LENGTH.size:
            begin = start + _LENGTH.size
            end = begin + _LENGTH.unpack_from(self._rest, start)[0]
            if len(self._rest) < end:
                break
            yield _decoder.decode(self._rest[begin:end])
            start = end
        del self._rest[:start]
