"""config.json of gpt-oss is read as transformers reads it, or refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec
from radixrt.layers.swiglu import ClampedSwiGLU
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.model_config import parse_model_spec

GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
    "pad_token_id": 199999, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088,
}  # fmt: skip


def decoder(**changes: Any) -> DecoderSpec:
    fields = {key: value for key, value in {**GPT_OSS_20B, **changes}.items() if value is not ...}
    spec = parse_model_spec(fields, {}).decoder
    assert spec is not None
    return spec


def test_the_published_20b() -> None:
    spec = decoder()
    assert [layer.sliding_window for layer in spec.layers] == [128, None] * 12
    assert {(layer.mixer, layer.feed_forward) for layer in spec.layers} == {("attention", "moe")}
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.hidden_size) == (64, 8, 64, 2880)
    assert (spec.qkv_bias, spec.o_bias, spec.attention_sinks, spec.qk_norm) == (True, True, True, False)
    assert spec.rope == RopeSpec(
        150000.0, "yarn", 32.0, original_context_length=4096, truncate=False, attention_factor=1.3465735902799727
    )
    assert spec.experts is not None
    assert (spec.experts.num_experts, spec.experts.top_k, spec.experts.intermediate_size) == (32, 4, 2880)
    assert spec.experts.swiglu == ClampedSwiGLU(1.702, 7.0)
    assert spec.intermediate_sizes == (2880,)


def test_fields_that_are_absent() -> None:
    names = (
        "layer_types",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "swiglu_limit",
        "head_dim",
        "attention_bias",
    )
    assert decoder(**dict.fromkeys(names, ...)) == decoder()
    renamed = {"num_local_experts": ..., "num_experts": 32, "experts_per_token": ...}
    assert decoder(**renamed) == decoder()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["chunked_attention"] * 24}, r"layer_types \['chunked_attention'\]"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types must list 24 layers"),
        ({"sliding_window": None}, "there is no sliding window"),
        ({"num_key_value_heads": 7}, "num_attention_heads 64 is no multiple"),
        ({"swiglu_limit": -1.0}, "swiglu_limit"),
        ({"swiglu_beta": 2.0}, "swiglu_beta is not supported"),
        ({"attention_sink_size": 4}, "attention_sink_size is not supported"),
        ({"experts_per_token": 2}, "experts_per_token and num_experts_per_tok differ"),
        ({"num_experts_per_tok": 40, "experts_per_token": 40}, "num_experts_per_tok 40 exceeds"),
        ({"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"rms_norm_eps": ...}, "rms_norm_eps is missing"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config.*hqq.*is not supported"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        decoder(**changes)
