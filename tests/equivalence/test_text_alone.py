"""The text of vision models whose images are not implemented: greedy output equals that of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import radixrt
from radixrt.errors import ModelLoadError
from tests.equivalence.reference import greedy_continuation
from tests.tiny_models import COMMON, FIRST_VISION_ID, TILE_TOWER, save_random_model, save_tokenizer

TOWER = {**TILE_TOWER, "model_type": "clip_vision_model"}
IMAGE: dict[str, Any] = {"image_token_id": FIRST_VISION_ID}
QWEN_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
QWEN_TOWER = {"depth": 2, "num_heads": 4, "patch_size": 8}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "LlavaNextForConditionalGeneration": ("LlavaNextConfig", {"model_type": "llama"}, TOWER, IMAGE),
    "LlavaOnevisionForConditionalGeneration": (
        "LlavaOnevisionConfig",
        {"model_type": "qwen2"},
        {**TILE_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
        IMAGE,
    ),
    "Mistral3ForConditionalGeneration": (
        "Mistral3Config",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
        {**TILE_TOWER, "model_type": "pixtral"},
        IMAGE,
    ),
    "InternVLForConditionalGeneration": (
        "InternVLConfig",
        {"model_type": "qwen2"},
        {**TILE_TOWER, "image_size": [64, 64], "patch_size": [8, 8]},
        IMAGE,
    ),
    "Qwen2VLForConditionalGeneration": (
        "Qwen2VLConfig",
        {"rope_parameters": QWEN_ROPE},
        {**QWEN_TOWER, "embed_dim": 64, "hidden_size": COMMON["hidden_size"]},
        IMAGE,
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        "Qwen2_5_VLConfig",
        {"rope_parameters": QWEN_ROPE},
        {**QWEN_TOWER, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": COMMON["hidden_size"]},
        IMAGE,
    ),
}
"""Configuration class, fields of the text, of the tower, and beside them."""
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13] * 5, [5, 6, 7, 8, 100]]


def make(folder: Path, name: str) -> Path:
    config_class, text, tower, fields = MODELS[name]
    config = getattr(transformers, config_class)(text_config={**COMMON, **text}, vision_config=tower, **fields)
    save_random_model(folder, config, auto_class="AutoModelForImageTextToText")
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_text_equals_transformers(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path, name)
    options: dict[str, Any] = {
        "kv_cache_tokens": 1024, "executor": "uni", "dtype": "float32", "num_threads": 1, "show_progress": False,
    }  # fmt: skip
    with pytest.raises(ModelLoadError, match=f"{name} is not supported: .*; --text-only serves the text alone"):
        radixrt.Engine(str(folder), **options)
    with radixrt.Engine(str(folder), text_only=True, **options) as engine:
        for result, ids in zip(
            engine.generate(PROMPTS, {"temperature": 0, "max_tokens": 8, "min_tokens": 8}), PROMPTS, strict=True
        ):
            assert result.token_ids == greedy_continuation(folder, ids, result.token_ids)


def test_the_hub_has_the_fields_of_qwen_beside_those_of_the_tower(tmp_path: Path) -> None:
    """Old files have no text_config, positions of the type "mrope", and tensors without `language_model`."""
    from radixrt.models.model_config import load_model_spec

    folder = make(tmp_path, "Qwen2_5_VLForConditionalGeneration")
    new = load_model_spec(folder, reads_images=False)
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {**text, **config, "rope_theta": rope["rope_theta"], "tie_word_embeddings": False}
    old["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    (folder / "config.json").write_text(json.dumps(old))
    assert load_model_spec(folder, reads_images=False).decoder == new.decoder
