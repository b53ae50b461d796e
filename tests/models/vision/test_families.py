"""Families of vision models: their text alone, what of config.json their towers read, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.errors import ModelLoadError
from radixrt.models.families.qwen3_vl import interleaved_axes
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec, parse_model_spec
from radixrt.models.vision_spec import UNSUPPORTED, VisionSpec
from tests.distributed.rank_threads import on_ranks
from tests.equivalence.reference import reference_logits
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import VISION_KINDS

TOWERS = ("model.visual.", "model.vision_model.", "model.connector.", "vision_tower.", "multi_modal_projector.")


def logits(folder: Path, **options: Any) -> list[torch.Tensor]:
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", **options)
    return run_in_steps(model, sequences())


def config_of(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with fields changed: "vision_config.depth" is one of the tower."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        *parts, last = name.split(".")
        target = config
        for part in parts:
            target = target[part]
        target[last] = value
    return config


@pytest.mark.parametrize("kind", VISION_KINDS)
def test_text_alone_equals_transformers(kind: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Also if the checkpoint has no tensor of the tower: none of them is read."""
    folder = shutil.copytree(tiny_model(kind), tmp_path / "text")
    tensors = load_file(folder / "model.safetensors")
    text = {name: tensor for name, tensor in tensors.items() if not name.startswith(TOWERS)}
    assert 0 < len(text) < len(tensors)
    save_file(text, folder / "model.safetensors", {"format": "pt"})
    for ours, ids in zip(logits(folder), sequences(), strict=True):
        torch.testing.assert_close(ours, reference_logits(tiny_model(kind), ids), atol=1e-4, rtol=0)


