"""Embeddings equal transformers' hidden states to 1e-5, whatever is cached, chunked, batched or evicted."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import radixrt
from radixrt.errors import RequestError
from radixrt.messages.parts import Pooling
from tests.equivalence.reference import reference_model
from tests.tiny_models import make_tiny_model

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "depth-1-no-cache": {"max_inflight_steps": 1, "prefix_cache": False},
    "chunk-7-page-4": {"chunked_prefill_size": 7, "page_size": 4},
    "evicting": {"kv_cache_tokens": 192, "max_running_requests": 3, "chunked_prefill_size": 50},
}


def start(folder: Path, **options: Any) -> radixrt.Engine:
    return radixrt.Engine(
        str(folder), executor="uni", num_threads=1, dtype="float32", show_progress=False, check_invariants=True,
        **{"kv_cache_tokens": 2048, "max_running_requests": 8, **options},
    )  # fmt: skip


def as_embedding_model(folder: Path, target: Path, mode: str, *, normalize: bool) -> Path:
    """Copy a model and add sentence-transformers' files, with pooling by the `mode`."""
    shutil.copytree(folder, target)
    kinds = ["Transformer", "Pooling", *["Normalize"] * normalize]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (target / "modules.json").write_text(json.dumps(modules))
    flags = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "lasttoken")}
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **flags}))
    return target


def reference(folder: Path, ids: list[int], pooling: Pooling) -> np.ndarray:
    with torch.inference_mode():
        hidden = reference_model(folder).base_model(torch.tensor([ids])).last_hidden_state[0].double()
    return (hidden[-1] if pooling == "last" else hidden.mean(0)).numpy()


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    long = [rng.randrange(3, 500) for _ in range(60)]
    return [long, long[:30], [*long[:40], 7, 8, 9], [5], long, [rng.randrange(3, 500) for _ in range(130)]]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_vectors_equal_transformers(
    variant: str, pooling: Pooling, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_model("qwen3")
    mode = {"last": "lasttoken", "mean": "mean_tokens"}[pooling]
    copy = as_embedding_model(folder, tmp_path / "model", mode, normalize=False)
    expected = np.stack([reference(folder, ids, pooling) for ids in prompts()])
    with start(copy, **VARIANTS[variant]) as engine:
        engine.generate(prompts()[0][:20], {"max_tokens": 3, "ignore_eos": True})
        for _ in range(2):  # cold and warm
            found = engine.embed(prompts())
            assert found.vectors.dtype == np.float32
            np.testing.assert_allclose(found.vectors, expected, atol=1e-5, rtol=0)
            assert found.usage.prompt_tokens == sum(map(len, prompts()))
        engine.check_invariants()
    if pooling == "mean" or variant == "depth-1-no-cache":
        assert found.usage.cached_tokens == 0
    elif variant != "evicting":
        assert found.usage.cached_tokens > 100


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_of_the_decoder_alone(tied: bool, tmp_path: Path) -> None:
    """As Qwen3-Embedding's: no "model." before the tensors' names, and no head."""
    folder = make_tiny_model(tmp_path / "whole", "qwen3", tie_word_embeddings=tied)
    expected = reference(folder, prompts()[0], "last")
    copy = as_embedding_model(folder, tmp_path / "model", "lasttoken", normalize=False)
    tensors = load_file(copy / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if "lm_head" not in name}
    save_file(bare, copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3Model"]}))
    with start(copy) as engine:
        np.testing.assert_allclose(engine.embed(prompts()[0]).vectors[0], expected, atol=1e-5, rtol=0)
        if tied:
            assert engine.generate("a", {"max_tokens": 2, "ignore_eos": True}).usage.completion_tokens == 2
            return
        for ask in (lambda: engine.generate("a", {"max_tokens": 2}), lambda: engine.score("a", ["b"])):
            with pytest.raises(RequestError, match="no output head") as raised:
                ask()
            assert raised.value.code == "model_only_embeds"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_generative_model_embeds_by_its_last_token(
    kind: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    if kind == "gpt2":
        transformers = pytest.importorskip("transformers")
        from tests.tiny_models import save_random_model, save_tokenizer

        config = transformers.GPT2Config(vocab_size=512, n_positions=512, n_embd=64, n_layer=2, n_head=4)
        folder = save_random_model(tmp_path / "gpt2", config)
        save_tokenizer(folder)
    else:
        folder = tiny_model(kind)
    texts = ["The capital of France", "a", "naïve café" * 3]
    with start(folder) as engine:
        ids = [engine.tokenize(text) for text in texts]
        whole = np.stack([reference(folder, each, "last") for each in ids])
        unit = whole / np.linalg.norm(whole, axis=1, keepdims=True)
        np.testing.assert_allclose(engine.embed(texts).vectors, unit, atol=1e-5, rtol=0)
        np.testing.assert_allclose(engine.embed([ids[0], texts[1], ids[2]]).vectors, unit, atol=1e-5, rtol=0)
        np.testing.assert_allclose(engine.embed(texts[0]).vectors, unit[:1], atol=1e-5, rtol=0)
        np.testing.assert_allclose(engine.embed(texts, normalize=False).vectors, whole, atol=1e-5, rtol=0)
        cut = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
        np.testing.assert_allclose(engine.embed(texts, dimensions=16).vectors, cut, atol=1e-5, rtol=0)
        for dimensions in (0, 65):
            with pytest.raises(RequestError) as raised:
                engine.embed(texts, dimensions=dimensions)
            assert raised.value.param == "dimensions"
