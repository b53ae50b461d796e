"""Architectures without a class in radixrt run through transformers' code and give its logits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.errors import ModelLoadError
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.registry import NEAREST, TESTED_ARCHITECTURES, alternatives
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences, transformers_logits
from tests.tiny_models import COMMON, save_random_model

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [2.0] * 8,
}
PHI3_LONGROPE = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("Phi3Config", {"sliding_window": 9, "pad_token_id": 2}),
    "olmo2": ("Olmo2Config", {}),
    "gemma": ("GemmaConfig", {"head_dim": 32, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 11}),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": 9}),
    "granite": ("GraniteConfig", {"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.7}),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "cohere": ("CohereConfig", {"logit_scale": 0.2}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gemma2-softcap": ("Gemma2Config", {"head_dim": 16}, "softcap"),
    "mamba": ("MambaConfig", {"state_size": 4}, "mixes tokens|attention interface|cannot run"),
    "falcon-alibi": ("FalconConfig", {"alibi": True}, "attention interface"),
    "lfm2-moe-conv": (
        "Lfm2MoeConfig",
        {"layer_types": ["conv", "full_attention", "conv"], "num_experts": 4, "num_experts_per_tok": 2},
        "layer_types conv",
    ),
    "phi3-longrope": ("Phi3Config", PHI3_LONGROPE, "original 64 tokens"),
}


def make_folder(folder: Path, config_class: str, overrides: dict[str, Any]) -> Path:
    import transformers

    return save_random_model(folder, getattr(transformers, config_class)(**{**COMMON, **overrides}))


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, *CASES[case])
    spec = load_model_spec(folder)
    assert spec.decoder is None
    model = load_model(folder, spec, dtype="float32", device="cpu")
    inputs = sequences(2)
    for ours, theirs in zip(run_in_steps(model, inputs), transformers_logits(folder, inputs), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["gemma2-softcap", "mamba", "falcon-alibi", "lfm2-moe-conv"])
def test_an_architecture_is_refused_before_its_weights_are_read(case: str, tmp_path: Path) -> None:
    config_class, overrides, reason = REFUSED[case]
    folder = make_folder(tmp_path, config_class, overrides)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=rf"({reason}).*architectures? that runs? (is|are) ") as refused:
        load_model(folder, load_model_spec(folder), dtype="float32", device="cpu")
    assert "safetensors" not in str(refused.value)


@pytest.mark.parametrize(
    ("architecture", "nearest"),
    [
        ("Llama4ForConditionalGeneration", "LlamaForCausalLM"),
        ("Qwen2AudioForConditionalGeneration", "Qwen2ForCausalLM"),
        ("Qwen4ForCausalLM", "Qwen3ForCausalLM"),
        ("Gemma3nForConditionalGeneration", "Gemma3ForCausalLM"),
        ("Mistal3ForCausalLM", "MistralForCausalLM"),
    ],
)
def test_the_nearest_architecture_that_runs(architecture: str, nearest: str) -> None:
    assert alternatives(architecture) == f"; the nearest architecture that runs is {nearest}"


def test_every_alternative_is_tested() -> None:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kinds = [getattr(transformers, config_class).model_type for config_class, _ in CASES.values()]
    assert {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] for kind in kinds} == set(TESTED_ARCHITECTURES)
    assert set(NEAREST.values()) <= set(TESTED_ARCHITECTURES)
    assert alternatives("LlamaForCausalLM") == ""
    assert all(name in alternatives("XYZ") for name in TESTED_ARCHITECTURES)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_by_name(case: str, tmp_path: Path) -> None:
    config_class, overrides, reason = REFUSED[case]
    folder = make_folder(tmp_path, config_class, overrides)
    with pytest.raises(ModelLoadError, match=reason):
        load_model(folder, load_model_spec(folder), dtype="float32", device="cpu")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    fields = {"architectures": ["NoSuchForCausalLM"], "vocab_size": 8, "max_position_embeddings": 8, "model_type": "x"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match="NoSuchForCausalLM"):
        load_model(tmp_path, load_model_spec(tmp_path), dtype="float32", device="cpu")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.T5Config(vocab_size=64, d_model=16, d_ff=16, num_layers=1, num_heads=2, n_positions=64)
    config.architectures = ["T5ForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        load_model(tmp_path, load_model_spec(tmp_path), dtype="float32", device="cpu")


def test_dummy_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, *CASES["olmo2"])
    (folder / "model.safetensors").unlink()
    inputs = sequences(1)
    one, same, other = (
        run_in_steps(
            load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", load_format="dummy", seed=seed),
            inputs,
        )[0]
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_longrope_runs_within_the_original_context(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "Phi3Config", PHI3_LONGROPE)
    spec = dataclasses.replace(load_model_spec(folder), context_length=64)
    inputs = sequences(1)
    ours = run_in_steps(load_model(folder, spec, dtype="float32", device="cpu"), inputs)
    torch.testing.assert_close(ours[0], transformers_logits(folder, inputs)[0], atol=1e-4, rtol=0)
