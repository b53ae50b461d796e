"""The decoder's logits equal transformers', for every flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.models.dense_attention import run_in_steps
from tests.tiny_models import make_tiny_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
ENDS_RECURRENT = ["linear_attention", "full_attention", "full_attention", "linear_attention"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-rope-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-head-dim": ("llama", {"head_dim": 8, "num_key_value_heads": 1}),
    "mistral-window": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-some-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3-rope-yarn": ("qwen3", {"rope_parameters": YARN}),
    "gpt-oss": ("gpt_oss", {}),
    "gpt-oss-other-layers": (
        "gpt_oss",
        {
            "attention_bias": False,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "swiglu_alpha": 1.2,
            "swiglu_limit": 7.0,
            "rope_parameters": None,
        },
    ),
    "lfm2": ("lfm2", {}),
    "lfm2-plain-size": ("lfm2", {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": True, "conv_L_cache": 4}),
    "mixtral": ("mixtral", {}),
    "mixtral-window": ("mixtral", {"sliding_window": 6}),
    "qwen3-moe": ("qwen3_moe", {}),
    "qwen3-moe-every-second": ("qwen3_moe", {"mlp_only_layers": [], "decoder_sparse_step": 2, "norm_topk_prob": False}),
    "qwen3-5": ("qwen3_5", {}),
    "qwen3-5-equal-heads": (
        "qwen3_5",
        {"linear_num_key_heads": 4, "attention_bias": True, "layer_types": ENDS_RECURRENT},
    ),
    "qwen3-5-moe": ("qwen3_5_moe", {}),
    "qwen3-5-rope-yarn": ("qwen3_5", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.25}}),
    "qwen3-next": ("qwen3_next", {}),
    "qwen3-next-interval": ("qwen3_next", {"layer_types": None, "full_attention_interval": 2, "mlp_only_layers": []}),
    "qwen3-tied-bias": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
}


def sequences(count: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 500, (n,), generator=generator).tolist() for n in (40, 9, 23)[:count]]


@torch.inference_mode()
def transformers_logits(folder: Path, inputs: list[list[int]]) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return [model(torch.tensor([ids])).logits[0] for ids in inputs]


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    kind, overrides = CASES[case]
    folder = make_tiny_model(tmp_path / "model", kind, **overrides)
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu")
    assert isinstance(model, Decoder)
    inputs = sequences()
    for ours, theirs in zip(run_in_steps(model, inputs), transformers_logits(folder, inputs), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    spec, inputs = load_model_spec(folder), sequences()
    exact = run_in_steps(load_model(folder, spec, dtype="float32", device="cpu"), inputs)
    rounded = run_in_steps(load_model(folder, spec, dtype="bfloat16", device="cpu"), inputs)
    for a, b in zip(exact, rounded, strict=True):
        assert (a - b).abs().mean() < 0.02 * a.abs().mean() + 0.02


def test_attention_layers_say_what_each_layer_needs(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=2)
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", load_format="dummy")
    assert [layer.layer_id for layer in model.attention_layers] == [0, 1, 2]
    assert [layer.sliding_window for layer in model.attention_layers] == [None, None, 6]
    assert {(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in model.attention_layers} == {(4, 2, 16)}
