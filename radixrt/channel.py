"""Channels for messages between components: over ZMQ between processes, or in memory within one process.

Every component reads exactly one inbox, and has outboxes to the inboxes of others. A channel delivers in order. ZMQ
endpoints are `ipc://` sockets in a private folder (mode 0700, random name) that the launcher creates and removes.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import zmq

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Maximum size of a frame. ZMQ closes a connection that sends a larger frame."""

HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_TIMEOUT_S = 3.0
"""On TCP, the time between pings, and for their answer: a host that falls silent is noticed after their sum at most."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding invalid bytes: not MessagePack, another type, invalid UTF-8, or nested too deeply."""

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
M_contra = TypeVar("M_contra", contravariant=True)


@dataclass(frozen=True)
class Curve:
    """Keys of one end of an encrypted TCP connection (CurveZMQ). Clients need the server's public key to connect.

    Attributes:
        server: public key of the server, on a client; None on the server, which is the end that binds.
    """

    public: bytes
    secret: bytes
    server: bytes | None = None

    @staticmethod
    def make(server: bytes | None = None) -> Curve:
        """Generate keys for a server, or for a client of the given server."""
        return Curve(*zmq.curve_keypair(), server)

    def apply(self, socket: zmq.Socket[Any]) -> None:
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret
        if self.server is None:
            socket.curve_server = True
        else:
            socket.curve_serverkey = self.server


def _attach(socket: zmq.Socket[Any], endpoint: str, bind: bool, curve: Curve | None, reconnects: bool = True) -> str:
    """Bind or connect; return the endpoint, with the assigned port if none was given."""
    if curve is not None:
        curve.apply(socket)
    if endpoint.startswith("tcp://"):  # Unix sockets end with their process, and cannot be half open
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_INTERVAL_S * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_TIMEOUT_S * 1000))
    if not reconnects:
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
    if not bind:
        socket.connect(endpoint)
        return endpoint
    socket.bind(endpoint)
    bound: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return bound


class Outbox(Protocol[M_contra]):
    def send(self, message: M_contra) -> None:
        """Queue the message for the other side; never blocks."""

    def close(self) -> None: ...


class Inbox(Protocol[M_co]):
    def recv(self, timeout_s: float | None = 0.0) -> M_co | None:
        """Return the next message, or None if none arrives within timeout_s seconds (None: wait indefinitely)."""

    def close(self) -> None: ...


class ZmqInbox(Generic[M]):
    """Binds an endpoint and reads messages of one union type. A frame that does not decode is logged and dropped.

    Args:
        bind: False connects instead, to an outbox that binds.
        curve: keys, for TCP, on which the ends also send each other heartbeats, and end a connection without answer.
        reconnects: False to stay disconnected after the connection ended, so that no lost message goes unnoticed.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        message_type: Any,
        *,
        bind: bool = True,
        curve: Curve | None = None,
        reconnects: bool = True,
    ) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.endpoint = _attach(self.socket, endpoint, bind, curve, reconnects)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)

    def recv(self, timeout_s: float | None = 0.0) -> M | None:
        while (frame := self._frame(timeout_s)) is not None:
            try:
                return self._decoder.decode(frame)
            except UNDECODABLE as error:
                logger.error("dropped a frame of %d bytes that does not decode: %s", len(frame), error)
        return None

    def _frame(self, timeout_s: float | None) -> bytes | None:
        while True:
            try:
                frame: bytes = self.socket.recv(zmq.NOBLOCK)
                return frame
            except zmq.Again:
                if timeout_s == 0.0 or not self.socket.poll(None if timeout_s is None else max(1, timeout_s * 1000)):
                    return None

    def close(self) -> None:
        self.socket.close()


class ZmqOutbox(Generic[M]):
    """Connects to an inbox's endpoint, which need not exist yet. See `ZmqInbox` for the arguments."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        *,
        bind: bool = False,
        curve: Curve | None = None,
        reconnects: bool = True,
    ) -> None:
        self.socket = context.socket(zmq.PUSH)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.endpoint = _attach(self.socket, endpoint, bind, curve, reconnects)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: M) -> None:
        self.send_frame(self._encoder.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded message."""
        # Without a peer ZMQ queues (SNDHWM 0); NOBLOCK makes that explicit. The launcher detects a dead peer.
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            logger.error("no room to send a frame of %d bytes; the other side is gone", len(frame))

    def close(self) -> None:
        self.socket.close()


class Tag(NamedTuple):
    """Tag of a frame between a router and a scheduler.

    Attributes:
        replica: number of the sending or receiving replica.
        epoch: epoch of the replica to which the frame belongs; 0 for any epoch.
    """

    replica: int
    epoch: int


_TAG = struct.Struct("<iQ")


class TaggedInbox(ZmqInbox[M]):
    """A `ZmqInbox` whose frames begin with a tag."""

    def recv_tagged(self, timeout_s: float | None = 0.0) -> tuple[Tag, M] | None:
        """Return the next message with its tag; otherwise as `recv`."""
        while (frame := self._frame(timeout_s)) is not None:
            try:
                return Tag(*_TAG.unpack_from(frame)), self._decoder.decode(memoryview(frame)[_TAG.size :])
            except (struct.error, *UNDECODABLE) as error:
                logger.error("dropped a frame of %d bytes that does not decode: %s", len(frame), error)
        return None


class TaggedOutbox(ZmqOutbox[M]):
    """A `ZmqOutbox` whose frames begin with a tag; `send` sends to any epoch."""

    def send(self, message: M) -> None:
        self.send_tagged(Tag(0, 0), message)

    def send_tagged(self, tag: Tag, message: M) -> None:
        self.send_frame(_TAG.pack(*tag) + self._encoder.encode(message))


class LocalChannel(Generic[M]):
    """Both ends of a channel within one thread. With a message type, each message is encoded and decoded."""

    def __init__(self, message_type: Any | None = None) -> None:
        self._messages: deque[M] = deque()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = None if message_type is None else msgspec.msgpack.Decoder(message_type)

    def send(self, message: M) -> None:
        if self._decoder is not None:
            message = self._decoder.decode(self._encoder.encode(message))
        self._messages.append(message)

    def recv(self, timeout_s: float | None = 0.0) -> M | None:
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        self._messages.clear()
