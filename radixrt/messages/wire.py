"""Wire format of all messages: msgpack arrays encoded by msgspec, with columns of numbers as little-endian bytes.

A decode step of 256 rows is a few byte strings without per-row objects. Nothing is pickled. A reader drops a frame that
does not decode (`radixrt.channel.UNDECODABLE`) and continues.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

I32 = np.dtype("<i4")
F32 = np.dtype("<f4")
Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


def pack_i32(values: npt.ArrayLike) -> bytes:
    """Encode integers as an int32 column."""
    return np.ascontiguousarray(values, dtype=I32).tobytes()


def unpack_i32(data: bytes) -> Int32Array:
    """Return a read-only int32 view of a column."""
    return np.frombuffer(data, dtype=I32)


def pack_f32(values: npt.ArrayLike) -> bytes:
    """Encode numbers as a float32 column."""
    return np.ascontiguousarray(values, dtype=F32).tobytes()


def unpack_f32(data: bytes) -> Float32Array:
    """Return a read-only float32 view of a column."""
    return np.frombuffer(data, dtype=F32)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of all messages; each is a tagged array on the wire."""
