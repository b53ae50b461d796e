"""Requests that a page of another origin can make a browser send are refused, unless that origin is listed."""

from __future__ import annotations

import json

import pytest

from radixrt.config import ServerConfig
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error

PAGE = "https://elsewhere.example"
BODY = json.dumps({"prompt": "x", "text": "x", "rid": "x"})
POSTS = ("/v1/completions", "/generate", "/tokenize", "/abort", "/flush_cache")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "given",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", ""],
)
def test_only_json_is_served(caller: Caller, path: str, given: str) -> None:
    headers = {"content-type": given} if given else {}
    message = check_error(caller.post(path, content=BODY, headers=headers), 415, None, "unsupported_media_type")
    assert "Content-Type: application/json" in message
    assert not caller.engine.requests


@pytest.mark.parametrize("given", ["application/json", "Application/JSON ; charset=utf-8"])
def test_json_is_served_by_any_spelling(caller: Caller, given: str) -> None:
    assert caller.post("/v1/completions", content=BODY, headers={"content-type": given}).status_code == 200


def test_a_post_without_a_body_is_refused_from_a_page_alone(engine: FakeEngine) -> None:
    caller, key = Caller(engine, ServerConfig(api_key="k")), {"authorization": "Bearer k"}
    assert caller.request("POST", "/flush_cache", headers=key).status_code == 200
    check_error(caller.request("POST", "/release", headers={**key, "origin": PAGE}), 415)
    check_error(caller.request("POST", "/flush_cache", headers={**key, "origin": PAGE}), 403, "Origin")  # for operators


def test_no_origin_may_read_answers_by_default(caller: Caller) -> None:
    answer = caller.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
    asks = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert caller.request("OPTIONS", "/v1/completions", headers=asks).status_code == 403


def test_listed_origins_may(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(cors_origins=f"https://other.example, {PAGE}"))
    asks = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert caller.request("OPTIONS", "/v1/completions", headers=asks).headers["access-control-allow-origin"] == PAGE
    answer = caller.post("/v1/completions", {"prompt": "x"}, headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = caller.get("/v1/models", headers={"origin": "https://third.example"})
    assert "access-control-allow-origin" not in refused.headers
