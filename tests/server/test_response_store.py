"""Stored responses: their bounds, their owners, and the routes that retrieve, list, cancel and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixrt.chat.answer import AnswerForm
from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, Usage
from radixrt.sampling_params import SamplingParams
from radixrt.server.access.tenants import Tenant
from radixrt.server.answers.response_store import ResponseStore, StoredResponse
from radixrt.server.answers.responses import ResponseBuilder
from radixrt.server.protocol.response_fields import ResponsesRequest
from radixrt.server.protocol.response_options import begun_response
from tests.server.fake_engine import FakeEngine, Sent, error_delta
from tests.server.helpers import Caller, asgi_call, check_error
from tests.server_process import without_model

PATH = "/v1/responses"
ALICE, BOB, ADMIN = ({"Authorization": f"Bearer sk-{name}"} for name in ("alice", "bob", "admin"))


def one_word(request: Sent) -> Any:
    yield RequestOutput(request.rid, "word")
    yield 60.0


# --- bounds ---


class Made:
    """Stored responses of a store, and what makes them."""

    def __init__(self, max_responses: int = 100, max_bytes: int = 10**9) -> None:
        self.store = ResponseStore(max_responses, max_bytes)
        self.count = 0

    def begin(self, tenant: str = "a", text: str = "") -> tuple[StoredResponse, ResponseBuilder]:
        self.count += 1
        response = begun_response(ResponsesRequest(input=""), SamplingParams(), f"r{self.count}", "m", store=True)
        builder = ResponseBuilder(response, AnswerForm(), with_logprobs=False, as_summary=False)
        item = {"id": "i", "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        stored = StoredResponse(builder, Tenant(tenant), response.id, (), [item])
        self.store.add(stored)
        return stored, builder

    def end(self, stored: StoredResponse, builder: ResponseBuilder, text: str = "ok") -> StoredResponse:
        builder.add(RequestOutput(stored.id, text, finish=Finish("stop"), usage=Usage(1, 1, 0)))
        self.store.settle(stored, builder)
        return stored

    def whole(self, tenant: str = "a", text: str = "") -> StoredResponse:
        return self.end(*self.begin(tenant, text))

    def has(self, stored: StoredResponse) -> bool:
        with suppress(RequestError):
            return self.store.get(stored.tenant, stored.id) is stored
        return False


def test_the_oldest_is_dropped_past_the_number() -> None:
    made = Made(max_responses=2)
    first, second, third = made.whole(), made.whole(), made.whole()
    assert [made.has(one) for one in (first, second, third)] == [False, True, True]
    assert (len(made.store), made.store.dropped) == (2, 1)
    with pytest.raises(RequestError, match="--max-stored-responses"):
        made.store.get(Tenant("a"), first.id)


def test_the_oldest_is_dropped_past_the_bytes() -> None:
    made = Made(max_bytes=12_000)
    small = made.whole()
    large = made.whole(text="x" * 4_000)
    assert made.has(small)
    larger = made.whole(text="x" * 5_000)
    assert [made.has(one) for one in (small, large, larger)] == [False, False, True]
    assert made.store.bytes == larger.size <= 12_000
    with pytest.raises(RequestError, match="alone") as refused:
        made.begin(text="x" * 12_000)
    assert (refused.value.status, refused.value.param) == (400, "store")
    assert made.has(larger)
    assert not made.has(made.end(*made.begin(), "x" * 12_000)), "an answer of more than all bytes"
    assert (made.store.bytes, len(made.store)) == (0, 0)


def test_the_tenant_with_the_most_loses_its_oldest() -> None:
    made = Made(max_responses=4)
    bob = made.whole("bob")
    alices = [made.whole("alice") for _ in range(4)]
    assert made.has(bob)
    assert [made.has(one) for one in alices] == [False, True, True, True]


def test_a_response_that_is_being_generated_is_never_dropped() -> None:
    made = Made(max_responses=2)
    running = made.begin()
    made.whole()
    last = made.begin()
    assert made.has(running[0])
    with pytest.raises(RequestError, match="store false") as refused:
        made.begin()
    assert refused.value.status == 503
    assert len(made.store) == 2
    assert made.has(made.end(*running))
    made.end(*last)
    assert made.whole()
    assert not made.has(running[0])


def test_what_was_not_begun_is_removed_and_items_go_with_their_response() -> None:
    made = Made()
    stored, builder = made.begin()
    made.store.settle(stored, builder)
    assert not made.has(stored)
    whole = made.whole()
    ((item_id, item),) = whole.output.items()
    assert made.store.item(Tenant("a"), item_id) == item
    assert made.store.item(Tenant("b"), item_id) is None
    made.store.delete(whole)
    assert made.store.item(Tenant("a"), item_id) is None
    assert made.store.bytes == 0


# --- routes ---


@pytest.fixture
def keyed(engine: FakeEngine, tmp_path: Path) -> Caller:
    file = tmp_path / "keys.toml"
    file.write_text("".join(f'[keys.{name}]\nkey = "sk-{name}"\nadmin = {str(name == "admin").lower()}\n'
                            for name in ("alice", "bob", "admin")))  # fmt: skip
    file.chmod(0o600)
    return Caller(engine, ServerConfig(api_key_file=str(file)))


def test_a_response_belongs_to_its_key(keyed: Caller) -> None:
    made = keyed.post(PATH, {"input": "hi"}, headers=ALICE).json()
    own = f"{PATH}/{made['id']}"
    assert keyed.get(own, headers=ALICE).json() == made
    (item,) = made["output"]
    for other in (BOB, ADMIN):
        for method, path in (("GET", own), ("DELETE", own), ("POST", f"{own}/cancel"), ("GET", f"{own}/input_items")):
            check_error(keyed.request(method, path, headers=other), 404, "response_id", "response_not_found")
        continued = keyed.post(PATH, {"input": "hi", "previous_response_id": made["id"]}, headers=other)
        check_error(continued, 404, "previous_response_id", "previous_response_not_found")
        reference = {"input": [{"type": "item_reference", "id": item["id"]}]}
        check_error(keyed.post(PATH, reference, headers=other), 404, "input[0].id", "item_not_found")
    assert keyed.request("DELETE", own, headers=ALICE).json() == {
        "id": made["id"], "object": "response", "deleted": True,
    }  # fmt: skip
    check_error(keyed.get(own, headers=ALICE), 404, "response_id", "response_not_found")


def test_a_response_that_is_not_to_be_stored_is_not(caller: Caller) -> None:
    made = caller.post(PATH, {"input": "hi", "store": False}).json()
    assert made["store"] is False
    check_error(caller.get(f"{PATH}/{made['id']}"), 404, "response_id")
    assert len(caller.app.state.service.responses) == 0


def test_a_refused_response_is_not_stored(caller: Caller) -> None:
    caller.engine.script = lambda request: [error_delta(request, "no", 400)]
    check_error(caller.post(PATH, {"input": "hi"}), 400)
    assert len(caller.app.state.service.responses) == 0


def test_input_items_come_in_pages(caller: Caller) -> None:
    items = [{"role": "user", "content": str(i)} for i in range(5)]
    made = caller.post(PATH, {"input": items, "instructions": "x"}).json()
    own = f"{PATH}/{made['id']}/input_items"

    def texts(page: dict[str, Any]) -> list[str]:
        return [item["content"][0]["text"] for item in page["data"]]

    page = caller.get(f"{own}?limit=2&order=asc").json()
    assert (texts(page), page["has_more"], page["object"]) == (["0", "1"], True, "list")
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
    page = caller.get(f"{own}?limit=3&order=asc&after={page['last_id']}").json()
    assert (texts(page), page["has_more"]) == (["2", "3", "4"], False)
    assert texts(caller.get(own).json()) == ["4", "3", "2", "1", "0"]
    empty = caller.get(f"{own}?order=asc&after={page['last_id']}").json()
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=1e1", "limit"), ("limit=%C2%B2", "limit"),
     (f"limit={'1' * 5000}", "limit"), ("order=up", "order"), ("after=x", "after"), ("page=2", "page"),
     ("include[]=x", "include"), ("before=x", "before")],
)  # fmt: skip
def test_bad_queries_of_input_items(caller: Caller, query: str, param: str) -> None:
    made = caller.post(PATH, {"input": "hi"}).json()
    check_error(caller.get(f"{PATH}/{made['id']}/input_items?{query}"), 400, param)


def test_queries_of_a_response(caller: Caller) -> None:
    own = f"{PATH}/{caller.post(PATH, {'input': 'hi'}).json()['id']}"
    fine = "include[]=message.output_text.logprobs&stream=false&include_obfuscation=false"
    assert caller.get(f"{own}?{fine}").status_code == 200
    for query, param in (("stream=true", "stream"), ("starting_after=3", "starting_after"), ("x=1", "x")):
        check_error(caller.get(f"{own}?{query}"), 400, param, "unsupported_parameter")


def test_routes_are_counted_by_their_pattern(caller: Caller) -> None:
    caller.get(f"{PATH}/x/input_items")
    caller.post(f"{PATH}/x/cancel")
    caller.get(f"{PATH}/x/y/z")
    text = caller.get("/metrics").text
    for route in ("/v1/responses/{response_id}/input_items", "/v1/responses/{response_id}/cancel", "other"):
        assert f'route="{route}",status="404"' in text


# --- cancelling ---


@pytest.fixture
def http(engine: FakeEngine, live: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live, timeout=60) as client:
        yield client


def wait_for_status(engine: FakeEngine, http: httpx.Client, made: dict[str, Any], status: str) -> dict[str, Any]:
    own = f"{PATH}/{made['id']}"
    engine.wait_for(lambda: http.get(own).json()["status"] == status)
    return http.get(own).json()


def test_a_background_response_ends_without_its_client(engine: FakeEngine, http: httpx.Client) -> None:
    made = http.post(PATH, json={"input": "hi", "background": True}).json()
    assert (made["status"], made["output"], made["background"]) == ("queued", [], True)
    final = wait_for_status(engine, http, made, "completed")
    assert final["output"][0]["content"][0]["text"] == "Hello, world!"
    error = http.post(f"{PATH}/{made['id']}/cancel")
    assert "only one that is being generated" in check_error(error, 400, "response_id", "response_not_cancellable")


def test_a_background_response_is_cancelled(engine: FakeEngine, http: httpx.Client) -> None:
    engine.script = one_word
    made = http.post(PATH, json={"input": "hi", "background": True}).json()
    shown = wait_for_status(engine, http, made, "in_progress")
    assert shown["output"][0]["content"][0]["text"] == "word"
    continued = http.post(PATH, json={"input": "x", "previous_response_id": made["id"]})
    assert "cancel it" in check_error(continued, 400, "previous_response_id", "response_not_complete")
    for _ in range(2):
        cancelled = http.post(f"{PATH}/{made['id']}/cancel")
        assert cancelled.status_code == 200
        assert (cancelled.json()["status"], cancelled.json()["completed_at"]) == ("cancelled", None)
    assert len(engine.aborted) == 1
    assert http.get(f"{PATH}/{made['id']}").json() == cancelled.json()
    assert (
        http.post(PATH, json={"input": "x", "previous_response_id": made["id"], "background": True}).status_code == 200
    )


def test_a_background_response_that_fails(engine: FakeEngine, http: httpx.Client) -> None:
    engine.script = lambda request: [0.01, error_delta(request, "it broke", 500)]
    made = http.post(PATH, json={"input": "hi", "background": True}).json()
    final = wait_for_status(engine, http, made, "failed")
    assert final["error"] == {"code": "server_error", "message": "it broke"}
    continued = http.post(PATH, json={"input": "x", "previous_response_id": made["id"]})
    assert "continue the one before it" in check_error(continued, 400, "previous_response_id")


def test_a_background_response_that_is_refused_at_once_is_an_http_error(engine: FakeEngine, http: httpx.Client) -> None:
    engine.script = one_word
    body = {"input": "hi", "background": True, "rid": "same"}
    assert http.post(PATH, json=body).status_code == 200
    assert "in use" in check_error(http.post(PATH, json=body), 400, "rid")
    assert "radixrt_stored_responses 1.0" in without_model(http.get("/metrics").text).splitlines()


def test_a_running_stream_is_cancelled(engine: FakeEngine, http: httpx.Client) -> None:
    engine.script = one_word
    with http.stream("POST", PATH, json={"input": "hi", "stream": True}) as stream:
        lines = stream.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        response_id = first.partition('"id":"')[2].partition('"')[0]
        cancelled = http.post(f"{PATH}/{response_id}/cancel").json()
        last = list(lines)[-2]
    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["status"] == "incomplete"
    assert '"type":"response.incomplete"' in last
    assert '"status":"cancelled"' in last


def test_a_running_response_is_deleted_and_aborted(engine: FakeEngine, http: httpx.Client) -> None:
    engine.script = one_word
    made = http.post(PATH, json={"input": "hi", "background": True}).json()
    assert http.delete(f"{PATH}/{made['id']}").json()["deleted"] is True
    engine.wait_for(lambda: len(engine.aborted) == 1 and engine.client.open_requests == 0)
    check_error(http.get(f"{PATH}/{made['id']}"), 404, "response_id")
    lines = without_model(http.get("/metrics").text).splitlines()
    assert {"radixrt_stored_responses 0.0", "radixrt_stored_response_bytes 0.0"} <= set(lines)


@pytest.mark.parametrize(("stream", "leave"), [(True, lambda sent: len(sent) > 1), (False, None)])
def test_a_client_that_leaves(caller: Caller, stream: bool, leave: Callable[..., bool] | None) -> None:
    """A stream is stored as cancelled, since its client knows the id; nobody knows that of another response."""
    engine = caller.engine
    engine.script = one_word if stream else lambda request: [60.0]
    body = {"input": "hi", "stream": stream}
    asgi_call(caller.app, PATH, body, leave=leave or (lambda sent: bool(engine.requests)))
    engine.wait_for(lambda: len(engine.aborted) == 1)
    store = caller.app.state.service.responses
    if not stream:
        assert (len(store), store.bytes) == (0, 0)
        return
    (response_id,) = store._by_tenant[""]
    final = caller.get(f"{PATH}/{response_id}").json()
    assert final["status"] == "cancelled"
    assert final["output"][0]["status"] == "incomplete"


def test_a_response_is_aborted_by_its_id(engine: FakeEngine, http: httpx.Client) -> None:
    engine.script = one_word
    made = http.post(PATH, json={"input": "hi", "background": True}).json()
    assert http.post("/abort", json={"rid": made["id"]}).json() == {"aborted": 1}
    wait_for_status(engine, http, made, "cancelled")
