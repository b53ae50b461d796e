"""Relevance of documents to a query by each kind of model, against transformers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from starlette.testclient import TestClient

from radixrt.config import ServerConfig
from radixrt.engine.engine import Engine
from radixrt.errors import ConfigError, EngineError, ModelLoadError, RequestError
from radixrt.models.relevance_spec import QWEN3_RERANKER
from radixrt.server import create_app
from tests.equivalence.reference import reference_logits
from tests.equivalence.test_classification import change_config, sigmoid
from tests.equivalence.test_classification import reference_logits as classifier_logits
from tests.equivalence.test_embedding import as_embedding_model, reference, start
from tests.tiny_models import make_tiny_classifier, make_tiny_model

QUERY = "The capital of France? 東京, 大阪, 京都, 北京, 上海?"
DOCUMENTS = ["a small engine", "The capital of France is Paris", "Numbers 0 1 2 <|im_end|>", "a small engine"]
TEMPLATE = (
    "<|im_start|>{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role == 'query' %}Q: {{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role == 'document' %}D: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>A:{% endif %}"
)
YES, NO = 300, 301


def as_reranker(folder: Path, **settings: Any) -> Path:
    """Add the files of sentence-transformers that make a causal model a reranker."""
    types = ("sentence_transformers.base.modules.transformer.Transformer", "x.logit_score.LogitScore")
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind}
               for i, (kind, path) in enumerate(zip(types, ("", "1_LogitScore"), strict=True))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": YES, "false_token_id": NO}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    arguments = {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(arguments))
    return folder


def ids_of(folder: Path, pieces: list[str]) -> list[int]:
    """Token ids of texts that are tokenized apart from each other, so that none completes a control token."""
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [token for piece in pieces for token in backend.encode(piece).ids]


def rendered(folder: Path, document: str, task: str = "") -> list[int]:
    """The prompt of a pair by TEMPLATE. A control token in the document is cut after its first character."""
    head, tail = f"<|im_start|>{task}Q: {QUERY}\nD: ", "\n<|im_start|>A:"
    if "<|im_end|>" in document:
        before, after = document.split("<|im_end|>")
        return ids_of(folder, [head + before + "<", f"|im_end|>{after}{tail}"])
    return ids_of(folder, [head + document + tail])


def log_odds(folder: Path, task: str = "") -> np.ndarray:
    found = [reference_logits(folder, rendered(folder, each, task))[-1] for each in DOCUMENTS]
    return np.array([(logits[YES] - logits[NO]).item() for logits in found])


def rerank(engine: Engine, **fields: Any) -> dict[str, Any]:
    with TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
        answer = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]


def by_index(answer: dict[str, Any]) -> list[float]:
    return [each["relevance_score"] for each in sorted(answer["results"], key=lambda each: each["index"])]


def assert_order(answer: dict[str, Any], expected: np.ndarray) -> None:
    assert by_index(answer) == pytest.approx(expected.tolist(), abs=1e-5)
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == sorted(scores, reverse=True)


def test_a_causal_reranker(tmp_path: Path) -> None:
    folder = as_reranker(make_tiny_model(tmp_path / "m", "qwen3"))
    expected = log_odds(folder)
    shared = len(ids_of(folder, [f"<|im_start|>Q: {QUERY}\nD:"]))
    with start(folder) as engine:
        answer = rerank(engine)
        assert_order(answer, sigmoid(expected))
        lengths = [len(rendered(folder, each)) for each in DOCUMENTS]
        assert answer["usage"]["prompt_tokens"] == sum(lengths)
        # The query is computed once; the last document is the first one.
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 2 * shared + lengths[3] - 1
        assert_order(rerank(engine, use_activation=False), expected)
        assert_order(rerank(engine, instruction="Find a city."), sigmoid(log_odds(folder, "Find a city.\n")))
        with TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
            pairs = {"queries": QUERY, "documents": DOCUMENTS}
            scored = client.post("/v1/score", json=pairs).json()
            named = {name: scored[name] for name in ("object", "model", "usage")}
            assert named == {"object": "list", "model": "tiny", "usage": scored["usage"]}
            assert [each["score"] for each in scored["data"]] == pytest.approx(by_index(answer), abs=1e-6)
            error = client.post("/v1/score", json={**pairs, "documents": ["a", "b " * 600]}).json()["error"]
            assert (error["param"], error["code"]) == ("documents[1]", "context_length_exceeded")
        check_offline(engine, answer)
        engine.check_invariants()


def check_offline(engine: Engine, answer: dict[str, Any]) -> None:
    """The offline calls have the scores of the routes, and refuse by the name of the argument."""
    found = engine.rerank(QUERY, DOCUMENTS)
    assert [each.document for each in found.results] == [each["document"]["text"] for each in answer["results"]]
    assert all(DOCUMENTS[each.index] == each.document for each in found.results)
    scores = [each["relevance_score"] for each in answer["results"]]
    assert [each.score for each in found.results] == pytest.approx(scores, abs=1e-6)
    assert found.usage.prompt_tokens == answer["usage"]["prompt_tokens"]
    (best,) = asyncio.run(engine.async_rerank(QUERY, DOCUMENTS, top_n=1, instruction="Find a city.")).results
    expected = by_index(rerank(engine, instruction="Find a city."))
    assert best.score == pytest.approx(max(expected), abs=1e-6)
    pairs = engine.relevance([QUERY] * len(DOCUMENTS), DOCUMENTS)
    assert pairs.scores.dtype == np.float32
    np.testing.assert_allclose(pairs.scores, by_index(answer), atol=1e-6)
    np.testing.assert_allclose(asyncio.run(engine.async_relevance(DOCUMENTS[0], QUERY)).scores.shape, (1,))
    wrong: list[tuple[tuple[Any, Any], dict[str, Any], str]] = [
        (([QUERY], DOCUMENTS), {}, "query"), ((QUERY, "one text"), {}, "documents"), ((QUERY, None), {}, "documents"),
        ((QUERY, []), {}, "documents"), ((QUERY, ["a", 3]), {}, "documents[1]"),
        ((QUERY, ["a"]), {"top_n": 0}, "top_n"), ((QUERY, ["a"]), {"instruction": 3}, "instruction"),
        ((QUERY, ["a"]), {"activation": None}, "activation"),
        ((QUERY, ["a", "b " * 600]), {}, "documents[1]"),
    ]  # fmt: skip
    for given, options, param in wrong:
        with pytest.raises(RequestError) as raised:
            engine.rerank(*given, **options)
        assert raised.value.param == param
    with pytest.raises(RequestError, match="documents holds 2 texts, and queries 3"):
        engine.relevance(["a", "b", "c"], ["d", "e"])


def test_the_models_own_task_and_raw_scores(tmp_path: Path) -> None:
    settings = {
        "prompts": {"city": "Find a city."}, "default_prompt_name": "city",
        "activation_fn": "torch.nn.modules.linear.Identity",
    }  # fmt: skip
    folder = as_reranker(make_tiny_model(tmp_path / "m", "llama"), **settings)
    with start(folder, chunked_prefill_size=7) as engine:
        assert_order(rerank(engine), log_odds(folder, "Find a city.\n"))


def test_a_template_by_option(tmp_path: Path) -> None:
    """The checkpoints of Qwen3-Reranker have the files of any Qwen3."""
    folder = make_tiny_model(tmp_path / "m", "qwen3")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["yes", "no"])
    backend.save(str(folder / "tokenizer.json"))
    yes, no = backend.token_to_id("yes"), backend.token_to_id("no")
    before, _, after = QWEN3_RERANKER.partition("{{ instruction")
    task = "Given a web search query, retrieve relevant passages that answer the query"
    assert task in after
    expected = []
    for document in DOCUMENTS[:2]:
        text = f"{before}{task}\n<Query>: {QUERY}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
        ids = backend.encode(text + "<think>\n\n</think>\n\n").ids
        logits = reference_logits(folder, ids)[-1]
        expected.append((logits[yes] - logits[no]).item())
    with start(folder, score_template="qwen3-reranker") as engine:
        assert_order(rerank(engine, documents=DOCUMENTS[:2]), sigmoid(np.array(expected)))
        assert engine.generate("a", {"max_tokens": 2, "ignore_eos": True}).usage.completion_tokens == 2


def test_a_classifier_with_one_label(tmp_path: Path) -> None:
    sigmoid_of_it = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    folder = change_config(make_tiny_classifier(tmp_path / "m", "qwen3", num_labels=1), **sigmoid_of_it)
    pairs = [ids_of(folder, [QUERY, document.replace("<|im_end|>", "")]) for document in DOCUMENTS]
    documents = [document.replace("<|im_end|>", "") for document in DOCUMENTS]
    with start(folder) as engine:  # no template: the tokenizer's encoding of a pair
        assert_order(rerank(engine, documents=documents), sigmoid(classifier_logits(folder, pairs)[:, 0]))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    prompts = [rendered(folder, document)[: -len(ids_of(folder, ["<|im_start|>A:"]))] for document in DOCUMENTS]
    with start(folder) as engine:
        assert_order(rerank(engine), sigmoid(classifier_logits(folder, prompts)[:, 0]))
        assert_order(rerank(engine, use_activation=False), classifier_logits(folder, prompts)[:, 0])


def test_an_embedding_model_with_prompts(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = as_embedding_model(tiny_model("qwen3"), tmp_path / "model", "mean_tokens", normalize=False)
    prompts = {"query": "Find: ", "passage": "Text: ", "twice": "a a "}
    settings = {"prompts": prompts, "default_prompt_name": "twice"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))

    def vector(text: str) -> np.ndarray:
        return reference(tiny_model("qwen3"), ids_of(folder, [text]), "mean")

    def cosines(before_query: str, before_document: str) -> np.ndarray:
        vectors = [vector(before_query + QUERY), *(vector(before_document + each) for each in DOCUMENTS)]
        unit = np.stack([each / np.linalg.norm(each) for each in vectors])
        return unit[1:] @ unit[0]

    with start(folder) as engine:
        assert_order(rerank(engine), cosines("Find: ", "Text: "))
        with TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
            scored = client.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
        assert [each["score"] for each in scored["data"]] == pytest.approx(cosines("a a ", "a a ").tolist(), abs=1e-5)
        for options, before in (({}, "a a "), ({"prompt_name": "query"}, "Find: "), ({"prompt": "x "}, "x ")):
            np.testing.assert_allclose(engine.embed(QUERY, **options).vectors[0], vector(before + QUERY), atol=1e-5)
        ids = ids_of(folder, [QUERY])
        np.testing.assert_allclose(engine.embed(ids).vectors[0], vector(QUERY), atol=1e-5)


@pytest.mark.parametrize(
    ("template", "files", "error", "named"),
    [
        ("qwen3-reranker", {}, EngineError, "'yes' is not one token"),
        ("no/such/file", {}, ConfigError, "score_template 'no/such/file' is neither a file nor"),
        ("{% broken", {}, EngineError, "does not compile"),
        (None, {"chat_template.jinja": "{{ messages }}"}, EngineError, "roles query and document"),
        (None, {"1_LogitScore/config.json": '{"true_token_id": 5}'}, ModelLoadError, "false_token_id None"),
        (None, {"1_LogitScore/config.json": '{"true_token_id": 5, "false_token_id": 600}'}, ModelLoadError, "600"),
        (None, {"config_sentence_transformers.json": '{"activation_fn": "a.Tanh"}'}, ModelLoadError, "'a.Tanh'"),
        (None, {"config_sentence_transformers.json": '{"prompts": [1]}'}, ModelLoadError, "prompts must be"),
        (None, {"config_sentence_transformers.json": '{"default_prompt_name": "x"}'}, ModelLoadError, "'x'"),
    ],
)
def test_what_a_reranker_lacks_is_named_at_the_start(
    template: str | None, files: dict[str, str], error: type[Exception], named: str, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3", num_hidden_layers=1)
    if template is None:
        as_reranker(folder)
    for name, text in files.items():
        (folder / name).write_text(text)
    if template is not None and template.startswith("{"):
        (tmp_path / "t.jinja").write_text(template)
        template = str(tmp_path / "t.jinja")
    with pytest.raises(error, match=named), start(folder, score_template=template):
        pass
