"""`LimitedHttpProtocol`: uvicorn's HTTP protocol with limits on the size and time of each part of a connection.

    part of a connection            limit                     past it
    request line and headers        MAX_HEAD_BYTES            400, closed
    the same                        header_timeout_s          408, closed; in silence if nothing has come
    body                            body_timeout_s            408, closed
    the same, read or not           max_sent_bytes            closed
    bodies that no route reads      max_unread_bytes          closed
    nothing, between two requests   idle_timeout_s            closed
    an answer that is not read      idle_timeout_s            closed
    connections of a client         max_connections_per_client  429, closed
    connections in all              the limit of open files   503, closed
    requests behind another         MAX_PIPELINED             closed

The end of a client's input (it has closed, or half closed, its connection) ends its requests. Input that follows a
request, which is the next one, does not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from radixrt.errors import RequestError
from radixrt.server.answers.base import encode
from radixrt.server.answers.errors import ErrorBody, error_detail
from radixrt.server.http.client_address import ClientCounts, TrustedProxies
from radixrt.server.http.errors import error_headers

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
BODY_GRACE_S = 5.0
"""The route that reads a body answers at its timeout; where none reads, the connection closes so much later."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits that all connections of a server share.

    Attributes:
        max_sent_bytes: most bytes of one body, more than any route reads.
        max_unread_bytes: most bytes of all bodies of a connection that no route has read when it answered.
        max_connections: most open connections in all.
        clients: open connections by client; those of trusted proxies are not counted.
    """

    header_timeout_s: float
    body_timeout_s: float
    idle_timeout_s: float
    max_sent_bytes: int
    max_unread_bytes: int
    max_connections: int
    clients: ClientCounts
    proxies: TrustedProxies


class LimitedHttpProtocol(HttpToolsProtocol):
    """See the module's docstring."""

    def __init__(self, limits: ConnectionLimits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._client_key: str | None = None
        self._in_head = True
        self._head_bytes = 0
        self._body_bytes = 0
        self._unread_bytes = 0  # of all requests
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._open_cycles: list[RequestResponseCycle] = []

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        peer = self.client[0] if self.client is not None else ""
        if len(self.connections) > self._limits.max_connections:
            self._close_with(RequestError("the server has too many connections", code="busy", status=503))
            return
        if peer not in self._limits.proxies:
            self._client_key = self._limits.clients.enter(peer)
            if self._client_key is None:
                self._close_with(self._limits.clients.refusal())
                return
        self._expect(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client_key is not None:
            self._limits.clients.leave(self._client_key)
        self._cancel_receive_timer()
        self._cancel_send_timer()
        self._disconnect_requests()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        self._disconnect_requests()
        self._close_soon()

    def _disconnect_requests(self) -> None:
        """Report the disconnect to every open request; uvicorn does so for the last of the connection alone."""
        for cycle in self._open_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()

    # --- receiving ---

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or not self._in_head or not self._head_bytes:
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response("")
        elif self._receive_timer is None:
            self._expect(self._limits.header_timeout_s)

    def on_headers_complete(self) -> None:
        # A head that came in one read, perhaps with the body, is complete before `data_received` compares its size.
        self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("too many headers")  # which ends the parser; uvicorn sends the 400
        self._in_head = False
        self._body_bytes = 0
        self._cancel_receive_timer()
        super().on_headers_complete()
        self._open_cycles = [cycle for cycle in self._open_cycles if not cycle.response_complete]
        self._open_cycles.append(self.cycle)
        self._expect(self._limits.body_timeout_s + BODY_GRACE_S)
        self._keep_reading()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
        super().on_body(body)
        self._keep_reading()
        if self._floods and not self.transport.is_closing():
            self._disconnect_requests()
            self._close_soon()

    @property
    def _floods(self) -> bool:
        """The client sends bytes that no route reads: after an answer that needs no body (a 401, a 404, an answer to a
        GET), or to a stream, which reads its input only to learn that the client has left."""
        limits = self._limits
        return self._body_bytes > limits.max_sent_bytes or self._unread_bytes > limits.max_unread_bytes

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._cancel_receive_timer()
        super().on_message_complete()

    def _keep_reading(self) -> None:
        """Read on while requests wait behind another, where uvicorn pauses: else the end of input would go unseen."""
        if not self.pipeline:
            return
        if len(self.pipeline) > MAX_PIPELINED or len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._disconnect_requests()
            self._close_soon()
        else:
            self.flow.resume_reading()

    def _expect(self, timeout_s: float) -> None:
        """Expect the rest of a head or a body within a time."""
        self._receive_timer = self.loop.call_later(timeout_s, self._on_late_input, timeout_s)

    def _on_late_input(self, timeout_s: float) -> None:
        answering = any(not cycle.response_complete for cycle in self._open_cycles[: None if self._in_head else -1])
        if self.flow.read_paused or answering:
            self._expect(timeout_s)  # it is not the client that is late, or its earlier request is answered first
        elif self.cycle is not None and self.cycle.response_started and not self._in_head:
            self._close_soon()  # a body that no route reads
        elif self._in_head and not self._head_bytes:
            self.transport.close()
        else:
            part = "head" if self._in_head else "body"
            self._disconnect_requests()
            self._close_with(
                RequestError(f"the request's {part} did not arrive in time", code=f"{part}_timeout", status=408)
            )

    def _cancel_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    # --- sending ---

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_unless_sent()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_send_timer()

    def on_response_complete(self) -> None:
        for cycle in self._open_cycles:
            if cycle.response_complete:
                self._unread_bytes += len(cycle.body)
                cycle.body.clear()
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_unless_sent()
        elif self._floods:
            self._close_soon()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close_soon()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP or whose head is too large, with an error of the usual form."""
        too_large = self._in_head and self._head_bytes > MAX_HEAD_BYTES
        self._close_with(RequestError("The request's headers are too large." if too_large else msg))

    def _close_with(self, error: RequestError) -> None:
        """Answer with an error and close."""
        body = encode(ErrorBody(error_detail(error)))
        headers = {
            **error_headers(error),
            "connection": "close",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self._close_soon()

    def _close_soon(self) -> None:
        """Close once everything is sent, or the client has not read it in time."""
        self.transport.close()
        self._abort_unless_sent()

    def _abort_unless_sent(self) -> None:
        self._cancel_send_timer()
        self._send_timer = self.loop.call_later(self._limits.idle_timeout_s, self.transport.abort)

    def _cancel_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
