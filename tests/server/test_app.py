from __future__ import annotations

import threading

import httpx
import pytest

from radixrt._version import __version__
from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig
from radixrt.messages.client import RequestOutput
from radixrt.messages.scheduler import ControlReply
from radixrt.server import create_app
from tests.server.fake_engine import MODEL, FakeEngine, error_delta, speak, stats
from tests.server.helpers import Caller, check_error, events

# --- health, version, models ---


def test_health_follows_the_engine(engine: FakeEngine) -> None:
    caller = Caller(engine)
    assert caller.get("/health").status_code == 200
    assert caller.request("HEAD", "/health").status_code == 200
    engine.client.draining = True
    assert "shutting down" in check_error(caller.get("/health"), 503, None, "unavailable")
    check_error(caller.chat(), 503)
    engine.client.draining = False
    engine.client.fail("the tokenizer died (exit code -9)")
    assert "exit code -9" in check_error(caller.get("/health"), 503)
    check_error(caller.chat(stream=True), 503)


def test_health_is_503_until_the_engine_is_ready(engine: FakeEngine) -> None:
    engine.client = EngineClient(engine)
    caller = Caller(engine)
    assert "starting" in check_error(caller.get("/health"), 503)
    check_error(caller.chat(), 503)
    assert caller.get("/v1/models").status_code == 200
    assert caller.get("/metrics").status_code == 200


def test_version(caller: Caller) -> None:
    assert caller.get("/version").json() == {"version": __version__}


def test_models(caller: Caller) -> None:
    listing = caller.get("/v1/models").json()
    assert listing["object"] == "list"
    (card,) = listing["data"]
    assert card["id"] == MODEL
    assert card["object"] == "model"
    assert isinstance(card["created"], int)
    assert card["max_model_len"] == 520
    assert caller.get(f"/v1/models/{MODEL}").json() == card
    assert caller.get("/v1/models//models/fake").json() == card
    check_error(caller.get("/v1/models/other"), 404, "model", "model_not_found")


def test_model_is_the_served_name_or_the_models_own_or_none(caller: Caller) -> None:
    for model in (MODEL, "/models/fake", None):
        answer = caller.chat(model=model)
        assert answer.status_code == 200
        assert answer.json()["model"] == MODEL
    for response in (caller.chat(model="gpt-4"), caller.complete(model="gpt-4"), caller.chat(model="", stream=True)):
        check_error(response, 404, "model", "model_not_found")


# --- errors of the framework ---


def test_unknown_route_and_method_have_the_usual_shape(caller: Caller) -> None:
    check_error(caller.get("/v1/nothing"), 404)
    check_error(caller.post("/v1/models/"), 405)
    response = caller.get("/v1/chat/completions")
    check_error(response, 405)
    assert response.headers["allow"] == "POST"
    check_error(caller.get("/docs"), 404)


# --- request ids, keys, browsers ---


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-123_X", True), ("x" * 128, True), ("x" * 129, False), ("a b", False)]
)
def test_request_id_is_echoed_if_sane(caller: Caller, given: str, kept: bool) -> None:
    for path in ("/health", "/nope"):
        got = caller.get(path, headers={"x-request-id": given}).headers["x-request-id"]
        assert (got == given) is kept
        assert got


