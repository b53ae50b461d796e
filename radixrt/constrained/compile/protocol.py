"""Messages between the scheduler and its compile workers: length-prefixed MessagePack over sockets."""

from __future__ import annotations

import socket
import struct
from typing import Final

import msgspec

from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.constrained.matcher import BackendName
from radixrt.constraint import Constraint
from radixrt.messages.parts import FinishError

HEADER = struct.Struct("<I")


class WorkerSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of a compile worker.

    Attributes:
        tokenizer: model folder, or path of a tokenizer.json.
        cache_folder: folder of the disk cache; None for no disk cache.
        cache_bytes: maximum size of the disk cache.
        log_format: see `radixrt.logs.configure_logging`.
        library: the mask library that the workers have loaded; they compile constraints for it alone.
    """

    tokenizer: str
    vocab_size: int
    eos_ids: list[int]
    cache_folder: str | None = None
    cache_bytes: int = 256 * 1024 * 1024
    log_format: str = "text"
    library: BackendName = "llguidance"


READY: Final = -1


class CompileJob(msgspec.Struct, frozen=True, array_like=True):
    """A constraint to compile.

    Attributes:
        timeout_s: processor time after which to give up, in seconds.
        thorough: measure everything, and do not use the disk cache.
    """

    id: int
    constraint: Constraint
    timeout_s: float
    thorough: bool = False


class CompileResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a job; exactly one of compiled and error is set.

    Attributes:
        id: id of the job; or READY: the worker is ready, and `pid` is its process.
        keyword: the keyword at fault in a refused constraint, for the metrics.
        from_disk: the compiled constraint was in the disk cache.
        is_last: the worker exits now and takes no further job.
    """

    id: int
    compiled: CompiledConstraint | None = None
    error: FinishError | None = None
    keyword: str = ""
    from_disk: bool = False
    is_last: bool = False
    pid: int = 0


def frame(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def receive_frame(connection: socket.socket) -> bytes:
    """Receive one frame from a blocking socket, and no byte after it.

    Raises:
        EOFError: the socket was closed before.
    """
    (length,) = HEADER.unpack(_receive(connection, HEADER.size))
    return _receive(connection, length)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError("the socket was closed inside of a frame")
    return data


class FrameReader:
    """Reassembles frames from pieces of a stream."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Append a piece; return the frames that it completes."""
        self._data += piece
        frames: list[bytes] = []
        while len(self._data) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._data)
            end = HEADER.size + length
            if len(self._data) < end:
                break
            frames.append(bytes(self._data[HEADER.size : end]))
            del self._data[:end]
        return frames
