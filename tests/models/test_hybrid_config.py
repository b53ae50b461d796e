"""config.json and checkpoints of LFM2, Qwen3-Next and Qwen3.5: what is read, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.errors import ConfigError, ModelLoadError
from radixrt.models.decoder_spec import DecoderSpec, RecurrentSpec
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec, parse_model_spec
from radixrt.models.partition import check_partition
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences

COMMON: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "norm_eps": 1e-5,
}
LFM2 = {**COMMON, "architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention", "conv", "conv"]}
QWEN3_5 = {
    **COMMON,
    "architectures": ["Qwen3_5ForCausalLM"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}  # fmt: skip


def decoder(config: dict[str, Any], **changes: Any) -> DecoderSpec:
    spec = parse_model_spec({**config, **changes}, {}).decoder
    assert spec is not None
    return spec


def test_lfm2() -> None:
    spec = decoder(LFM2)
    assert [layer.mixer for layer in spec.layers] == ["short_conv", "attention", "short_conv", "short_conv"]
    assert (spec.recurrent, spec.rms_norm_eps, spec.rope.theta) == (RecurrentSpec(taps=3), 1e-5, 1e6)
    assert spec.intermediate_size == 256, "two thirds, rounded up to a multiple of 256"
    assert decoder(LFM2, block_ff_dim=96, block_auto_adjust_ff_dim=False).intermediate_size == 96
    assert decoder(LFM2, block_multiple_of=32, block_ffn_dim_multiplier=1.5).intermediate_size == 128
    assert [layer.is_recurrent for layer in decoder(LFM2, layer_types=None, full_attn_idxs=[2]).layers] == [
        True, True, False, True,
    ]  # fmt: skip
    assert spec.tie_word_embeddings
    assert not decoder(LFM2, tie_embedding=False).tie_word_embeddings
    # q, k, v and o of one layer; B, C, x and out of three; three projections of four feed-forwards
    assert spec.num_linear_parameters == 64 * (64 + 64 + 64 + 3 * 4 * 64 + 4 * 3 * 256)


def test_qwen3_5() -> None:
    spec = decoder(QWEN3_5, head_dim=64)
    assert [layer.mixer for layer in spec.layers] == ["gated_delta_net"] * 3 + ["attention"]
    assert spec.recurrent == RecurrentSpec(taps=4, k_heads=16, v_heads=32, k_dim=128, v_dim=128)
    assert (spec.rotary_dim, spec.rope.theta, spec.head_dim) == (16, 1e7, 64)
    assert spec.gated_attention
    assert spec.unit_offset
    assert decoder(QWEN3_5).head_dim == 256
    interval = decoder(QWEN3_5, full_attention_interval=2, output_gate_type="swish", attn_output_gate=True)
    assert [layer.is_recurrent for layer in interval.layers] == [True, False, True, False]
    old = decoder(QWEN3_5, rope_parameters=None, rope_theta=1e6, partial_rotary_factor=0.5)
    assert (old.rotary_dim, old.rope.theta) == (128, 1e6)


def test_the_text_part_of_a_vision_model() -> None:
    text = {key: value for key, value in QWEN3_5.items() if key != "architectures"}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {**text, "dtype": "bfloat16"},
        "vision_config": {"depth": 2, "out_hidden_size": 64}, "tie_word_embeddings": True, "hidden_size": 1,
        "image_token_id": 9, "video_token_id": 8, "vision_start_token_id": 7, "vision_end_token_id": 6,
    }  # fmt: skip
    spec = parse_model_spec(config, {"eos_token_id": [5]})
    assert (spec.vocab_size, spec.dtype, spec.eos_token_ids, spec.hidden_size) == (100, "bfloat16", (5,), 64)
    assert spec.decoder is not None
    assert spec.decoder.tie_word_embeddings
    assert spec.decoder == decoder(QWEN3_5, tie_word_embeddings=True)
    assert spec.vision is not None
    assert (spec.vision.depth, spec.vision.hidden, spec.vision.deepstack) == (2, 1152, ())
    assert spec.vision.rotary_axes == (0, 1, 2) * 10 + (0, 1), "sections of 11, 11 and 10 of 32 frequencies"
    assert parse_model_spec({**config, "vision_config": None}, {}).vision is None
    with pytest.raises(ModelLoadError, match="text_config is missing"):
        parse_model_spec({**config, "text_config": None}, {})


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LFM2, {"conv_bias": True}, "conv_bias"),
        (LFM2, {"layer_types": ["conv", "mamba", "conv", "full_attention"]}, r"layer_types \['mamba'\]"),
        (LFM2, {"layer_types": ["conv"] * 4}, "no full_attention layer"),
        (LFM2, {"layer_types": None}, "layer_types must list 4 layers"),
        (LFM2, {"conv_L_cache": 1}, "conv_L_cache"),
        (QWEN3_5, {"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid'"),
        (QWEN3_5, {"attn_output_gate": False}, "attn_output_gate False"),
        (QWEN3_5, {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (QWEN3_5, {"use_sliding_window": True}, "use_sliding_window"),
        (QWEN3_5, {"linear_num_key_heads": 12}, "linear_num_value_heads 32 is no multiple"),
        (QWEN3_5, {"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple"),
        (QWEN3_5, {"head_dim": 30, "partial_rotary_factor": 0.5, "rope_parameters": {}}, "partial_rotary_factor 0.5"),
        (QWEN3_5, {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope_type 'dynamic'"),
        (QWEN3_5, {"architectures": ["Qwen3_5MoeForCausalLM"]}, "num_experts is missing"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_field(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        decoder(config, **changes)


def test_ranks_that_cannot_share_recurrent_layers() -> None:
    spec = parse_model_spec({**QWEN3_5, "linear_num_key_heads": 2}, {})
    with pytest.raises(ConfigError, match=r"2 key heads of gated delta nets .* tp may be 1, 2$"):
        check_partition(spec, 4)
    assert check_partition(parse_model_spec(LFM2, {}), 4) is not None


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_a_vision_models_checkpoint_is_that_of_its_text_part(
    kind: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Tensors of a vision model have other names; those of its tower and of layers that draft tokens are not read."""
    folder = shutil.copytree(tiny_model(kind), tmp_path / "vision")
    text = json.loads((folder / "config.json").read_text())
    (name,) = text.pop("architectures")
    config = {"architectures": [name.replace("CausalLM", "ConditionalGeneration")], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    stored = load_file(folder / "model.safetensors")
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in stored.items()}
    tensors |= {name: torch.zeros(3) for name in ("model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight")}
    save_file(tensors, folder / "model.safetensors")
    found, expected = (
        run_in_steps(load_model(each, load_model_spec(each), dtype="float32", device="cpu"), sequences(1))
        for each in (folder, tiny_model(kind))
    )
    assert torch.equal(found[0], expected[0])
    save_file({**tensors, "model.audio.weight": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"unexpected: model\.audio\.weight"):
        load_model(folder, load_model_spec(folder), dtype="float32", device="cpu")


def test_norms_keep_their_offset_in_bfloat16(tiny_model: Callable[[str], Path]) -> None:
    """1 + weight has 8 bits in bfloat16; the sum is kept in float32."""
    folder = tiny_model("qwen3_5")
    model = load_model(folder, load_model_spec(folder), dtype="bfloat16", device="cpu")
    weight = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(dict(model.named_parameters())["norm"], weight + 1)
