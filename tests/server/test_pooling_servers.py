"""Real servers: a sequence classification model on two ranks, and a model that embeds, with prompts, and reranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tokenizers

from tests.equivalence.reference import reference_logits as reference_token_logits
from tests.equivalence.test_classification import reference_logits, sigmoid
from tests.equivalence.test_embedding import as_embedding_model
from tests.equivalence.test_relevance import DOCUMENTS, QUERY, TEMPLATE, ids_of, rendered
from tests.server_process import ServerProcess
from tests.tiny_models import make_tiny_classifier

OPTIONS = ("--dtype", "float32", "--kv-cache-tokens", "1024", "--context-length", "256", "--num-threads", "1")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_classifier(tmp_path_factory.mktemp("classifier") / "m", "qwen2", num_labels=1)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def classifier_url(classifier: Path) -> Iterator[str]:
    server = ServerProcess("--model", str(classifier), "--tp", "2", *OPTIONS)
    try:
        yield server.wait_ready().url
    finally:
        server.stop()


def post(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url, json=body, timeout=120)


def test_a_classifier_on_two_ranks(classifier: Path, classifier_url: str) -> None:
    texts = ["a small engine", QUERY, "Numbers 0 1 2"]
    expected = reference_logits(classifier, [ids_of(classifier, [text]) for text in texts])
    answer = post(f"{classifier_url}/classify", {"input": texts}).json()
    assert [each["label"] for each in answer["data"]] == ["LABEL_0"] * 3
    np.testing.assert_allclose([each["probs"] for each in answer["data"]], expected, atol=1e-5)
    prompts = [rendered(classifier, document)[: -len(ids_of(classifier, ["<|im_start|>A:"]))] for document in DOCUMENTS]
    logits = reference_logits(classifier, prompts)[:, 0]
    ranked = post(f"{classifier_url}/v1/rerank", {"query": QUERY, "documents": DOCUMENTS}).json()["results"]
    order = [each["index"] for each in ranked]
    assert sorted(order) == list(range(len(DOCUMENTS)))
    assert (np.diff(logits[order]) <= 2e-5).all(), "scores fall, but for what rounding swaps"
    for each in ranked:
        assert each["relevance_score"] == pytest.approx(logits[each["index"]], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/classify", {"input": ["a", ""]}, "input[1]"),
        ("/classify", {"input": [[1], [600]]}, "input[1]"),
        ("/classify", {"input": "a " * 600}, "input"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c " * 600]}, "documents[1]"),
        ("/v1/embeddings", {"input": "a"}, "model"),
        ("/v1/completions", {"prompt": "a"}, "model"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_classifier_refuses(classifier_url: str, path: str, body: dict[str, Any], param: str) -> None:
    answer = post(classifier_url + path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def log_odds(folder: Path, yes: int, no: int) -> np.ndarray:
    found = [reference_token_logits(folder, rendered(folder, each))[-1] for each in DOCUMENTS]
    return np.array([(logits[yes] - logits[no]).item() for logits in found])


def test_an_embedding_model_with_prompts_that_also_answers(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """One model embeds, with the prompts of its folder, and reranks by the template of the option."""
    folder = as_embedding_model(tiny_model("qwen3"), tmp_path / "model", "lasttoken", normalize=True)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["yes"])
    backend.save(str(folder / "tokenizer.json"))
    (tmp_path / "pair.jinja").write_text(TEMPLATE.replace("if add_generation_prompt", "if true"))
    settings = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    server = ServerProcess("--model", str(folder), "--score-template", str(tmp_path / "pair.jinja"), *OPTIONS)
    try:
        client = openai.OpenAI(base_url=f"{server.wait_ready().url}/v1", api_key="-")
        model = client.models.list().data[0].id

        def embed(text: str, **fields: Any) -> list[float]:
            return client.embeddings.create(model=model, input=text, extra_body=fields).data[0].embedding

        written = embed(f"Find: {QUERY}")
        assert embed(QUERY) != pytest.approx(written, abs=1e-3)
        for fields in ({"prompt_name": "query"}, {"prompt": "Find: "}):
            assert embed(QUERY, **fields) == pytest.approx(written, abs=1e-5)
        with pytest.raises(openai.BadRequestError, match="'query', 'document'") as raised:
            embed(QUERY, prompt_name="passage")
        assert raised.value.param == "prompt_name"
        answer = post(f"{server.url}/v1/rerank", {"query": QUERY, "documents": DOCUMENTS}).json()
        expected = sigmoid(log_odds(folder, backend.token_to_id("yes"), backend.token_to_id("no")))
        for each in answer["results"]:
            assert each["relevance_score"] == pytest.approx(expected[each["index"]], abs=1e-5)
        shared = len(ids_of(folder, [f"<|im_start|>Q: {QUERY}\nD:"]))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 3 * shared
    finally:
        server.stop()
