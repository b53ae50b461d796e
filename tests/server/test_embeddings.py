"""/v1/embeddings: forms of the input, encodings, envelope, and errors that name the field."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from radixrt.messages.client import Input, RelevanceInfo, RequestOutput, TextInput, TokenInput
from radixrt.messages.parts import Finish, FinishError
from radixrt.messages.wire import pack_f32, pack_i32
from radixrt.server.access.tenants import Tenant
from tests.client_requests import pooling
from tests.server.fake_engine import FakeEngine, Sent, info
from tests.server.helpers import Caller, check_error


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("hi", [TextInput("hi", "input", before=0)]),
        (["a", "b"], [TextInput("a", "input[0]", before=0), TextInput("b", "input[1]", before=0)]),
        ([1, 2], [TokenInput(pack_i32([1, 2]), "input")]),
        ([[1, 2], [3]], [TokenInput(pack_i32([1, 2]), "input[0]"), TokenInput(pack_i32([3]), "input[1]")]),
    ],
)
def test_inputs(caller: Caller, given: Any, sent: list[Input]) -> None:
    fields = {"dimensions": 2, "normalize": False, "priority": 3, "cache_salt": "s", "timeout": 9, "rid": "r"}
    texts = []
    if isinstance(sent[0], TextInput):
        fields |= {"prompt": "Find: "}
        texts = [TextInput("Find: ")]
    response = caller.post("/v1/embeddings", {"input": given, "model": "fake", **fields})
    count = len(sent)
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": pytest.approx([float(i), 0.1])} for i in range(count)
        ],
        "model": "fake",
        "usage": {"prompt_tokens": 10, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    rid = response.headers["x-request-id"]
    (asked,) = caller.engine.questions
    expected = pooling(rid, sent, priority=3, cache_salt="s", timeout_s=9.0)
    assert asked.request == msgspec.structs.replace(expected, texts=texts)


def test_formats(caller: Caller) -> None:
    body = caller.post("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64"}).json()
    nulls = dict.fromkeys(("encoding_format", "dimensions", "normalize", "prompt", "prompt_name", "model", "program"))
    plain = caller.post("/v1/embeddings", {"input": ["a", "b"], **nulls}).json()
    assert [each["embedding"] for each in plain["data"]] == [pytest.approx([i, 0.1]) for i in (0.0, 1.0)]
    assert [base64.b64decode(each["embedding"]) for each in body["data"]] == [
        pack_f32([0.0, 0.1]), pack_f32([1.0, 0.1]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": [1000]}, "input"),
        ({"input": [[1], [1000]]}, "input[1]"),
        ({"input": [[1], [1] * 513]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": "many"}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 2**40}, "dimensions"),
        ({"input": "a", "normalize": 1}, "normalize"),
        ({"input": "a", "prompt_name": 5}, "prompt_name"),
        ({"input": "a", "prompt": ["b"]}, "prompt"),
        ({"input": "a", "timeout": -1}, "timeout"),
        ({"input": "a", "rid": ""}, "rid"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_field_is_checked_and_named(caller: Caller, body: dict[str, Any], param: str) -> None:
    check_error(caller.post("/v1/embeddings", body), 400, param)
    assert not caller.engine.questions


def test_errors_of_the_engine_have_the_clients_names(engine: FakeEngine, caller: Caller) -> None:
    def refuse(question: Sent) -> RequestOutput:
        name = question.rows[-1].input.param
        error = FinishError(f"{name} is too long", name, "context_length_exceeded", 400)
        return RequestOutput(question.rid, finish=Finish("error", error=error))

    engine.answer = refuse
    assert check_error(caller.post("/v1/embeddings", {"input": "x"}), 400, "input") == "input is too long"
    assert check_error(caller.post("/v1/embeddings", {"input": ["x", "y"]}), 400, "input[1]") == "input[1] is too long"
    engine.wait_for(lambda: engine.client.open_requests == 0)


def test_an_aborted_request_is_an_error(engine: FakeEngine, caller: Caller) -> None:
    engine.answer = lambda question: RequestOutput(question.rid, finish=Finish("abort"))
    assert caller.post("/v1/embeddings", {"input": "x"}).status_code == 499


def test_another_model(caller: Caller) -> None:
    check_error(caller.post("/v1/embeddings", {"input": "x", "model": "other"}), 404, "model")


def test_a_tenants_prefixes_are_its_own() -> None:
    request = pooling("r", [TextInput("x")], cache_salt="s")
    alice, bob = (Tenant(name).own(request, "1") for name in ("alice", "bob"))
    assert alice.envelope.cache_salt != bob.envelope.cache_salt
    grouped = [Tenant(name, cache_group="g").own(request, "1") for name in ("alice", "bob")]
    assert grouped[0].envelope.cache_salt == grouped[1].envelope.cache_salt


@pytest.mark.parametrize(("scorer", "lines"), [(None, 1), ("tokens", 1), ("cosine", 0)])
def test_vectors_of_a_model_that_was_not_trained_to_embed_are_warned_of_once(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, scorer: Any, lines: int
) -> None:
    engine.deliver(msgspec.structs.replace(info(), relevance=RelevanceInfo(scorer)))
    caller = Caller(engine)
    for _ in range(2):
        assert caller.post("/v1/embeddings", {"input": "x"}).status_code == 200
    found = [record for record in caplog.records if "was not trained to embed" in record.getMessage()]
    assert len(found) == lines
