"""/v1/rerank and /v1/score: order, pairs, and errors that name the field."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from radixrt.messages.client import EmbedReq, RequestOutput
from radixrt.messages.parts import Finish, FinishError, Usage
from radixrt.messages.wire import pack_f32
from tests.server.fake_engine import FakeEngine, info
from tests.server.helpers import Caller, check_error

ANGLES = {"east": 0.0, "north-east": 0.25, "north": 0.5, "west": 1.0}
USAGE = {"prompt_tokens": 9, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2}}


@pytest.fixture(autouse=True)
def directions(engine: FakeEngine) -> None:
    def embed(question: EmbedReq) -> RequestOutput:
        angles = np.pi * np.array([ANGLES[text] for text in question.prompts or ()])
        vectors = pack_f32(np.stack([np.cos(angles), np.sin(angles)], 1))
        return RequestOutput(question.rid, finish=Finish("stop"), usage=Usage(9, 0, 2), embeddings=vectors)

    engine.answer = embed


def test_rerank(caller: Caller) -> None:
    body = {
        "query": "east",
        "documents": ["north", "east", {"text": "west"}, "north-east"],
        "rid": "r",
        "model": "fake",
    }
    answer = caller.post("/v1/rerank", body).json()
    assert {name: answer[name] for name in ("id", "model", "usage")} == {"id": "r", "model": "fake", "usage": USAGE}
    assert [each["index"] for each in answer["results"]] == [1, 3, 0, 2]
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == pytest.approx([1.0, 0.5**0.5, 0.0, -1.0], abs=1e-6)
    assert [each["document"]["text"] for each in answer["results"]] == ["east", "north-east", "north", "west"]
    (question,) = caller.engine.questions
    assert question.prompts == ["east", "north", "east", "west", "north-east"]
    assert question.normalize is True
    best = caller.post("/v1/rerank", {**body, "top_n": 2, "return_documents": False}).json()["results"]
    assert best == [{"index": 1, "relevance_score": scores[0]}, {"index": 3, "relevance_score": scores[1]}]


@pytest.mark.parametrize(
    ("first", "second", "scores"),
    [
        ("east", "west", [-1.0]),
        ("east", ["north", "east"], [0.0, 1.0]),
        (["north", "east"], "east", [0.0, 1.0]),
        (["north", "east"], ["north", "west"], [1.0, -1.0]),
    ],
)
def test_score(caller: Caller, first: Any, second: Any, scores: list[float]) -> None:
    answer = caller.post("/v1/score", {"text_1": first, "text_2": second}).json()
    assert answer["object"] == "list"
    assert [(each["index"], each["object"]) for each in answer["data"]] == [(i, "score") for i in range(len(scores))]
    assert [each["score"] for each in answer["data"]] == pytest.approx(scores, abs=1e-6)
    assert answer["usage"] == USAGE


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2048}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a", 5]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [{}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "timeout": -1}, "timeout"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": [], "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["a"] * 1025}, "text_2"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_field_is_checked_and_named(caller: Caller, path: str, body: dict[str, Any], param: str) -> None:
    check_error(caller.post(path, body), 400, param)
    assert not caller.engine.questions


@pytest.mark.parametrize(
    ("path", "body", "index", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, 0, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}, 2, "documents[1]"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, 0, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, 2, "text_2[1]"),
    ],
)
def test_errors_of_the_engine_have_the_clients_names(
    caller: Caller, path: str, body: dict[str, Any], index: int, param: str
) -> None:
    error = FinishError(f"prompts[{index}] is too long", f"prompts[{index}]", "context_length_exceeded", 400)
    caller.engine.answer = lambda question: RequestOutput(question.rid, finish=Finish("error", error=error))
    assert check_error(caller.post(path, body), 400, param) == f"{param} is too long"


@pytest.mark.parametrize("body", [{"query": "a", "documents": ["b"]}, {"text_1": "a", "text_2": "b"}])
def test_a_model_that_declares_no_pooling_is_refused(caller: Caller, body: dict[str, Any]) -> None:
    caller.engine.deliver(msgspec.structs.replace(info(), declares_pooling=False))
    path = "/v1/rerank" if "query" in body else "/v1/score"
    check_error(caller.post(path, body), 400, "model", "not_an_embedding_model")
