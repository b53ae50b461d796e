"""Slow, idle, leaving and too many clients: each meets its limit, and others are served meanwhile.

Addresses of the network 127.0.0.0/8 stand for clients.
"""

from __future__ import annotations

import json
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from tests.server.helpers import check_error
from tests.server.served import Served
from tests.server_process import wait_for, without_model

LIMIT = 8
OTHER = "127.0.0.2"
PROXY = "127.0.0.3"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server that limits clients; its completions of one word do not end."""
    yield from _serve(max_connections_per_client=LIMIT, trusted_proxies=f"{PROXY}, 10.0.0.0/8")


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    """A server with short timeouts."""
    yield from _serve(
        header_timeout_s=1.0, body_timeout_s=1.0, idle_timeout_s=1.5, max_connections_per_client=LIMIT
    )  # fmt: skip


def _serve(**options: object) -> Iterator[Served]:
    server = Served(0.0, **options)
    yield server
    server.process.kill()
    server.process.communicate()


def connect(served: Served, source: str = "127.0.0.1") -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), source_address=(source, 0))
    made.settimeout(60)
    return made


def completion(words: int = 1, **fields: Any) -> bytes:
    body = json.dumps({"prompt": "x", "max_tokens": words, **fields}).encode()
    return HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def read_all(client: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    answer = b""
    with suppress(ConnectionError):
        while piece := client.recv(65536):
            answer += piece
    return answer


def ask(served: Served, path: str = "/health", source: str = OTHER, **headers: str) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=60) as client:
        return client.get(f"{served.url}{path}", headers=headers)


# --- slow clients ---


def test_many_slow_heads_leave_others_served(hasty: Served) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(hasty)) for _ in range(5 * LIMIT)]
        for client in slow:
            with suppress(ConnectionError):
                client.sendall(b"GET /health HTTP/1.1\r\nx: ")
        assert ask(hasty).status_code == 200
        answers = [read_all(client) for client in slow]
    late = [answer for answer in answers if answer.startswith(b"HTTP/1.1 408")]
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429")]
    assert len(late) >= LIMIT
    assert len(late) + len(refused) == len(answers)
    assert all(b"head_timeout" in answer for answer in late)
    assert all(b"max_connections_per_client" in answer and b"Retry-After" in answer for answer in refused)


def test_a_connection_that_says_nothing_is_closed(hasty: Served) -> None:
    with connect(hasty) as client:
        assert read_all(client) == b""


def test_a_head_that_trickles_is_late_too(hasty: Served) -> None:
    with connect(hasty) as client:
        client.settimeout(0.05)
        client.sendall(b"GET /health HTTP/1.1\r\nx: ")
        answer = b""
        while not answer:
            with suppress(TimeoutError):
                client.sendall(b"y")
                answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_late_body_is_an_error(hasty: Served) -> None:
    with connect(hasty) as client:
        client.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in answer


def test_an_idle_connection_is_closed(hasty: Served) -> None:
    with connect(hasty) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 200")  # and then it ends


def test_an_answer_that_is_not_read_is_given_up(hasty: Served) -> None:
    prompts = ["x" * 3_900_000] * 2  # more than the buffers of a connection
    with connect(hasty) as client:
        client.sendall(completion(100_000, stream=True, echo=True, prompt=prompts))
        assert wait_for(lambda: open_requests(hasty) == 2)
        assert wait_for(lambda: open_requests(hasty) == 0)


# --- bodies that no route reads ---

MIB = 2**20
FLOOD_BYTES = 256 * MIB
"""Many times what a server of a body limit of 1 MiB, and the buffers of a connection, take."""


@pytest.fixture(scope="module")
def with_key() -> Iterator[Served]:
    yield from _serve(max_body_bytes=MIB, api_key="k")


def flood(served: Served, head: bytes, piece: bytes = b"x" * 65536) -> int:
    """Send a head and then pieces until the server closes the connection; return the number of bytes."""
    sent = 0
    with connect(served, OTHER) as client, suppress(ConnectionError):
        client.sendall(head)
        while sent < FLOOD_BYTES:
            client.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(
    "request_line",
    [
        "POST /v1/completions", "POST /v1/responses/x/cancel", "POST /no/such/route", "PUT /v1/completions",
        "GET /health", "GET /ui/page.js", "GET /metrics", "GET /v1/models",
    ],
)  # fmt: skip
@pytest.mark.parametrize("headers", ["content-length: 10000000000", "transfer-encoding: chunked"])
def test_a_body_that_no_route_reads_ends_the_connection(with_key: Served, request_line: str, headers: str) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n" if "chunked" in headers else b"x" * 65536
    head = f"{request_line} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\r\n\r\n"
    assert flood(with_key, head.encode(), chunk) < FLOOD_BYTES / 4
    assert ask(with_key).status_code == 200


def test_a_stream_that_reads_no_body_ends_the_connection(served: Served) -> None:
    head = b"GET /ui/events HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000000\r\n\r\n"
    assert flood(served, head) < FLOOD_BYTES / 2


def test_bodies_of_many_requests_count_together(with_key: Served) -> None:
    body, answers = b"x" * 60_000, 0  # each comes with its head, and is no flood alone
    host, port = with_key.url.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as client, suppress(ConnectionError):
        while answers * len(body) < 8 * MIB:
            client.request("POST", "/no", body)
            assert client.getresponse().read()
            answers += 1
    assert MIB <= answers * len(body) + len(body) < 4 * MIB


def test_an_unread_body_within_the_limit_leaves_the_connection_open(with_key: Served) -> None:
    with httpx.Client(base_url=with_key.url, timeout=60) as client:
        for path, status in (("/v1/completions", 401), ("/no/such/route", 401), ("/v1/completions", 401)):
            assert client.post(path, content=b"x" * 300_000).status_code == status
        assert client.get("/health").status_code == 200


# --- limits for each client ---


def test_open_requests_of_a_client_are_bounded_and_end(served: Served) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connect(served)) for _ in range(LIMIT)]
        for client in held:
            client.sendall(completion())
        assert wait_for(lambda: open_requests(served) == LIMIT)
        with connect(served) as refused:
            assert read_all(refused).startswith(b"HTTP/1.1 429")
    assert wait_for(lambda: open_requests(served) == 0)
    with connect(served) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def open_requests(served: Served) -> int:
    found = re.search(r"^radixrt_open_requests (\d+)", without_model(ask(served, "/metrics").text), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def test_requests_of_a_proxy_count_for_its_clients(served: Served) -> None:
    def forwarded(client: bytes) -> bytes:
        return completion().replace(b"host: x\r\n", b"host: x\r\nx-forwarded-for: 1.1.1.1, %b, 10.1.2.3\r\n" % client)

    with ExitStack() as stack:
        for number in range(3 * LIMIT):
            client = stack.enter_context(connect(served, PROXY))
            client.sendall(forwarded(b"192.0.2.%d" % (number % 3)))
        assert wait_for(lambda: open_requests(served) == 3 * LIMIT)
        refused = ask(served, "/v1/models", PROXY, **{"x-forwarded-for": "192.0.2.1"})
        check_error(refused, 429, None, "too_many_connections")
        assert ask(served, "/v1/models", PROXY, **{"x-forwarded-for": "192.0.2.1, 192.0.2.9"}).status_code == 200
        assert ask(served, "/v1/models", PROXY).status_code == 200
    assert wait_for(lambda: open_requests(served) == 0)


def test_what_an_untrusted_client_claims_does_not_count(served: Served) -> None:
    with ExitStack() as stack:
        for number in range(LIMIT):
            client = stack.enter_context(connect(served))
            client.sendall(completion().replace(b"host: x\r\n", b"x-forwarded-for: 192.0.2.%d\r\n" % number))
        assert wait_for(lambda: open_requests(served) == LIMIT)
        with connect(served) as refused:
            assert read_all(refused).startswith(b"HTTP/1.1 429")
    assert wait_for(lambda: open_requests(served) == 0)


# --- clients that leave ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", ["close", "half close"])
@pytest.mark.parametrize("pipelined", [0, 3])
def test_the_end_of_input_aborts_the_request(served: Served, stream: bool, leave: str, pipelined: int) -> None:
    client = connect(served)
    client.sendall(completion(stream=stream))
    assert wait_for(lambda: open_requests(served) == 1)
    for _ in range(pipelined):
        client.sendall(completion())
    assert open_requests(served) == 1  # more input is no disconnect, and waits for its turn
    if leave == "close":
        client.close()
    else:
        client.shutdown(socket.SHUT_WR)
    assert wait_for(lambda: open_requests(served) == 0)
    client.close()


def test_pipelined_requests_are_answered_in_order(hasty: Served) -> None:
    with connect(hasty) as client:
        first = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
        client.sendall(first + b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b'"version"') < answer.index(b'"list"')


def test_too_many_pipelined_requests_close_the_connection(served: Served) -> None:
    with connect(served) as client:
        client.sendall(completion())
        assert wait_for(lambda: open_requests(served) == 1)
        with suppress(ConnectionError):
            client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
        assert wait_for(lambda: open_requests(served) == 0)


def test_the_limit_of_open_files_is_raised(start: Callable) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = max(map(int, os.listdir("/proc/self/fd"))) + 256  # this process has files of other tests open
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1, low), hard))
    try:
        served = start(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
