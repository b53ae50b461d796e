"""Pooling by the files of sentence-transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from radixrt.errors import ModelLoadError
from radixrt.models.embedding_spec import EmbeddingSpec, load_embedding_spec
from radixrt.models.model_config import ModelSpec
from radixrt.models.sentence_transformers import Prompts

MODEL = ModelSpec("Qwen3ForCausalLM", 512, 512, (), None, None, None, hidden_size=64)
TYPES = "sentence_transformers.models."


def write(folder: Path, kinds: list[str], config: dict[str, object], path: str = "") -> Path:
    (folder / "config.json").write_text("{}")
    paths = [path, *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": i, "name": str(i), "path": each, "type": TYPES + kind}
        for i, (kind, each) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


LAST = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}


def test_a_plain_decoder(tmp_path: Path) -> None:
    assert load_embedding_spec(tmp_path, MODEL) == EmbeddingSpec("last", True, 64)


@pytest.mark.parametrize("config", [LAST, {"pooling_mode": "lasttoken"}, {"pooling_mode": ["lasttoken"]}])
def test_last_token_normalized(tmp_path: Path, config: dict[str, object]) -> None:
    folder = write(tmp_path, ["Transformer", "Pooling", "Normalize"], config)
    assert load_embedding_spec(folder, MODEL) == EmbeddingSpec("last", True, 64, is_declared=True)


def test_mean_without_normalizing(tmp_path: Path) -> None:
    folder = write(tmp_path, ["Transformer", "Pooling"], MEAN)
    assert load_embedding_spec(folder, replace(MODEL, has_head=False)) == EmbeddingSpec(
        "mean", False, 64, False, is_declared=True
    )


@pytest.mark.parametrize(
    ("kinds", "config", "named"),
    [
        (["Transformer", "Pooling"], {"pooling_mode_cls_token": True}, "cls_token"),
        (["Transformer", "Pooling"], {**LAST, "pooling_mode_mean_tokens": True}, "mean and lasttoken"),
        (["Transformer", "Pooling"], {}, "no mode"),
        (["Transformer", "Pooling", "Dense", "Normalize"], LAST, "Dense"),
        (["Transformer"], LAST, "Transformer"),
        (["Transformer", "Pooling"], {**MEAN, "include_prompt": False}, "include_prompt"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, kinds: list[str], config: dict[str, object], named: str
) -> None:
    with pytest.raises(ModelLoadError, match=named):
        load_embedding_spec(write(tmp_path, kinds, config), MODEL)


def test_a_transformer_in_another_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="0_Transformer"):
        load_embedding_spec(write(tmp_path, ["Transformer", "Pooling"], LAST, "0_Transformer"), MODEL)


@pytest.mark.parametrize("text", ["{", "{}", "[5]", '[{"type": 5, "path": ""}]'])
def test_malformed_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"modules\.json"):
        load_embedding_spec(tmp_path, MODEL)


QUERY = "Instruct: Find it.\nQuery:"


def test_prompts(tmp_path: Path) -> None:
    folder = write(tmp_path, ["Transformer", "Pooling"], LAST)
    settings = {"prompts": {"query": QUERY, "document": ""}, "default_prompt_name": "document", "more": 1}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert load_embedding_spec(folder, MODEL).prompts == Prompts({"query": QUERY, "document": ""}, "document")


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"prompts": []}, "prompts"), ({"prompts": {"a": 1}}, "prompts"), ({"default_prompt_name": "q"}, "'q'")],
)
def test_malformed_prompts_are_named(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    folder = write(tmp_path, ["Transformer", "Pooling"], LAST)
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match=f"config_sentence_transformers.*{named}"):
        load_embedding_spec(folder, MODEL)


def test_modeling_code_of_its_own(tmp_path: Path) -> None:
    """As gte-Qwen2's, whose architecture is Qwen2ForCausalLM, and whose attention is bidirectional."""
    folder = write(tmp_path, ["Transformer", "Pooling"], LAST)
    config: dict[str, object] = {"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"modeling_qwen\.Qwen2Model.*bidirectional"):
        load_embedding_spec(folder, MODEL)
    (folder / "config.json").write_text(json.dumps({**config, "is_causal": True}))
    assert load_embedding_spec(folder, MODEL).is_declared
