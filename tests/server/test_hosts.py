"""Host and Origin: a page of another site cannot use a server without keys through a browser."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.config import ServerConfig
from radixrt.server.routes.table import ROUTES
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error

CALLS = [(route.method, path, route.example) for route in ROUTES for path in route.paths]
STRANGE = (
    "evil.example", "evil.example:30000", "127.0.0.1.evil.example", "localhost.evil.example", "localhost,evil.example",
    "evil@localhost", "localhost@evil.example", "user:password@localhost:30000", "localhost/evil.example",
    "localhost evil.example", "localhost:evil", "[localhost]", "[::1", "",
)  # fmt: skip


def call(caller: Caller, method: str, path: str, body: Any, headers: Any) -> Any:
    path = path.replace("{model:path}", "x").replace("{response_id}", "x").replace("{file}", "page.js")
    return caller.request(method, path, json=body, headers=headers)


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_no_route_answers_to_a_strange_name_or_page(caller: Caller, method: str, path: str, body: Any) -> None:
    """A page whose domain resolves to 127.0.0.1 is refused by the name that its browser sends."""
    rebound = call(caller, method, path, body, {"host": "evil.example"})
    foreign = call(caller, method, path, body, {"origin": "http://evil.example"})
    if path.startswith("/v1/messages"):  # errors of another form
        assert rebound.status_code == foreign.status_code == 403
        assert "--allowed-hosts" in rebound.text
        assert "--cors-origins" in foreign.text
    else:
        assert "--allowed-hosts" in check_error(rebound, 403, "Host", "host_not_allowed")
        assert "--cors-origins" in check_error(foreign, 403, "Origin", "origin_not_allowed")
    assert not caller.engine.requests
    assert not caller.engine.questions


@pytest.mark.parametrize("host", STRANGE)
def test_strange_names(caller: Caller, host: str) -> None:
    answer = caller.post("/v1/completions", {"prompt": "x"}, headers={"host": host})
    check_error(answer, 403, "Host", "host_not_allowed")


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/ui"])
@pytest.mark.parametrize("hosts", [("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost",) * 2])
def test_several_host_headers_are_refused(engine: FakeEngine, path: str, hosts: tuple[str, ...]) -> None:
    own = [("authorization", "Bearer k")]
    for caller in (Caller(engine), Caller(engine, ServerConfig(api_key="k"))):
        check_error(caller.get(path, headers=[*own, *(("host", host) for host in hosts)]), 400, "Host")


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:30000", "127.0.0.1:1", "[::1]:30000", "10.1.2.3", "radixrt:30000", "a.svc", "box.lan"],
)
def test_names_that_no_stranger_can_have_are_served(caller: Caller, host: str) -> None:
    for path in ("/ui", "/v1/models", "/health"):
        assert caller.get(path, headers={"host": host}).status_code == 200


def test_names_can_be_listed(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(allowed_hosts="Rack.example, other.example"))
    for path in ("/ui", "/v1/models"):
        assert caller.get(path, headers={"host": "rack.example:443"}).status_code == 200
        check_error(caller.get(path, headers={"host": "third.example"}), 403, "Host")
    every = Caller(engine, ServerConfig(allowed_hosts="*"))
    assert every.get("/v1/models", headers={"host": "third.example"}).status_code == 200
    with_key = Caller(engine, ServerConfig(api_key="k"))  # a strange page has no key
    for path in ("/metrics", "/v1/models"):
        assert with_key.get(path, headers={"host": "x.example", "authorization": "Bearer k"}).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/models"])
def test_pages_of_other_origins_are_refused(engine: FakeEngine, path: str) -> None:
    caller = Caller(engine, ServerConfig(cors_origins="https://tools.example"))
    own = {"host": "localhost:30000", "origin": "http://localhost:30000"}
    assert caller.get(path, headers=own).status_code == 200
    strangers = ("http://localhost:99", "null", "http://[::1")
    for headers in (*({"origin": origin} for origin in strangers), {"sec-fetch-site": "cross-site"}):
        check_error(caller.get(path, headers={"host": "localhost:30000", **headers}), 403, "Origin")
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert caller.get("/ui", headers=link).status_code == 200
    assert caller.get(path, headers={"origin": "https://tools.example"}).status_code == 200
    behind_proxy = {"host": "127.0.0.1:30000", "origin": "https://llm.example", "sec-fetch-site": "same-origin"}
    assert caller.get(path, headers=behind_proxy).status_code == 200


def test_all_origins_may_use_all_routes_but_those_of_operators(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(cors_origins="*"))
    page = {"origin": "http://page.example"}
    assert caller.get("/v1/models", headers=page).status_code == 200
    check_error(caller.get("/metrics", headers=page), 403, "Origin")


def test_with_keys_pages_may_use_all_routes_but_those_of_operators(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(api_key="k"))
    page = {"origin": "http://page.example", "authorization": "Bearer k"}
    assert caller.get("/v1/models", headers=page).status_code == 200
    check_error(caller.get("/metrics", headers=page), 403, "Origin")
