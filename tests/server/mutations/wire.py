"""Requests as bytes: bodies that are broken JSON, heads that are broken HTTP, a client that sends both."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hypothesis import strategies as st

from tests.server.mutations.bodies import BODIES, bodies, one_in
from tests.server_process import LIMIT_S

GET_ROUTES = (
    "/health",
    "/metrics",
    "/version",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/models/%00",
    "/chat_template",
    "/v1/responses/resp_x",
    "/v1/responses/%00/input_items?limit=-1",
    "/nope",
)
GENERATING = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/v1/decisions", "/v1/embeddings",
    "/v1/systemone",
) * 2  # fmt: skip
"""Routes that get three times as many requests as the others."""
OTHER_METHODS = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW")
HEADERS = (
    "Content-Type: text/plain", "Content-Type: application/json; charset=utf-16", "Content-Type:",
    "Content-Type: multipart/form-data; boundary=x", "Content-Type: multipart/form-data",
    "Authorization: Bearer x", "Authorization: Basic \xff\xfe", "Accept: text/event-stream", "X-Request-Id: \x01\x02",
    "X-Request-Id: " + "x" * 300, "Content-Encoding: gzip", "Expect: 100-continue", "Upgrade: h2c",
    "Origin: http://evil.example", "Cookie: " + "c" * 4_000, "X-Forwarded-For: 1.2.3.4, \xe9", "Host: other",
    "Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 0", "Content-Length: 1e3",
    "Content-Length: 99999999999999999999", "Range: bytes=0-", "no colon", " folded: x", "A" * 70_000 + ": x",
)  # fmt: skip
"""Header lines that a request may carry besides its own."""


@dataclass(frozen=True)
class RawRequest:
    """One request as bytes.

    Attributes:
        route: name of its row in the table of results, e.g. "POST /abort".
        whole: the head announces exactly the bytes of the body, so that the server has to answer.
    """

    route: str
    method: str
    data: bytes
    whole: bool

    def __repr__(self) -> str:
        shown = self.data if len(self.data) <= 2_000 else self.data[:1_500] + b" ... " + self.data[-400:]
        return f"RawRequest({self.route!r}, whole={self.whole}, data={shown!r})"


@dataclass(frozen=True)
class RawAnswer:
    """Status and body of an answer; the status is 0 where the server closed the connection without one."""

    status: int
    content_type: str
    body: bytes


@st.composite
def requests(draw: st.DrawFn) -> RawRequest:
    """Any request; most are POSTs with a body made for their route."""
    if one_in(draw, 40):
        data = draw(st.one_of(st.binary(min_size=1, max_size=200), st.sampled_from([b"GET / HTTP/9.9", b"\r\n" * 50])))
        return RawRequest("garbage", "GET", data + b"\r\n\r\n", whole=False)
    extra = draw(st.lists(st.sampled_from(HEADERS), min_size=1, max_size=2)) if one_in(draw, 10) else []
    if one_in(draw, 20):
        return _request("GET", draw(st.sampled_from(GET_ROUTES)), b"", extra)
    route = draw(st.sampled_from([*BODIES, *GENERATING]))
    payload = encoded(draw(bodies(route)))
    if one_in(draw, 6):
        payload = draw(broken(payload))
    method = draw(st.sampled_from(OTHER_METHODS)) if one_in(draw, 30) else "POST"
    return _request(method, route, payload, extra)


def encoded(value: Any) -> bytes:
    """JSON text of the value, with NaN and lone surrogates as they are."""
    return json.dumps(value, ensure_ascii=True).encode()


def broken(payload: bytes) -> st.SearchStrategy[bytes]:
    """Payloads that are not quite JSON or UTF-8, or much larger."""
    at = st.integers(0, len(payload))
    return st.one_of(
        at.map(lambda i: payload[:i]),
        at.flatmap(
            lambda i: st.binary(min_size=1, max_size=3).map(lambda inserted: payload[:i] + inserted + payload[i:])
        ),
        st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\x00"]).map(
            lambda bad: payload.replace(b'"', b'"' + bad, 1)
        ),
        st.just(payload.replace(b"{", b'{"messages": 1, "messages": [], "prompt": "x", "prompt": null, ', 1)),
        st.just(payload + payload),
        st.integers(1, 60_000).map(lambda n: b'{"x": ' * n + payload),
        st.integers(1, 60_000).map(lambda n: b"[" * n + b"]" * n),
        st.integers(1, 60_000).map(lambda n: payload.replace(b"{", b'{"seed": ' + b"9" * n + b", ", 1)),
        st.integers(1, 30_000).map(lambda n: payload.replace(b"{", b'{"stop": ["' + b'x", "' * n + b'"], ', 1)),
        st.integers(1, 300_000).map(lambda n: payload.replace(b"{", b'{"' + b"k" * n + b'": NaN, ', 1)),
    )


def _request(method: str, path: str, payload: bytes, extra: list[str]) -> RawRequest:
    names = {line.partition(":")[0].lower() for line in extra}
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    if "content-type" not in names:
        lines.append("Content-Type: application/json")
    if not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(payload)}")
    head = "\r\n".join([*lines, *extra]).encode("latin-1")
    # Lines that are not headers may be taken as the head's end or as an error; without a length of ours the body may
    # seem to be another's.
    whole = not names & {"content-length", "transfer-encoding", "expect", "upgrade"} and "no colon" not in names
    route = f"{method} {path}" if method == "POST" or path in GET_ROUTES else "other methods"
    return RawRequest(route, method, head + b"\r\n\r\n" + payload, whole)


def send(url: str, request: RawRequest) -> RawAnswer:
    """Send the bytes on a connection of their own and return the first answer."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0), LIMIT_S) as connection:
        try:
            connection.sendall(request.data)
            if not request.whole:
                connection.shutdown(socket.SHUT_WR)  # a server that waits for more need not wait any longer
        except OSError:
            pass  # refused before all was sent; the answer may have come nevertheless
        answer = http.client.HTTPResponse(connection, method=request.method)
        try:
            answer.begin()
            return RawAnswer(answer.status, answer.headers.get("content-type", ""), answer.read())
        except (ConnectionError, http.client.BadStatusLine, http.client.IncompleteRead):
            return RawAnswer(0, "", b"")
        finally:
            answer.close()
