"""Scores of sequence classification models equal transformers' to 1e-5, whatever is cached or chunked."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient

import radixrt
from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.server import create_app
from tests.equivalence.test_embedding import VARIANTS, prompts, start
from tests.tiny_models import make_tiny_classifier

CASES = [
    *zip(("llama", "mistral", "qwen2", "qwen3"), VARIANTS, strict=True),
    ("mixtral", "default"), ("qwen3_moe", "evicting"), ("qwen3_next", "evicting"),
    ("qwen3_5", "evicting"),
]  # fmt: skip


def change_config(folder: Path, **fields: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def reference_logits(folder: Path, inputs: list[list[int]]) -> np.ndarray:
    """float64 [n, labels]. One prompt at a time, so that no token is taken for padding."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model.config.pad_token_id = None
    with torch.inference_mode():
        return np.stack([model(torch.tensor([ids])).logits[0].double().numpy() for ids in inputs])


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_scores_equal_transformers(kind: str, variant: str, tmp_path: Path) -> None:
    names = {0: "bad", 1: "fair", 2: "good"}
    folder = make_tiny_classifier(tmp_path / "m", kind, num_labels=3, id2label=names)
    logits = reference_logits(folder, prompts())
    expected = softmax(logits)
    atol = 1e-4 if kind in ("qwen3_next", "qwen3_5") else 1e-5  # recurrent layers add up in another order
    assert len(set(expected.argmax(1))) > 1  # else any model would name the right label
    with start(folder, **VARIANTS[variant]) as engine:
        for _ in range(2):  # cold and warm
            found = engine.classify(prompts())
            assert found.scores.dtype == np.float32
            np.testing.assert_allclose(found.scores, expected, atol=atol, rtol=0)
            assert found.labels == [names[i] for i in expected.argmax(1)]
        np.testing.assert_allclose(engine.classify(prompts(), activation=False).scores, logits, atol=atol, rtol=0)
        assert found.usage.prompt_tokens == sum(map(len, prompts()))
        assert (found.usage.cached_tokens > 100) is (variant != "depth-1-no-cache")
        assert found.classes == ("bad", "fair", "good")
        engine.check_invariants()


def test_a_vision_models_classifier_is_that_of_its_text_part(tmp_path: Path) -> None:
    folder = make_tiny_classifier(tmp_path / "text", "qwen3_5", num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    vision = shutil.copytree(folder, tmp_path / "vision")
    text = json.loads((folder / "config.json").read_text())
    top = {key: text.pop(key) for key in ("id2label", "label2id")}
    (architecture,) = text.pop("architectures")
    config = {"architectures": [architecture.replace("Text", "")], "text_config": text, **top}
    (vision / "config.json").write_text(json.dumps(config))
    stored = load_file(folder / "model.safetensors")
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in stored.items()}
    save_file({**tensors, "model.visual.merger.norm.weight": torch.zeros(3)}, vision / "model.safetensors")
    with start(vision) as engine:
        found = engine.classify(prompts()[:3], activation=False)
    assert found.classes == ("a", "b", "c")
    np.testing.assert_allclose(found.scores, reference_logits(folder, prompts()[:3]), atol=1e-4)


def test_many_prompts_and_mistakes(tmp_path: Path) -> None:
    folder = make_tiny_classifier(tmp_path / "m", "llama", num_labels=2)
    inputs = [[3 + i % 400, 7, 3 + i % 7] for i in range(150)]
    with start(folder) as engine:
        found = asyncio.run(engine.async_classify(inputs, activation=False))
        np.testing.assert_allclose(found.scores[::30], reference_logits(folder, inputs[::30]), atol=1e-5)
        np.testing.assert_allclose(
            engine.classify(inputs[149], activation=False).scores[0], found.scores[149], atol=1e-5
        )
        assert (found.scores.shape, found.usage.prompt_tokens) == ((150, 2), 450)
        wrong: list[tuple[Any, dict[str, Any], str]] = [
            ([], {}, "prompts"), (["a", ""], {}, "prompts[1]"), ([[3]] * 100 + [[10**6]], {}, "prompts[100]"),
            ("a", {"activation": 1}, "activation"), ("a", {"activation": None}, "activation"),
            ("a", {"priority": "high"}, "priority"), ("a " * 600, {}, "prompts[0]"),
        ]  # fmt: skip
        for given, options, param in wrong:
            with pytest.raises(RequestError) as raised:
                engine.classify(given, **options)
            assert raised.value.param == param


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize(
    ("labels", "fields", "function"),
    [
        (1, {}, None),
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, sigmoid),
        (2, {"problem_type": "multi_label_classification"}, sigmoid),
        (2, {"problem_type": "regression"}, None),
    ],
)
def test_the_checkpoint_chooses_the_activation(
    labels: int, fields: dict[str, Any], function: Any, tmp_path: Path
) -> None:
    folder = change_config(make_tiny_classifier(tmp_path / "m", "qwen3", num_labels=labels), **fields)
    logits = reference_logits(folder, prompts())
    with start(folder) as engine:
        scores = engine.classify(prompts()).scores
    np.testing.assert_allclose(scores, logits if function is None else function(logits), atol=1e-5, rtol=0)


def test_a_classifier_does_nothing_else_and_others_do_not_classify(tmp_path: Path, tiny_model: Any) -> None:
    folder = make_tiny_classifier(tmp_path / "m", "qwen3", num_labels=2)
    with start(folder) as engine:
        asked = {
            "model_only_classifies": lambda: engine.generate("a", {"max_tokens": 2}),
            "not_an_embedding_model": lambda: engine.embed("a"),
        }
        for code, ask in asked.items():
            with pytest.raises(RequestError) as raised:
                ask()
            assert (raised.value.code, raised.value.param) == (code, "model")
        with TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
            assert client.get("/health?deep=1").status_code == 200
            error = client.post("/v1/rerank", json={"query": "a", "documents": ["b"]}).json()["error"]
            assert error["code"] == "not_a_scoring_model"
    with start(tiny_model("qwen3")) as engine:
        with pytest.raises(RequestError) as raised:
            engine.classify("a")
        assert raised.value.code == "not_a_classifier"


def test_a_reward_model_scores_a_conversation(tmp_path: Path) -> None:
    folder = make_tiny_classifier(tmp_path / "m", "llama", num_labels=1)
    messages = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    with start(folder) as engine, TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
        ids = engine.tokenize([radixrt.messages.parts.TemplateText(text)])
        answer = client.post("/classify", json={"messages": messages}).json()
    (found,) = answer["data"]
    assert found["probs"] == pytest.approx(reference_logits(folder, [ids])[0].tolist(), abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == len(ids)