def test_text_on_two_ranks(tiny_model: Callable[[str], Path]) -> None:
    expected = logits(tiny_model("qwen3_vl_moe"))
    for found in on_ranks(2, lambda group: logits(tiny_model("qwen3_vl_moe"), group=group)):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stacked_experts_that_are_transposed(ranks: int, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Files of the hub have the experts of Qwen3-VL as [experts, inputs, outputs], transformers has them transposed."""
    folder = shutil.copytree(tiny_model("qwen3_vl_moe"), tmp_path / "hub")
    tensors = load_file(folder / "model.safetensors")
    experts = [name for name in tensors if ".mlp.experts." in name]
    assert tensors[experts[0]].dim() == 3
    tensors |= {name: tensors[name].transpose(1, 2).contiguous() for name in experts}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    expected = logits(tiny_model("qwen3_vl_moe"))
    for found in on_ranks(ranks, lambda group: logits(folder, group=group)):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4 if ranks > 1 else 0, rtol=0)


def test_names_of_transformers_5(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers 5 has names of its own for LLaVA's tensors in memory."""
    folder = shutil.copytree(tiny_model("llava"), tmp_path / "new")
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_h", "lm_h")
        tensors[f"model.{name}" if name.startswith(TOWERS) else name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert all(map(torch.equal, logits(folder), logits(tiny_model("llava"))))


def test_axes_of_interleaved_frequencies() -> None:
    axes = interleaved_axes((24, 20, 20), 64)
    assert [axes.count(axis) for axis in range(3)] == [24, 20, 20]
    assert axes[:6] == (0, 1, 2, 0, 1, 2)
    assert axes[60:] == (0, 0, 0, 0)


QWEN3_VL = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "attention_bias": False, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 262144,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "vocab_size": 151936,
    },
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024,
        "in_channels": 3, "intermediate_size": 4096, "num_heads": 16, "num_position_embeddings": 2304,
        "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip


def test_qwen3_vl_2b() -> None:
    spec = parse_model_spec(QWEN3_VL, {})
    assert spec.decoder is not None
    assert (spec.decoder.rope.theta, spec.decoder.rotary_dim, spec.decoder.tie_word_embeddings) == (5e6, None, True)
    assert spec.vision == VisionSpec(
        kind="qwen_vl",
        image_token_id=151655,
        marker_ids=(151656, 151652, 151653),
        patch=16,
        merge=2,
        depth=24,
        hidden=1024,
        intermediate=4096,
        heads=16,
        out_size=2048,
        table_side=48,
        frames=2,
        rotary_theta=10000.0,
        deepstack=(5, 11, 17),
        rotary_axes=interleaved_axes((24, 20, 20), 64),
    )
    assert (spec.vision.head_dim, spec.vision.out_columns, spec.vision.grid(1024, 768)) == (64, 8192, (32, 24))


def test_a_file_that_names_what_differs_alone() -> None:
    """LLaVA 1.5: fields of text and tower that are absent have transformers' values."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000, "torch_dtype": "float16",
        "text_config": {
            "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
            "rms_norm_eps": 1e-5, "torch_dtype": "float16", "vocab_size": 32064,
        },
        "vision_config": {
            "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        },
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "projector_hidden_act": "gelu",
    }  # fmt: skip
    spec = parse_model_spec(config, {})
    assert spec.decoder is not None
    assert (spec.decoder.hidden_size, spec.decoder.num_kv_heads, len(spec.decoder.layers)) == (4096, 32, 32)
    assert (spec.vocab_size, spec.dtype) == (32064, "float16")
    assert spec.vision is not None
    assert (spec.vision.depth, spec.vision.class_token, spec.vision.activation) == (23, True, "quick_gelu")
    assert spec.vision.grid(336, 336) == (24, 24)
    without = parse_model_spec({key: value for key, value in config.items() if key != "vision_config"}, {})
    assert without.vision == spec.vision


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("qwen3_vl", {"text_config": None}, "text_config is missing"),
        ("qwen3_vl", {"image_token_id": 512}, "image_token_id 512 is outside of the vocabulary of 512"),
        ("qwen3_vl", {"vision_config": 3}, "vision_config must be an object"),
        ("qwen3_vl", {"vision_config.hidden_act": "silu"}, "vision_config: hidden_act 'silu'"),
        ("qwen3_vl", {"vision_config.in_channels": 1}, "vision_config: in_channels 1"),
        ("qwen3_vl", {"vision_config.window_size": 112}, "vision_config: window_size is not supported"),
        ("qwen3_vl", {"vision_config.fullatt_block_indexes": [7]}, "fullatt_block_indexes is not supported"),
        ("qwen3_vl", {"vision_config.num_heads": 3}, "hidden_size 64 is not divided into 3 heads"),
        ("qwen3_vl", {"vision_config.num_heads": 32}, "32 heads of a multiple of 4"),
        ("qwen3_vl", {"vision_config.out_hidden_size": 32}, "out_hidden_size 32 is not the text's hidden_size 64"),
        ("qwen3_vl", {"vision_config.num_position_embeddings": 35}, "35 is no square number"),
        ("qwen3_vl", {"vision_config.patch_size": [8, 4]}, "vision_config: patch_size must be an integer"),
        ("qwen3_vl", {"vision_config.rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: rope_type 'yarn'"),
        ("qwen3_vl", {"vision_config.rope_parameters": {"factor": 2}}, "rope_parameters: factor is not supported"),
        ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [3, 1]}, r"deepstack_visual_indexes \[3, 1\] must be"),
        ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [4]}, "ascending indices of the tower's 4 blocks"),
        ("qwen3_vl", {"text_config.num_hidden_layers": 2}, "fewer than the text's 2 layers"),
        ("qwen3_vl", {"text_config.rope_parameters.mrope_interleaved": False}, "mrope_interleaved false"),
        ("qwen3_vl", {"text_config.rope_parameters.mrope_section": [6, 5]}, "mrope_section must be three integers"),
        ("qwen3_vl", {"text_config.use_sliding_window": True}, "use_sliding_window True"),
        ("qwen3_vl_moe", {"text_config.norm_topk_prob": False}, "norm_topk_prob False"),
        ("qwen3_5_vl", {"vision_config.deepstack_visual_indexes": [1]}, "for a tower without deepstack"),
        ("smolvlm", {"vision_config.hidden_act": "relu"}, "vision_config: hidden_act 'relu'"),
        ("smolvlm", {"scale_factor": 3}, "8 patches along an axis, no multiple of scale_factor 3"),
        (
            "smolvlm",
            {"text_config.model_type": "gemma"},
            "model_type 'gemma' is not supported .* llama, mistral, qwen2",
        ),
        ("llava", {"vision_config.model_type": "pixtral"}, "vision_config: model_type 'pixtral' .* clip_vision_model"),
        ("llava", {"vision_feature_layer": [1, 2]}, r"vision_feature_layer \[1, 2\] is not supported"),
        ("llava", {"vision_feature_layer": -4}, "vision_feature_layer -4 is outside of the tower's 3 blocks"),
        ("llava", {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy 'full'"),
        ("llava_siglip", {"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy 'default'"),
        ("llava", {"projector_hidden_act": "relu"}, "projector_hidden_act 'relu'"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_field(
    kind: str, changes: dict[str, Any], message: str, tiny_model: Callable[[str], Path]
) -> None:
    assert parse_model_spec(config_of(tiny_model(kind), {}), {}).vision is not None
    with pytest.raises(ModelLoadError, match=message):
        parse_model_spec(config_of(tiny_model(kind), changes), {})


def test_a_tower_that_is_not_implemented_leaves_the_text(tiny_model: Callable[[str], Path]) -> None:
    config = config_of(tiny_model("llava"), {"vision_config.model_type": "pixtral"})
    with pytest.raises(ModelLoadError, match=r"clip_vision_model .*; --text-only serves the text alone$"):
        parse_model_spec(config, {})
    spec = parse_model_spec(config, {}, reads_images=False)
    assert spec.vision is None
    assert spec.decoder == parse_model_spec(config_of(tiny_model("llava"), {}), {}).decoder


@pytest.mark.parametrize("begin", UNSUPPORTED)
def test_other_vision_models_are_refused_by_name_and_reason(begin: str) -> None:
    reason, nearest = UNSUPPORTED[begin]
    name = f"{begin}ForConditionalGeneration"
    with pytest.raises(ModelLoadError, match=f"{name} is not supported: {reason}; the nearest .* is {nearest}"):
        parse_model_spec({"architectures": [name], "vision_config": {}, "text_config": {}}, {})


def test_an_unknown_model_of_several_parts_is_refused() -> None:
    config = {"architectures": ["NewVLForConditionalGeneration"], "vision_config": {}}
    with pytest.raises(ModelLoadError, match=r"need a family of their own; Qwen3VLForConditionalGeneration, .* run$"):
        parse_model_spec(config, {})
