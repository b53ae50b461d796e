"""/v1/rerank, /v1/score and /classify: requests to the engine, forms of the answers, and errors that name the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from radixrt.messages.client import RelevanceInfo, RequestOutput, TextInput, TokenInput
from radixrt.messages.parts import Finish, FinishError
from radixrt.messages.request import Envelope
from radixrt.messages.wire import pack_i32
from tests.server.fake_engine import FakeEngine, Sent, info
from tests.server.helpers import Caller, check_error

USAGE = {"prompt_tokens": 10, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}


def pairs(question: Sent) -> list[tuple[str, str, str | None]]:
    """Query, document and instruction of each row."""
    texts = [each.text for each in question.texts]
    given = [row.input for row in question.rows]
    return [
        (texts[each.query], texts[each.document], None if each.instruction < 0 else texts[each.instruction])
        for each in given
    ]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_rerank(caller: Caller, path: str) -> None:
    """The score of the fake engine's pair i is i / 10."""
    body = {"query": "q", "documents": ["a", {"text": "b"}, "c"], "rid": "r", "model": "fake"}
    answer = caller.post(path, body).json()
    scores = [each.pop("relevance_score") for each in answer["results"]]
    assert scores == pytest.approx([0.2, 0.1, 0.0])
    texts = [{"index": i, "document": {"text": text}} for i, text in ((2, "c"), (1, "b"), (0, "a"))]
    assert answer == {"id": "r", "model": "fake", "results": texts, "usage": USAGE}
    (question,) = caller.engine.questions
    rid = question.rid
    assert pairs(question) == [("q", "a", None), ("q", "b", None), ("q", "c", None)]
    assert rid == question.rid
    best = caller.post("/v1/rerank", {**body, "top_n": 2, "return_documents": False}).json()["results"]
    assert best == [{"index": i, "relevance_score": pytest.approx(i / 10)} for i in (2, 1)]


