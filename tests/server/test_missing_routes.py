"""Paths of other servers: redirects to the route of the same meaning, and errors that name the right one."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from radixrt.config import ServerConfig
from radixrt.server.access.checks import OPEN_PATHS
from radixrt.server.http.missing_routes import NAMES, PROBES
from radixrt.server.routes.table import ROUTES
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.helpers import Caller, check_error

USER: list[Any] = [{"role": "user", "content": "hi"}]
PATHS = {path for route in ROUTES for path in route.paths}


def test_every_name_leads_to_a_route_that_exists_and_hides_none() -> None:
    assert {path.partition("?")[0] for path in PROBES.values()} <= PATHS
    assert set(PROBES) <= OPEN_PATHS
    assert not {path for path, _ in NAMES} & PATHS
    for _, text in NAMES:
        assert {word.rstrip(",;.") for word in text.split() if word.startswith("/")} <= PATHS


@pytest.mark.parametrize(("path", "target"), PROBES.items())
def test_a_probe_of_another_server_is_redirected(caller: Caller, path: str, target: str) -> None:
    answer = caller.get(path)
    assert (answer.status_code, answer.headers["location"]) == (307, target)
    assert check_error(answer, 307, None, "moved").startswith(f"{path} is {target} here")


def test_a_path_without_v1_is_redirected_with_its_body(live: str) -> None:
    body = {"messages": USER, "max_tokens": 3}
    with httpx.Client(base_url=live, follow_redirects=True) as http:
        assert http.post("/chat/completions", json=body).json()["choices"]
        assert http.post("/responses?x=1", json={"input": "hi"}).json()["object"] == "response"
        assert http.get("/models").json()["data"][0]["id"] == MODEL
        assert "text/html" in http.get("/").headers["content-type"]
    client = openai.OpenAI(base_url=live, api_key="none", max_retries=0)
    assert client.chat.completions.create(model=MODEL, messages=USER).choices
    assert httpx.post(f"{live}/chat/completions", json=body).status_code == 307


def test_redirects_need_a_key_where_their_routes_do(engine: FakeEngine) -> None:
    keyed = Caller(engine, ServerConfig(api_key="sk-1"))
    check_error(keyed.post("/chat/completions", {"messages": USER}), 401)
    assert keyed.get("/ping").status_code == 307


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("POST", "/v1/load_lora_adapter", "LoRA adapters are not served"),
        ("POST", "/v1/batches", "batches are not served"),
        ("GET", "/v1/batches/b1", "batches are not served"),
        ("GET", "/get_model_info", "GET /v1/models"),
        ("POST", "/v1/v1/chat/completions", "the route is /v1/chat/completions"),
        ("POST", "/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ("POST", "/", "GET /docs lists the routes"),
        ("GET", "/something/else", "GET /docs lists the routes"),
    ],
)
def test_a_missing_route_names_the_right_one(caller: Caller, method: str, path: str, named: str) -> None:
    answer = caller.request(method, path)
    assert named in check_error(answer, 404)


def test_a_wrong_method_names_the_right_one(caller: Caller) -> None:
    assert check_error(caller.get("/v1/chat/completions"), 405).endswith("method not allowed; use POST")


def test_a_wrong_method_of_a_path_with_an_id_names_the_right_ones(caller: Caller) -> None:
    assert check_error(caller.request("PUT", "/v1/responses/x"), 405).endswith(
        "method not allowed; use DELETE, GET, HEAD"
    )
