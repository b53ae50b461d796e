"""A client that leaves frees what it used, whatever it was waiting for."""

from __future__ import annotations

import socket

import httpx
import pytest

from radixrt.messages.client import RequestOutput
from tests.server.fake_engine import FakeEngine, Sent
from tests.server.helpers import Caller, asgi_call


def silent(request: Sent):
    yield 60.0


def one_word(request: Sent):
    yield RequestOutput(request.rid, "word")
    yield 60.0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_leaving_before_the_first_token_aborts(caller: Caller, path: str, stream: bool, n: int) -> None:
    engine = caller.engine
    engine.script = silent
    asked = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "n": n},
        "/v1/completions": {"prompt": "x", "n": n},
        "/generate": {"text": "x", "sampling_params": {"n": n}},
    }
    body = {**asked[path], "stream": stream, "rid": "r"}
    sent = asgi_call(caller.app, path, body, leave=lambda sent: len(engine.requests) == n)
    assert sent == []
    engine.wait_for(lambda: sorted(engine.aborted) == sorted(request.rid for request in engine.requests))
    engine.wait_for(lambda: engine.client.open_requests == 0)
    assert not caller.app.state.service.groups.open
    assert 'status="499"' in caller.get("/metrics").text


@pytest.mark.parametrize("n", [1, 2])
def test_leaving_in_mid_stream_aborts(caller: Caller, n: int) -> None:
    engine = caller.engine
    engine.script = one_word
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "n": n}
    sent = asgi_call(caller.app, "/v1/chat/completions", body, leave=lambda sent: len(sent) > n)
    assert sent[0]["status"] == 200
    engine.wait_for(lambda: len(engine.aborted) == n)
    engine.wait_for(lambda: engine.client.open_requests == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_closed_socket_is_noticed_at_once(engine: FakeEngine, live: str, stream: bool) -> None:
    engine.script = one_word
    host, port = live.removeprefix("http://").split(":")
    body = b'{"prompt": "x", "stream": %s}' % (b"true" if stream else b"false")
    client = socket.create_connection((host, int(port)))
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )
    if stream:
        assert b"200 OK" in client.recv(10_000)
    engine.wait_for(lambda: len(engine.requests) == 1)
    client.close()
    engine.wait_for(lambda: len(engine.aborted) == 1)  # the engine itself would go on for a minute
    engine.wait_for(lambda: engine.client.open_requests == 0)


def test_leaving_while_sending_the_body_does_nothing(engine: FakeEngine, live: str) -> None:
    host, port = live.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    client.close()
    counted = 'route="/v1/completions"'
    engine.wait_for(lambda: counted in httpx.get(f"{live}/metrics", timeout=60).text)  # the request has ended
    assert not engine.requests
