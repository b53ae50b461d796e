"""Invalid bodies of every kind: each gets a 400 that names the problem, and the server continues."""

from __future__ import annotations

import httpx
import pytest

from radixrt.config import ServerConfig
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error

USER = [{"role": "user", "content": "hi"}]
JSON = {"content-type": "application/json"}


def post_raw(caller: Caller, body: bytes, path: str = "/v1/chat/completions") -> httpx.Response:
    return caller.post(path, content=body, headers=JSON)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": []}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**40}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1_000_000}, "n"),
        ({"n": "2"}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": "x" * 5000}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1000]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(900)) * 2}, "stop_token_ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"rid": ""}, "rid"),
        ({"rid": "x" * 97}, "rid"),
        ({"rid": "a\nb"}, "rid"),
        ({"priority": 2**31}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 1e9}, "timeout"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"model": 5}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": USER * 5000}, "messages"),
        ({"messages": [*USER, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [*USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_each_field_is_checked_and_named(caller: Caller, fields: dict, param: str) -> None:
    response = caller.post("/v1/chat/completions", {"messages": USER, **fields})
    check_error(response, 400, param)
    assert not caller.engine.requests


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"messages": [], "temperature": NaN}', "temperature", "invalid_json"),
        (b'{"messages": [], "logit_bias": {"5": -Infinity}}', "logit_bias.5", "invalid_json"),
        (b'{"messages": [{"role": NaN}]}', "messages[0].role", "invalid_json"),
        (b'{"messages": [], "whatever": [1, Infinity]}', "whatever[1]", "invalid_json"),
        (b'{"messages": [], "temperature": 1e999}', "temperature", "invalid_type"),
        (b'{"messages": [], "user": "\\ud800"}', None, None),
        (b'{"messages": [], "\\ud800": [NaN]}', "\\ud800[0]", "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "a\\ud800"}]}', "messages[0].content", "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', None, "invalid_utf8"),
        (b'\xff\xfe{}', None, "invalid_utf8"),
        (b"", None, "invalid_json"),
        (b"null", None, "invalid_type"),
        (b"[]", None, "invalid_type"),
        (b'"hi"', None, "invalid_type"),
        (b"{", None, "invalid_json"),
        (b'{"messages": []} x', None, "invalid_json"),
        (b'{"messages": [' + b"[" * 200_000, None, None),
        (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", None, "json_limit_exceeded"),
        (b'{"messages": [], "seed": ' + b"9" * 100_000 + b"}", None, None),
        (b"model=fake&prompt=hi", None, "invalid_json"),
        (b"\0" * 100, None, "invalid_json"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_not_json_is_refused(caller: Caller, body: bytes, param: str | None, code: str | None) -> None:
    response = post_raw(caller, body)
    if code is None:
        assert response.status_code == 400
        assert response.json()["error"]["message"]
    else:
        check_error(response, 400, param, code)
    assert caller.chat().status_code == 200


def test_body_that_is_too_large_is_refused(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(max_body_bytes=10_000))
    check_error(caller.chat("x" * 20_000), 413, None, "body_too_large")
    check_error(caller.chat("x" * 200_000), 413, None, "body_too_large")
    assert caller.chat("x" * 9_000).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
def test_copies_of_a_large_request_are_bounded(caller: Caller, path: str) -> None:
    text = "x" * 2**20
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text, "text": text}
    body = {**prompt, **({"sampling_params": {"n": 64}} if path == "/generate" else {"n": 64})}
    assert "67108864" in check_error(caller.post(path, body), 400, "n")
    assert not caller.engine.requests


def test_chunked_body_is_bounded_too(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(max_body_bytes=10_000))
    pieces = 0

    async def endless():
        nonlocal pieces
        while pieces < 10_000:
            pieces += 1
            yield b"x" * 1000

    check_error(caller.post("/generate", content=endless(), headers=JSON), 413, None, "body_too_large")
    assert pieces < 100


def test_live_server_answers_413_to_ten_megabytes_and_goes_on(live: str) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 10_000_000}]}
    assert httpx.post(f"{live}/v1/chat/completions", json=body, timeout=60).status_code == 413
    assert httpx.post(f"{live}/v1/chat/completions", json={"messages": USER}, timeout=60).status_code == 200


def test_unexpected_exception_is_a_500_without_details(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(caller.engine.client, "astream", broken)
    response = caller.chat()
    check_error(response, 500, None, "internal_error")
    assert "secret" not in response.text
    assert response.headers["x-should-retry"] == "false"
    assert caller.get("/ready").json() == {"status": "ok", "state": "serving"}
