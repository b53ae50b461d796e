"""/generate for clients of the engine: the engine's own requests and outputs, within the limits of every route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from radixrt.messages.client import ClientRequest, EngineReady, RequestOutput
from radixrt.messages.http import CONTENT_TYPE, EngineCall, FrameReader
from radixrt.messages.parts import ProgramHint
from radixrt.sampling_params import SamplingParams
from tests.client_requests import generating, scoring
from tests.server.fake_engine import FakeEngine, Sent, error_delta, info, speak
from tests.server.helpers import Caller, check_error

ACCEPT = {"Accept": CONTENT_TYPE}


def call(caller: Caller, request: ClientRequest, model: str | None = None) -> Any:
    body = msgspec.to_builtins(EngineCall(model=model, request=request))
    return caller.post("/generate", body, headers=ACCEPT)


def outputs_of(response: Any) -> list[RequestOutput]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == CONTENT_TYPE
    return list(FrameReader().read(response.content))


def test_a_request_reaches_the_engine_as_it_is(caller: Caller) -> None:
    hint = ProgramHint("p", "0/1", 3, 2, True)
    asked = generating("mine", SamplingParams(max_tokens=2), parts=["a", [1]], stream=True, priority=3, program=hint)
    *before, last = outputs_of(call(caller, asked))
    assert [output.text for output in (*before, last)] == ["Hello", ","]
    assert last.finish is not None
    (sent,) = caller.engine.requests
    envelope = msgspec.structs.replace(asked.envelope, rid=sent.rid)
    assert sent.request == msgspec.structs.replace(asked, envelope=envelope)
    assert sent.client == "127.0.0.1"


def test_a_request_that_generates_nothing(caller: Caller) -> None:
    (output,) = outputs_of(call(caller, scoring("r", ["a", "b"], prompt="x")))
    assert output.continuations is not None
    assert output.continuations.token_ids == [[0], [1]]


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (generating("r", SamplingParams(n=2), prompt="x"), "n"),
        (generating("r", parts=["x"] * 65_537), "input_parts"),
        (generating("", prompt="x"), "rid"),
        (generating("r", prompt="x", priority=2**31), "priority"),
        (generating("r", prompt="x", cache_salt="s" * 257), "cache_salt"),
        (generating("r", prompt="x", timeout_s=-1.0), "timeout"),
        (generating("r", prompt="x", program=ProgramHint("")), "program.id"),
        (generating("r", SamplingParams(temperature=-1.0), prompt="x"), "temperature"),
        (msgspec.structs.replace(generating("r", prompt="x"), rows=[]), "prompts"),
    ],
)
def test_limits(caller: Caller, request_: ClientRequest, param: str) -> None:
    check_error(call(caller, request_), 400, param)
    assert not caller.engine.requests


def test_a_body_of_another_form(caller: Caller) -> None:
    check_error(caller.post("/generate", {"text": "x"}, headers=ACCEPT), 400, "request", code="missing_field")
    check_error(call(caller, generating("r", prompt="x"), model="other"), 404, "model")


def test_an_error_after_the_first_output_is_the_last_frame(engine: FakeEngine, caller: Caller) -> None:
    def script(request: Sent) -> Iterable[RequestOutput | float]:
        first, *_ = speak(request, ["a", "b"])
        assert isinstance(first, RequestOutput)
        return [first, error_delta(request, "broken", 503, "engine_error")]

    engine.script = script
    first, last = outputs_of(call(caller, generating("r", prompt="x", stream=True)))
    assert first.text == "a"
    assert last.finish is not None
    assert last.finish.error is not None
    assert (last.finish.error.message, last.finish.error.status) == ("broken", 503)


def test_properties_of_the_engine(caller: Caller) -> None:
    response = caller.get("/v1/models", headers=ACCEPT)
    assert msgspec.msgpack.decode(response.content, type=EngineReady) == info()
    assert isinstance(caller.get("/v1/models").json()["data"], list)