def test_score_without_a_version(caller: Caller) -> None:
    answers = [caller.post(path, {"text_1": "a", "text_2": "b"}).json()["data"] for path in ("/v1/score", "/score")]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("fields", "queries", "documents"),
    [
        ({"text_1": "a", "text_2": "b"}, ["a"], ["b"]),
        ({"text_1": "a", "text_2": ["b", "c"]}, ["a"], ["b", "c"]),
        ({"text_1": ["a", "b"], "text_2": "c"}, ["a", "b"], ["c"]),
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, ["a", "b"], ["c", "d"]),
        ({"queries": "a", "documents": ["b", "c"]}, ["a"], ["b", "c"]),
    ],
)
def test_score(caller: Caller, fields: dict[str, Any], queries: list[str], documents: list[str]) -> None:
    options = {"instruction": "Find it.", "use_activation": False, "priority": 2, "cache_salt": "s", "timeout": 9}
    answer = caller.post("/v1/score", {**fields, **options}).json()
    count = max(len(queries), len(documents))
    assert answer["data"] == [{"index": i, "object": "score", "score": pytest.approx(i / 10)} for i in range(count)]
    assert {name: answer[name] for name in ("object", "model", "usage")} == {
        "object": "list", "model": "fake", "usage": USAGE,
    }  # fmt: skip
    (question,) = caller.engine.questions
    sides = [each * (count if len(each) == 1 else 1) for each in (queries, documents)]
    assert pairs(question) == [(*pair, "Find it.") for pair in zip(*sides, strict=True)]
    assert question.envelope == Envelope(question.rid, 2, "s", 9.0)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classify(caller: Caller, path: str) -> None:
    caller.engine.deliver(msgspec.structs.replace(info(), labels=("bad", "good")))
    answer = caller.post(path, {"input": ["a", "b"], "rid": "r", "use_activation": False}).json()
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "id": "r",
        "object": "list",
        "model": "fake",
        "data": [
            {"index": 0, "label": "good", "probs": pytest.approx([0.0, 0.5]), "num_classes": 2},
            {"index": 1, "label": "bad", "probs": pytest.approx([1.0, 0.5]), "num_classes": 2},
        ],
        "usage": {"completion_tokens": 0, **USAGE},
    }
    columns = [pack_i32([1]), pack_i32([2])]
    for given, sent in (
        ("a", [TextInput("a", "input")]),
        ([1], [TokenInput(columns[0], "input")]),
        ([[1], [2]], [TokenInput(column, f"input[{i}]") for i, column in enumerate(columns)]),
    ):
        assert caller.post(path, {"input": given}).status_code == 200
        question = caller.engine.questions[-1]
        assert [row.input for row in question.rows] == sent
        assert (question.task, question.rows[0].pooling) == ("classify", "last")
    messages = [{"role": "user", "content": "hi"}]
    assert caller.post(path, {"messages": messages}).status_code == 200
    chat = caller.engine.questions[-1].chat
    assert chat.add_generation_prompt is False
    assert msgspec.json.decode(chat.messages) == messages


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
        ("/v1/rerank", {"query": "a", "documents": ["a"], "instruction": 5}, "instruction"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "use_activation": "no"}, "use_activation"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"queries": "a"}, "documents"),
        ("/v1/score", {"documents": "a"}, "queries"),
        ("/v1/score", {"queries": "a", "documents": "b", "text_1": "c"}, "text_1"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}, "documents"),
        ("/v1/score", {"text_1": [], "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["a"] * 1025}, "text_2"),
        ("/classify", {}, "input"),
        ("/classify", {"input": "a", "messages": [{"role": "user", "content": "b"}]}, "input"),
        ("/classify", {"input": []}, "input"),
        ("/classify", {"input": [[]]}, "input[0]"),
        ("/classify", {"input": ["a", 5]}, "input[1]"),
        ("/classify", {"input": [1000]}, "input"),
        ("/classify", {"input": ["a"] * 2049}, "input"),
        ("/classify", {"input": {"a": 1}}, "input"),
        ("/classify", {"messages": []}, "messages"),
        ("/classify", {"messages": [{"role": "user"}, 5]}, "messages[1]"),
        ("/classify", {"input": "a", "use_activation": 1}, "use_activation"),
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
        ("/classify", {"input": "a"}, 0, "input"),
        ("/classify", {"input": ["a", "b"]}, 1, "input[1]"),
    ],
)
def test_errors_of_the_engine_have_the_clients_names(
    caller: Caller, path: str, body: dict[str, Any], index: int, param: str
) -> None:
    def refuse(question: Sent) -> RequestOutput:
        name = (question.texts or [row.input for row in question.rows])[index].param
        error = FinishError(f"{name} is too long", name, "context_length_exceeded", 400)
        return RequestOutput(question.rid, finish=Finish("error", error=error))

    if path == "/classify":
        caller.engine.deliver(msgspec.structs.replace(info(), labels=("bad", "good")))
    caller.engine.answer = refuse
    assert check_error(caller.post(path, body), 400, param) == f"{param} is too long"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/classify", {"input": "a"}),
    ],
)
def test_an_aborted_request_is_an_error(engine: FakeEngine, caller: Caller, path: str, body: dict[str, Any]) -> None:
    if path == "/classify":
        engine.deliver(msgspec.structs.replace(info(), labels=("bad", "good")))
    engine.answer = lambda question: RequestOutput(question.rid, finish=Finish("abort"))
    assert caller.post(path, body).status_code == 499


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_a_model_that_scores_no_pairs_names_those_that_do(engine: FakeEngine, path: str) -> None:
    engine.deliver(msgspec.structs.replace(info(), relevance=RelevanceInfo()))
    body = {"query": "a", "documents": ["b"]} if path == "/v1/rerank" else {"text_1": "a", "text_2": "b"}
    message = check_error(Caller(engine).post(path, body), 400, "model", "not_a_scoring_model")
    for named in ("Qwen3-Reranker-0.6B", "--score-template qwen3-reranker", "Qwen3-Embedding-0.6B", "/v1/decisions"):
        assert named in message
