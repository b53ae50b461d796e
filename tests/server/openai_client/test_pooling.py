"""Decisions, embeddings and what is refused of them."""

from __future__ import annotations

import math

import httpx
import openai
import pytest


def test_decisions(client: openai.OpenAI, model_name: str) -> None:
    questions = [
        {"type": "predicate", "name": "paris", "instructions": "The text is about a city."},
        {"type": "choice", "instructions": "Where is it?", "choices": [{"value": "France"}, {"value": "Mars"}]},
        {"type": "score", "instructions": "How long is it?", "levels": [{"label": "short"}, {"label": "long"}]},
    ]
    made = client.decisions.create(model=model_name, input="Paris is large.", questions=questions)
    predicate, choice, score = made.answers
    assert (predicate.type, predicate.name) == ("predicate", "paris")
    assert 0.0 < predicate.probability < 1.0
    assert choice.choice == "France"
    assert sum(p.probability for p in choice.probabilities) == pytest.approx(1.0)
    assert score.score == pytest.approx(score.probabilities[1].probability)
    assert made.usage.output_tokens == 0
    assert made.usage.input_tokens > 0


def test_a_decision_that_is_wrong_names_its_field(client: openai.OpenAI, model_name: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.decisions.create(model=model_name, input="x", questions=[{"type": "choice", "instructions": "?"}])
    assert raised.value.param == "questions[0].choices"


def test_choices_are_scored_and_tokens_told(server_url: str) -> None:
    template = httpx.get(f"{server_url}/chat_template", timeout=60).json()
    assert "default" in template["templates"]
    body = {"text": "The capital of France is", "choices": [" Berlin", " Paris"], "return_prompt_ids": True}
    answer = httpx.post(f"{server_url}/v1/decisions", json=body, timeout=60).json()
    assert answer["text"] == " Paris"
    tokens = httpx.post(f"{server_url}/tokenize", json={"prompt": body["text"]}, timeout=60).json()["tokens"]
    assert answer["prompt_ids"] == tokens
    assert httpx.post(f"{server_url}/detokenize", json={"tokens": tokens}, timeout=60).json() == {
        "prompt": body["text"]
    }


def test_embeddings(client: openai.OpenAI, model_name: str) -> None:
    texts = ["The capital of France is Paris.", "Paris is the capital of France.", "def f(x): return x + 1"]
    answer = client.embeddings.create(model=model_name, input=texts)  # base64, decoded by the client
    assert answer.model == model_name
    assert [each.index for each in answer.data] == [0, 1, 2]
    vectors = [each.embedding for each in answer.data]
    assert [math.fsum(x * x for x in vector) for vector in vectors] == pytest.approx([1.0] * 3, abs=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 15
    near, far = (sum(a * b for a, b in zip(vectors[0], vectors[i], strict=True)) for i in (1, 2))
    assert near > far
    plain = client.embeddings.create(model=model_name, input=texts[0], encoding_format="float").data[0].embedding
    assert plain == pytest.approx(vectors[0], abs=1e-2)  # bfloat16, in another batch
    short = client.embeddings.create(model=model_name, input=[[1, 2], [3]], dimensions=32)
    assert [len(each.embedding) for each in short.data] == [32, 32]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [["a"]]}, "input[0][0]"),
        ({"input": "a", "dimensions": 10**6}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "extra_body": {"prompt_name": "query"}}, "prompt_name"),
        ({"input": [3], "extra_body": {"prompt": "Find: "}}, "prompt"),
        ({"input": ["a", "a " * 20_000]}, "input[1]"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_embedding_that_is_wrong_names_its_field(
    client: openai.OpenAI, model_name: str, fields: dict, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model=model_name, **fields)
    assert raised.value.param == param


def test_a_generative_model_does_not_rerank(server_url: str) -> None:
    answer = httpx.post(f"{server_url}/v1/rerank", json={"query": "a", "documents": ["b"]}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "not_a_scoring_model"
