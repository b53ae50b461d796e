"""Every setting of config.json is represented or refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec
from radixrt.models.classifier_spec import ClassifierSpec
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec
from radixrt.models.experts_spec import ExpertsSpec
from radixrt.models.model_config import ModelSpec, parse_model_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": [7, 3],
}
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def parse(changes: dict[str, Any] | None = None, generation: dict[str, Any] | None = None) -> ModelSpec:
    fields = {**LLAMA, **(changes or {})}
    return parse_model_spec({key: value for key, value in fields.items() if value is not ...}, generation or {})


def decoder(**changes: Any) -> DecoderSpec:
    spec = parse(changes).decoder
    assert spec is not None
    return spec


def of(architecture: str, **changes: Any) -> DecoderSpec:
    return decoder(architectures=[architecture], **{"num_key_value_heads": 2, **changes})


def test_a_plain_llama() -> None:
    spec = parse(generation={"eos_token_id": 5})
    assert (spec.architecture, spec.vocab_size, spec.context_length) == ("LlamaForCausalLM", 100, 256)
    assert (spec.eos_token_ids, spec.bos_token_id, spec.dtype) == ((3, 5, 7), None, "bfloat16")
    assert spec.decoder == DecoderSpec(
        hidden_size=64,
        intermediate_size=128,
        layers=(LayerSpec("attention", "dense", None),) * 4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope=RopeSpec(10000.0),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=False,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 9}}
        | {"original_max_position_embeddings": 64},
    ],
)
def test_both_spellings_of_rope(fields: dict[str, Any]) -> None:
    assert decoder(**fields).rope == RopeSpec(5e5, "llama3", 8.0, 1.0, 4.0, 64)


def test_old_spelling_of_linear_rope() -> None:
    assert decoder(rope_scaling={"type": "linear", "factor": 2}).rope == RopeSpec(10000.0, "linear", 2.0)


def test_yarn() -> None:
    plain = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    found = decoder(rope_scaling={**plain, "beta_fast": None})
    assert found.rope == RopeSpec(
        10000.0, "yarn", 4.0, original_context_length=64, attention_factor=0.1 * math.log(4.0) + 1
    )
    given = {"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, "truncate": False}
    rope = decoder(rope_scaling={**plain, **given, "factor": None}).rope  # 256 positions by the configuration
    assert (rope.factor, rope.attention_factor, rope.beta_fast, rope.truncate) == (4.0, 1.5, 16.0, False)
    scaled = decoder(rope_scaling={**plain, "mscale": 2.0, "mscale_all_dim": 1.0}).rope
    assert scaled.attention_factor == (0.2 * math.log(4.0) + 1) / (0.1 * math.log(4.0) + 1)


def test_flags_by_architecture() -> None:
    qwen2, qwen3 = of("Qwen2ForCausalLM"), of("Qwen3ForCausalLM", attention_bias=True)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm, qwen2.head_dim) == (True, False, False, 16)
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm, qwen3.head_dim) == (True, True, True, 128)
    llama = decoder(attention_bias=True, mlp_bias=True, head_dim=32)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias, llama.head_dim) == (True, True, True, 32)


@pytest.mark.parametrize(
    ("architecture", "fields", "windows"),
    [
        ("MistralForCausalLM", {"sliding_window": 5}, (5, 5, 5, 5)),
        ("MistralForCausalLM", {"sliding_window": None}, (None,) * 4),
        ("MistralForCausalLM", {}, (4096,) * 4),
        ("Qwen2ForCausalLM", {"sliding_window": 5, "max_window_layers": 1}, (None,) * 4),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 5, "max_window_layers": 3, "use_sliding_window": True},
            (None,) * 3 + (5,),
        ),
        (
            "Qwen3ForCausalLM",
            {
                "sliding_window": 6,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (6, None, 6, None),
        ),
        ("LlamaForCausalLM", {"sliding_window": 5}, (None,) * 4),
    ],
)
def test_sliding_windows(architecture: str, fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert tuple(layer.sliding_window for layer in of(architecture, **fields).layers) == windows


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, "EEEE"),
        ({"mlp_only_layers": [0, 2]}, "dEdE"),
        ({"decoder_sparse_step": 2}, "dEdE"),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [3]}, "ddEd"),
        ({"decoder_sparse_step": 5}, "dddd"),
    ],
)
def test_layers_with_experts(fields: dict[str, Any], kinds: str) -> None:
    found = decoder(**QWEN3_MOE, **fields)
    assert "".join("E" if layer.feed_forward == "moe" else "d" for layer in found.layers) == kinds
    names = ("gate_proj", "up_proj", "down_proj")
    assert found.experts == (ExpertsSpec(8, 3, 48, False, "mlp", names) if "E" in kinds else None)


def test_mixtral() -> None:
    found = decoder(**MIXTRAL, router_jitter_noise=0.1, output_router_logits=True)
    assert found.layers == (LayerSpec("attention", "moe", None),) * 4
    assert found.experts == ExpertsSpec(4, 2, 128, True, "block_sparse_moe", ("w1", "w3", "w2"))
    assert found.rope == RopeSpec(1e6)
    assert decoder(**MIXTRAL, sliding_window=5).layers[0].sliding_window == 5


def test_both_names_of_the_number_of_experts() -> None:
    renamed = {**QWEN3_MOE, "num_experts": ..., "num_local_experts": 8}
    assert decoder(**renamed) == decoder(**QWEN3_MOE) == decoder(**QWEN3_MOE, num_local_experts=8)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_size": ...}, "hidden_size"),
        ({"rms_norm_eps": ...}, "rms_norm_eps"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers"),
        ({"max_position_embeddings": ...}, "max_position_embeddings"),
        ({"architectures": ...}, "architectures"),
        ({"architectures": ["A", "B"]}, "architectures"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {**LLAMA3, "beta_fast": 3}}, "beta_fast"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -4.0}}, "factor must be a positive number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": 1}}, "truncate must be true or false"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "low_freq_factor": 1}}, "low_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "flat"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"torch_dtype": "float8"}, "float8"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "num_key_value_heads"),
        ({"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2, "layer_types": []}, "layer_types"),
        ({**QWEN3_MOE, "shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size is not supported for"),
        ({**QWEN3_MOE, "routed_scaling_factor": 2.5, "n_group": 4}, "n_group, routed_scaling_factor is not"),
        ({**QWEN3_MOE, "layer_types": ["full_attention"]}, "layer_types"),
        ({**QWEN3_MOE, "mlp_only_layers": 1}, "mlp_only_layers"),
        ({**QWEN3_MOE, "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({**QWEN3_MOE, "norm_topk_prob": "yes"}, "norm_topk_prob"),
        ({**QWEN3_MOE, "num_experts": ...}, "num_experts is missing"),
        ({**QWEN3_MOE, "num_local_experts": 9}, "num_local_experts and num_experts differ"),
        ({**QWEN3_MOE, "num_experts_per_tok": 9}, "num_experts_per_tok 9 exceeds the number of experts, 8"),
        ({**QWEN3_MOE, "moe_intermediate_size": ...}, "moe_intermediate_size"),
        ({**MIXTRAL, "num_experts_per_tok": ...}, "num_experts_per_tok"),
        ({**MIXTRAL, "moe_intermediate_size": 64}, "moe_intermediate_size is not supported for Mixtral"),
    ],
)
def test_problems_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        parse(fields)


def test_other_architectures_have_no_decoder_spec() -> None:
    spec = parse({"architectures": ["OlmoForCausalLM"], "rope_scaling": {"rope_type": "yarn"}})
    assert spec.decoder is None
    assert spec.context_length == 256


@pytest.mark.parametrize("architecture", ["LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"])
def test_a_decoder_without_its_head(architecture: str) -> None:
    spec = parse({"architectures": [architecture], "num_key_value_heads": 2})
    assert spec.architecture == architecture.replace("Model", "ForCausalLM")
    assert spec.decoder is not None
    assert not spec.has_head
    assert parse({"architectures": [architecture], "num_key_value_heads": 2, "tie_word_embeddings": True}).has_head


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["BertModel"], "vocab_size": ...}, "BertModel is a bidirectional encoder.*Qwen3"),
        ({"architectures": ["XLMRobertaForSequenceClassification"]}, "XLMRobertaForSequenceClassification is a bidir"),
        ({"architectures": ["ModernBertForMaskedLM"]}, "ModernBertForMaskedLM is a bidirectional"),
        ({"architectures": ["CamembertModel"]}, "CamembertModel is a bidirectional"),
        ({"architectures": ["NewModel"]}, "NewModel is a bidirectional"),
        ({"architectures": ["LlamaBidirectionalModel"]}, "LlamaBidirectionalModel is a bidirectional"),
        ({"architectures": ["NVEmbedModel"]}, "NVEmbedModel is a bidirectional"),
        ({"architectures": ["Qwen2ForSequenceClassification"], "is_causal": False}, "is_causal"),
        ({"architectures": ["Qwen2ForCausalLM"], "is_causal": False}, "is_causal"),
        ({"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_bidirectional_encoders_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        parse(changes)


@pytest.mark.parametrize("base", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_a_sequence_classification_model(base: str) -> None:
    fields = {"num_key_value_heads": 2, "tie_word_embeddings": True, "id2label": {"0": "reward"}}
    spec = parse({"architectures": [f"{base}ForSequenceClassification"], **fields})
    assert spec.architecture == f"{base}ForCausalLM"
    assert spec.classifier == ClassifierSpec(("reward",), "none")
    assert not spec.has_head


@pytest.mark.parametrize(
    "architecture", ["GemmaForSequenceClassification", "Qwen3ForTokenClassification", "Qwen2ForRewardModel"]
)
def test_other_heads_are_refused(architecture: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{architecture} is not supported.*Qwen3ForSequenceClassification"):
        parse({"architectures": [architecture]})
