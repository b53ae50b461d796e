"""The same on the real embedded model, SmolLM2-135M-Instruct, through real processes and in one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import radixrt
from radixrt.config import make_config
from radixrt.engine.settings import resolve_settings
from radixrt.layers.formats.codes import Codes, dequantize
from radixrt.layers.formats.gguf_layout import scheme_of
from radixrt.layers.formats.gguf_types import PACKED_TYPES
from tests.equivalence.reference import greedy_continuation

QUESTIONS = ["What is the capital of France?", "Name a colour.", "Count to five.", "Who wrote Hamlet?"]
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def folder(cache_folder: Path) -> Path:
    return Path(resolve_settings(make_config(dtype="float32"), show_progress=False)[1].folder)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    from radixrt.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(folder)
    chats = [CHAT.format(question=q) for q in QUESTIONS]
    texts = [*chats, "Once upon a time", "def fibonacci(n):\n", "The list of planets: Mercury, Venus,", chats[0] * 3]
    return [tokenizer.encode(t, add_special_tokens=False) for t in texts]


@pytest.mark.parametrize(
    "options",
    [
        {"max_inflight_steps": 2},
        {"max_inflight_steps": 1, "chunked_prefill_size": 16, "page_size": 16, "executor": "uni"},
        {"prefix_cache": False, "attention_backend": "torch_native", "executor": "uni"},
        {"kv_cache_tokens": 320, "schedule_conservativeness": 0.0},
    ],
    ids=["default", "small-chunks-and-pages", "plain", "retracting"],
)
def test_greedy_equals_transformers(options: dict, folder: Path, prompts: list[list[int]]) -> None:  # type: ignore[type-arg]
    params = {"temperature": 0, "max_tokens": NUM_TOKENS, "min_tokens": NUM_TOKENS}
    options = {"dtype": "float32", "num_threads": 2, "kv_cache_tokens": 4096, **options}
    with radixrt.Engine(show_progress=False, **options) as engine:
        cold = engine.generate(prompts, params)
        warm = engine.generate(prompts, params) if options.get("prefix_cache", True) else cold
        engine.check_invariants()
    for ids, first, second in zip(prompts, cold, warm, strict=True):
        assert len(first.token_ids) == NUM_TOKENS
        assert first.token_ids == greedy_continuation(folder, ids, first.token_ids)
        assert second.token_ids == first.token_ids


def test_its_packed_weights_are_the_expanded_ones(folder: Path) -> None:
    """Bit by bit, in float32."""
    packed = Path(resolve_settings(make_config(dtype="bfloat16", device="cpu"), show_progress=False)[1].folder)
    types = json.loads((packed / "config.json").read_text())["quantization_config"]["types"]
    assert Counter(types.values()) == {"Q4_1": 210, "Q8_0": 1}
    with (
        safe_open(packed / "model.safetensors", "pt") as ours,
        safe_open(folder / "model.safetensors", "pt") as theirs,
    ):
        names = set(ours.keys())
        for module, kind in types.items():
            stored = [f"{module}.weight{ending}" for ending in ("", "_scale", "_minimum")]
            codes, scales, minima = (ours.get_tensor(name) if name in names else None for name in stored)
            assert codes is not None
            assert scales is not None
            weight = Codes(codes, scales, None, minima, scheme_of(PACKED_TYPES[kind]))
            plain = "model.embed_tokens" if module == "lm_head" else module
            assert torch.equal(dequantize(weight), theirs.get_tensor(f"{plain}.weight")), module


def test_the_embedded_model_knows_paris() -> None:
    with radixrt.Engine(dtype="float32", kv_cache_tokens=2048, executor="uni", show_progress=False) as engine:
        chat = CHAT.format(question=QUESTIONS[0])
        answer = engine.generate(chat, {"temperature": 0, "max_tokens": 32})
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
