"""/v1/decisions: questions in OpenAI's form, choices in radixrt's own form, and errors in both."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, FinishError, TemplateText
from radixrt.messages.wire import pack_i32
from tests.client_requests import scoring
from tests.server.fake_engine import FakeEngine, Sent
from tests.server.helpers import Caller, check_error

PREDICATE = {"type": "predicate", "instructions": "It is about money."}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "billing"}, {"value": "support", "description": "all else"}, {"value": True}],
}
SCORE = {"type": "score", "instructions": [{"type": "input_text", "text": "How urgent?"}],
         "levels": [{"label": "low"}, {"label": "high", "description": "now"}]}  # fmt: skip


def shares(n: int) -> list[float]:
    weights = [math.exp(-i) for i in range(n)]
    return [w / sum(weights) for w in weights]


def messages_of(question: Sent) -> list[dict[str, str]]:
    assert question.chat is not None
    found: list[dict[str, str]] = json.loads(question.chat.messages)
    return found


def test_questions(caller: Caller) -> None:
    body = {"model": "fake", "input": "I was charged twice.", "questions": [PREDICATE, CHOICE, SCORE]}
    answer = caller.post("/v1/decisions", body).json()
    two, three = shares(2), shares(3)
    assert answer["model"] == "fake"
    assert answer["answers"][0] == {
        "type": "predicate", "name": None, "probability": pytest.approx(two[0]), "label_mass": 1.0,
        "usage": {"input_tokens": 10, "cached_tokens": 4},
    }  # fmt: skip
    choice = answer["answers"][1]
    assert (choice["name"], choice["choice"], choice["confidence"]) == ("team", "billing", pytest.approx(three[0]))
    assert [p["value"] for p in choice["probabilities"]] == ["billing", "support", True]
    assert [p["probability"] for p in choice["probabilities"]] == pytest.approx(three)
    score = answer["answers"][2]
    assert score["score"] == pytest.approx(two[1])
    assert [(p["value"], p["label"]) for p in score["probabilities"]] == [(0, "low"), (1, "high")]
    assert answer["usage"]["input_tokens"] == 30
    assert answer["usage"]["input_tokens_details"] == {"cached_tokens": 12, "cache_write_tokens": 18}
    asked = caller.engine.questions
    assert [q.rows[0].continuations.texts for q in asked] == [
        ["Yes", "No"],
        ['"billing"', '"support"', "true"],
        ['"low"', '"high"'],
    ]
    for question in asked:
        (message,) = messages_of(question)
        assert message["content"].startswith("I was charged twice.\n\n")


def test_input_as_messages(caller: Caller) -> None:
    given = [
        {"role": "developer", "content": "Be strict."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"b": 1}}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]},
    ]
    assert caller.post("/v1/decisions", {"input": given, "questions": [PREDICATE]}).status_code == 200
    messages = messages_of(caller.engine.questions[0])
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in messages[:3]] == ["Be strict.", 'a\n{"b":1}', "c\nd"]


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ({"text": "hi"}, {"prompt": "hi"}),
        ({"input_ids": [1, 2]}, {"input_ids": pack_i32([1, 2])}),
        ({"input_parts": ["a", [1], {"template": "t"}]}, {"parts": ["a", [1], TemplateText("t")]}),
    ],
)
def test_choices(caller: Caller, prompt: dict[str, Any], sent: dict[str, Any]) -> None:
    body = {
        **prompt,
        "choices": ["a", "b"],
        "method": "greedy",
        "rid": "r",
        "priority": 3,
        "cache_salt": "s",
        "timeout": 9,
    }
    response = caller.post("/v1/decisions", body)
    assert response.json() == {
        "choice": 0,
        "text": "a",
        "probabilities": pytest.approx(shares(2)),
        "logprobs": [0.0, -1.0],
        "scores": pytest.approx([math.log(p) for p in shares(2)]),
        "token_ids": [[0], [1]],
        "kept": 9,
        "meta_info": {
            "id": "r", "prompt_tokens": 10, "completion_tokens": 0, "cached_tokens": 4, "queue_s": 0.01,
            "prefill_s": 0.02,
        },
    }  # fmt: skip
    envelope = {"priority": 3, "cache_salt": "s", "timeout_s": 9.0}
    rid = response.headers["x-request-id"]
    assert [q.request for q in caller.engine.questions] == [scoring(rid, ["a", "b"], "greedy", **envelope, **sent)]
    assert caller.post("/v1/decisions", {**body, "return_prompt_ids": True}).json()["prompt_ids"] == list(range(10))


def test_choices_after_a_conversation(caller: Caller) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "choices": ["a"], "chat_template_kwargs": {"x": 1}}
    assert caller.post("/v1/decisions", body).json()["choice"] == 0
    (question,) = caller.engine.questions
    assert messages_of(question) == [{"role": "user", "content": "hi"}]
    assert question.chat.template_kwargs == b'{"x":1}'
    assert question.chat.add_generation_prompt


def question(**fields: Any) -> dict[str, Any]:
    return {"input": "x", "questions": [PREDICATE, {**CHOICE, **fields}]}


def content(part: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [part]}], "questions": [PREDICATE]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "questions"),
        ({"input": "x", "questions": [], "choices": []}, "questions"),
        ({"input": "x", "questions": []}, "questions"),
        ({"input": "x", "questions": [PREDICATE] * 401}, "questions"),
        ({"input": "x", "questions": "what?"}, "questions"),
        ({"questions": [PREDICATE]}, "input"),
        ({"input": 5, "questions": [PREDICATE]}, "input"),
        ({"input": [{"role": "robot", "content": "x"}], "questions": [PREDICATE]}, "input[0].role"),
        ({"input": [{"role": "user"}], "questions": [PREDICATE]}, "input[0].content"),
        ({"input": [{"type": "function_call"}], "questions": [PREDICATE]}, "input[0].type"),
        (content({"type": "input_image"}), "input[0].content[0].image_url"),
        (content({"type": "input_text"}), "input[0].content[0].text"),
        (content({"type": "input_json"}), "input[0].content[0].data"),
        (question(type="essay"), "questions[1].type"),
        (question(instructions=None), "questions[1].instructions"),
        (question(choices=None), "questions[1].choices"),
        (question(choices=[{"value": "a"}]), "questions[1].choices"),
        (question(choices=[{"value": str(i)} for i in range(256)]), "questions[1].choices"),
        (question(choices=[{"value": "a"}, {"value": "b"}, {"value": "a"}]), "questions[1].choices[2].value"),
        (question(choices=[{"value": "a"}, {"value": 5}]), "questions[1].choices[1].value"),
        (question(type="score", levels=[{"label": "a"}, {"label": "a"}]), "questions[1].levels[1].label"),
        (question(type="score"), "questions[1].levels"),
        ({"choices": ["a"]}, "text"),
        ({"choices": ["a"], "text": "x", "input_ids": [1]}, "text"),
        ({"choices": "a", "text": "x"}, "choices"),
        ({"choices": [5], "text": "x"}, "choices[0]"),
        ({"choices": ["a"], "text": "x", "method": "best"}, "method"),
        ({"choices": ["a"], "input_ids": [1000]}, "input_ids"),
        ({"choices": ["a"], "input_parts": [[-1]]}, "input_parts[0]"),
        ({"choices": ["a"], "messages": []}, "messages"),
        ({"choices": ["a"], "text": "x", "timeout": -1}, "timeout"),
        ({"choices": ["a"], "text": "x", "rid": ""}, "rid"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_each_field_is_checked_and_named(caller: Caller, body: dict[str, Any], param: str) -> None:
    check_error(caller.post("/v1/decisions", body), 400, param)
    assert not caller.engine.questions


def test_invalid_utf8_in_json_names_the_part(caller: Caller) -> None:
    body = (
        b'{"input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": "\xff"}}]}], "questions": [%s]}'
    )
    answer = caller.post(
        "/v1/decisions", content=body % json.dumps(PREDICATE).encode(), headers={"content-type": "application/json"}
    )
    check_error(answer, 400, "input[0].content[0].data", "invalid_utf8")


def test_errors_of_the_engine_have_the_clients_names(engine: FakeEngine, caller: Caller) -> None:
    def refuse(question: Sent) -> RequestOutput:
        param = "prompt" if question.chat is None else "messages"
        return RequestOutput(
            question.rid, finish=Finish("error", error=FinishError(f"{param} is bad", param, None, 400))
        )

    engine.answer = refuse
    assert check_error(caller.post("/v1/decisions", {"text": "x", "choices": ["a"]}), 400, "text") == "text is bad"
    check_error(caller.post("/v1/decisions", {"input": "x", "questions": [PREDICATE, CHOICE]}), 400, "input")
    engine.wait_for(lambda: engine.client.open_requests == 0)


def test_an_aborted_request_is_an_error(engine: FakeEngine, caller: Caller) -> None:
    engine.answer = lambda question: RequestOutput(question.rid, finish=Finish("abort"))
    assert caller.post("/v1/decisions", {"text": "x", "choices": ["a"]}).status_code == 499


def test_another_model(caller: Caller) -> None:
    check_error(caller.post("/v1/decisions", {"text": "x", "choices": ["a"], "model": "other"}), 404, "model")
