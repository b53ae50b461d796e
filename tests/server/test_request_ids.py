"""Ids of HTTP requests: in the response's header, in log lines, and in the ids of the engine's requests."""

from __future__ import annotations

import logging
import re

import pytest

from radixrt.config import ServerConfig
from radixrt.messages.client import RequestOutput
from tests.server.fake_engine import FakeEngine, Sent, error_delta
from tests.server.helpers import Caller, asgi_call

ACCESS = "radixrt.server.http.middleware"


def chat(caller: Caller, request_id: str, **fields: object):
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return caller.post("/v1/chat/completions", body, headers=[(b"X-Request-Id", request_id.encode("latin-1"))])


def access_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == ACCESS]


@pytest.mark.parametrize("given", ["abc", "trace:0af7651916cd43dd/8448eb211c80319c@1", "x" * 96])
def test_clients_own_id_is_echoed_and_begins_the_engines_id(caller: Caller, given: str) -> None:
    response = chat(caller, given, rid="mine")
    assert response.headers["x-request-id"] == given
    (request,) = caller.engine.requests
    assert request.rid.startswith(f"{given}.")


@pytest.mark.parametrize("given", ["", "x" * 97, "a b", "a\tb", "ä", "<script>", 'a"b', "a%0ab"])
def test_another_id_is_replaced(caller: Caller, given: str) -> None:
    response = chat(caller, given)
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


def test_errors_carry_the_id_too(caller: Caller) -> None:
    headers = {"X-Request-Id": "abc"}
    caller.engine.script = lambda request: [error_delta(request, "no", 500)]
    assert caller.get("/nothing", headers=headers).headers["x-request-id"] == "abc"
    assert caller.post("/generate", {}, headers=headers).headers["x-request-id"] == "abc"
    assert chat(caller, "abc").headers["x-request-id"] == "abc"


def test_requests_with_the_same_id_are_different_requests(engine: FakeEngine) -> None:
    """A client that repeats an id while the first request runs, as one that retries does, is served again."""
    caller = Caller(engine)
    first: list[str] = []

    def script(request: Sent):
        if not first:
            first.append(request.rid)
            assert chat(caller, "abc").status_code == 200
        yield RequestOutput(request.rid, "x")
        yield from caller_script(request)

    caller_script = engine.script
    engine.script = script
    ids = [chat(caller, "abc", stream=True).text.partition('"id":"')[2].partition('"')[0]]
    assert len({request.rid for request in engine.requests}) == 2
    assert ids[0].startswith("chatcmpl-abc.")


def test_each_response_is_logged_with_its_id(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, ACCESS):
        chat(caller, "abc")
        caller.get("/a%0Ab\u00e9" + "c" * 300 + "?secret=1")
        caller.get("/metrics")
        caller.get("/health")
    first, second = access_lines(caplog)
    assert re.fullmatch(r"POST /v1/chat/completions 200 \d+ ms", first)
    assert re.fullmatch(r"GET /a\\nb\\xe9c{195} 404 \d+ ms", second)


def test_client_that_left_is_logged_as_499(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    caller.engine.script = lambda request: [60.0]
    with caplog.at_level(logging.INFO, ACCESS):
        asgi_call(caller.app, "/v1/completions", {"prompt": "x"}, leave=lambda sent: bool(caller.engine.requests))
    assert re.fullmatch(r"POST /v1/completions 499 \d+ ms", access_lines(caplog)[0])


def test_access_log_can_be_off(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, ACCESS):
        Caller(engine, ServerConfig(access_log=False)).get("/version")
    assert access_lines(caplog) == []
