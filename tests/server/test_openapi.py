"""The OpenAPI description, and its page in a real browser. That answers are as described is checked by every test that
calls the application through `Caller`; see `conformance`."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from benchmarks.common.browser import BROWSER, Browser
from radixrt.chat.unsupported_fields import UnsupportedFields
from radixrt.server.routes.table import ROUTES
from tests.server.conformance import check_exchange, description, validate
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller


def test_every_route_of_the_application_is_described(caller: Caller) -> None:
    served = {
        (method, route.path.replace(":path", "")) for route in caller.app.routes for method in route.methods - {"HEAD"}
    }
    described = {(method.upper(), path) for path, each in description()["paths"].items() for method in each}
    assert served == described
    ids = [one["operationId"] for each in description()["paths"].values() for one in each.values()]
    assert len(set(ids)) == len(ids)


def test_the_description_is_openapi() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(description())


def test_the_description_is_served_as_it_is(caller: Caller) -> None:
    answer = caller.get("/openapi.json")
    assert answer.json() == description()
    assert caller.get("/openapi.json").content == answer.content


def test_examples_are_requests_that_are_served() -> None:
    engine = FakeEngine()
    try:
        caller = Caller(engine)
        for route in ROUTES:
            path = route.path
            if route.example is None:
                continue
            assert route.decoder is not None
            route.decoder.decode(json.dumps(route.example))
            body = description()["paths"][path][route.method.lower()]["requestBody"]["content"]["application/json"]
            validate(route.example, body["schema"])
            if route.tag in ("Chat", "Generation") and path != "/v1/decisions":
                assert caller.post(path, route.example).status_code == 200, path
                if route.event is not None:
                    assert caller.post(path, {**route.example, "stream": True}).status_code == 200, path
    finally:
        engine.close()


def test_fields_are_those_that_a_request_may_use() -> None:
    schemas = description()["components"]["schemas"]
    chat = schemas["ChatRequest"]
    assert not set(UnsupportedFields.__struct_fields__) & set(chat["properties"])
    assert chat["required"] == ["messages"]
    assert "0 is greedy" in chat["properties"]["temperature"]["description"]
    assert chat["properties"]["response_format"]["anyOf"][0] == {"$ref": "#/components/schemas/ResponseFormat"}
    assert {"type": "null"} in schemas["StructuredOptions"]["properties"]["whitespace"]["anyOf"]
    assert "documents" in schemas["RerankRequest"]["required"]


@pytest.mark.parametrize(
    ("path", "sent", "body"),
    [
        ("/version", None, {"version": "1", "more": 1}),
        ("/version", None, {}),
        ("/v1/models", None, {"object": "list", "data": [{"id": "m"}]}),
        ("/tokenize", {"prompt": 5}, {"tokens": [], "count": 0, "max_model_len": 1}),
    ],
)
def test_what_is_not_as_described_is_found(path: str, sent: Any, body: Any) -> None:
    answer = httpx.Response(200, json=body)
    with pytest.raises(AssertionError):
        check_exchange("GET" if sent is None else "POST", path, sent, answer)


def test_schemas_of_answers_are_closed() -> None:
    """So that a member that is not described is found."""
    for name, schema in description()["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        is_answer = name in ("ChatCompletion", "ChatChunk", "Response", "Message", "Generation", "Usage", "ErrorBody")
        assert not is_answer or schema["additionalProperties"] is False


# --- the page ---


def test_the_page_loads_nothing_from_elsewhere(caller: Caller) -> None:
    page = caller.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert page.headers["x-content-type-options"] == "nosniff"
    files = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert files == ["data:,", "docs/page.css", "docs/page.js", "openapi.json"]
    assert "<script>" not in page.text
    assert "style=" not in page.text
    assert "innerHTML" not in caller.get("/docs/page.js").text
    assert caller.get("/docs/page.css").headers["content-type"].startswith("text/css")
    assert caller.get("/docs/keys.py").status_code == 404


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_the_page_in_a_browser(live: str) -> None:
    browser = Browser()
    try:
        browser.open(f"{live}/docs#chat_completions")
        browser.wait("document.querySelector('#chat_completions')?.open")
        page = browser.page.content()
    finally:
        browser.close()
    for path in (path for route in ROUTES for path in route.paths):
        assert f'<span class="path">{path.replace(":path", "")}</span>' in page
    assert re.search(r'<details class="route" id="chat_completions" [^>]*open=""', page)
    assert "ChatRequest" in page
    assert "text/event-stream" in page