@pytest.mark.parametrize("by_environment", [False, True])
def test_api_key(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    if by_environment:
        monkeypatch.setenv("RADIXRT_API_KEY", "sécret")
    caller = Caller(engine, ServerConfig() if by_environment else ServerConfig(api_key="sécret"))
    for header in (None, "Bearer wrong", "Basic sécret", "sécret", "Bearer", "Bearer sécret2"):
        headers = {} if header is None else {"authorization": header.encode()}
        response = caller.get("/v1/models", headers=headers)
        check_error(response, 401, None, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
    for scheme in ("Bearer", "bearer"):
        assert caller.get("/v1/models", headers={"authorization": f"{scheme} sécret".encode()}).status_code == 200
    for path in ("/health", "/metrics", "/version"):
        assert caller.get(path).status_code == 200
    check_error(caller.post("/flush_cache"), 401)


def test_browsers_may_call_from_the_configured_origins(engine: FakeEngine) -> None:
    preflight = {"origin": "http://a", "access-control-request-method": "POST", "access-control-request-headers": "x"}
    caller = Caller(engine, ServerConfig(api_key="k"))
    response = caller.request("OPTIONS", "/v1/chat/completions", headers=preflight)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    refused = caller.get("/v1/models", headers={"origin": "http://a"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "*"
    caller = Caller(engine, ServerConfig(cors_origins="http://a, http://b"))
    assert caller.get("/health", headers={"origin": "http://b"}).headers["access-control-allow-origin"] == "http://b"
    assert "access-control-allow-origin" not in caller.get("/health", headers={"origin": "http://c"}).headers
    caller = Caller(engine, ServerConfig(cors_origins=""))
    assert "access-control-allow-origin" not in caller.get("/health", headers={"origin": "http://a"}).headers


# --- metrics ---


def test_metrics(caller: Caller) -> None:
    caller.engine.deliver(stats())
    caller.chat()
    caller.chat(stream=True)
    caller.engine.script = lambda request: [error_delta(request, "full", 429)]
    caller.chat()
    caller.get("/nope/1")
    caller.get("/v1/models/x")
    response = caller.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = set(response.text.splitlines())
    assert lines >= {
        "radixrt_up 1.0",
        "radixrt_open_requests 0.0",
        "radixrt_requests_waiting 3.0",
        "radixrt_requests_running 2.0",
        'radixrt_kv_slots{state="free"} 50.0',
        'radixrt_kv_slots{state="evictable"} 30.0',
        'radixrt_kv_slots{state="protected"} 15.0',
        'radixrt_kv_slots{state="private"} 5.0',
        "radixrt_kv_slots_capacity 100.0",
        "radixrt_prompt_tokens_total 1000.0",
        "radixrt_cached_tokens_total 400.0",
        "radixrt_generated_tokens_total 77.0",
        "radixrt_evicted_tokens_total 5.0",
        "radixrt_retractions_total 1.0",
        'radixrt_steps_total{mode="decode"} 22.0',
        'radixrt_step_seconds_total{part="runner"} 1.5',
        'radixrt_http_requests_total{route="/v1/chat/completions",status="200"} 2.0',
        'radixrt_http_requests_total{route="other",status="404"} 1.0',
        'radixrt_http_requests_total{route="/v1/models/{model}",status="404"} 1.0',
        'radixrt_completions_total{finish_reason="stop"} 2.0',
        'radixrt_completions_total{finish_reason="error"} 1.0',
        "radixrt_time_to_first_token_seconds_count 2.0",
        "radixrt_time_per_output_token_seconds_count 2.0",
        "radixrt_request_seconds_count 2.0",
    }


def test_two_servers_have_metrics_of_their_own(engine: FakeEngine) -> None:
    Caller(engine).chat()
    fresh = Caller(engine)
    assert "radixrt_request_seconds_count 0.0" in fresh.get("/metrics").text


# --- operators ---


def test_flush_cache(caller: Caller) -> None:
    assert caller.post("/flush_cache").json() == {"status": "ok", "message": "flushed"}
    caller.engine.control_reply = ControlReply("", ok=False, message="3 requests are running")
    assert "3 requests" in check_error(caller.post("/flush_cache"), 409, None, "not_flushed")
    caller.engine.client.fail("dead")
    check_error(caller.post("/flush_cache"), 503)


def test_abort_of_an_unknown_id_does_nothing(caller: Caller) -> None:
    assert caller.post("/abort", {"rid": "nobody"}).json() == {"aborted": 0}
    check_error(caller.post("/abort", {}), 400, "rid")
    check_error(caller.post("/abort", {"rid": 5}), 400, "rid")
    assert not caller.engine.aborted


@pytest.mark.parametrize("body", [{"rid": "r"}, {"rid": "chatcmpl-r"}, {"abort_all": True}])
@pytest.mark.parametrize("stream", [False, True])
def test_abort_ends_all_choices_of_a_request(engine: FakeEngine, live: str, body: dict, stream: bool) -> None:
    def script(request):
        yield RequestOutput(request.rid, "begun")
        yield 60.0

    engine.script = script
    answers: list[httpx.Response] = []
    request = {"messages": [{"role": "user", "content": "x"}], "n": 2, "rid": "r", "stream": stream}
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{live}/v1/chat/completions", json=request, timeout=10))
    )
    thread.start()
    engine.wait_for(lambda: len(engine.requests) == 2)
    assert httpx.post(f"{live}/abort", json=body).json() == {"aborted": 2}
    thread.join(10)
    (answer,) = answers
    choices = [c["choices"][0] for c in events(answer)] if stream else answer.json()["choices"]
    # OpenAI's clients know no "abort"; "length" is what they take for an incomplete answer.
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length", "length"]
    assert engine.client.open_requests == 0


def test_rid_in_use_is_refused(engine: FakeEngine, live: str) -> None:
    engine.script = lambda request: speak(request, ["x"] * 20, pause=0.05)
    url = f"{live}/v1/completions"
    with httpx.stream("POST", url, json={"prompt": "x", "max_tokens": 30, "rid": "r", "stream": True}) as stream:
        engine.wait_for(lambda: len(engine.requests) == 1)
        check_error(httpx.post(url, json={"prompt": "x", "rid": "r"}), 400, "rid")
        stream.read()
    assert httpx.post(url, json={"prompt": "x", "rid": "r"}, timeout=10).status_code == 200


def test_engine_errors_name_the_prompt_as_the_route_does(caller: Caller) -> None:
    caller.engine.script = lambda request: [error_delta(request, "too long", 400, "context_length_exceeded", "prompt")]
    for stream in (False, True):
        check_error(caller.chat(stream=stream), 400, "messages", "context_length_exceeded")
        check_error(caller.complete(stream=stream), 400, "prompt")
        check_error(caller.post("/generate", {"text": "x", "stream": stream}), 400, "text")
        check_error(caller.post("/generate", {"input_ids": [1], "stream": stream}), 400, "input_ids")
    caller.engine.script = lambda request: [error_delta(request, "no", 400, None, "stop")]
    check_error(caller.chat(), 400, "stop")


def test_create_app_needs_nothing_but_its_arguments(engine: FakeEngine) -> None:
    app = create_app(engine.client, ServerConfig(), "a/b")
    assert app.state.service.model_name == "a/b"
