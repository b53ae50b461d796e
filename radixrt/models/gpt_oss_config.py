"""Fields of config.json of gpt-oss. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec, parse_rope
from radixrt.layers.swiglu import ClampedSwiGLU
from radixrt.models.config_fields import flag, optional_int, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec
from radixrt.models.experts_spec import ExpertsSpec, parse_experts

GPT_OSS = "GptOssForCausalLM"
DEFAULT_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary embedding where config.json has none, as in transformers."""
DEFAULT_THETA = 150000.0
LAYER_TYPES = ("sliding_attention", "full_attention")
KNOWN = {"swiglu_alpha", "swiglu_limit", "sliding_window"}
about_attention = re.compile("swiglu|sink|window").search
"""Matches names of fields that may change attention or experts; one that is set, and is not in KNOWN, is refused."""


def parse_gpt_oss(config: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of a GptOssForCausalLM. Fields that are absent have the defaults of transformers.

    Raises:
        ModelLoadError: a field is missing, malformed or not supported; the message names it.
    """
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelLoadError(f"config.json: hidden_act {activation!r} is not supported for {GPT_OSS}; silu is")
    if unknown := sorted(key for key, value in config.items() if value and about_attention(key) and key not in KNOWN):
        raise ModelLoadError(f"config.json: {', '.join(unknown)} is not supported for {GPT_OSS}")
    layers, heads = positive_int(config, "num_hidden_layers"), positive_int(config, "num_attention_heads")
    kv_heads = positive_int(config, "num_key_value_heads")
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    head_dim = positive_int(config, "head_dim", 64)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    bias = flag(config, "attention_bias", True)
    return DecoderSpec(
        hidden_size=positive_int(config, "hidden_size"),
        intermediate_size=0,
        layers=_layers(config, layers),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=positive_float(config, "rms_norm_eps"),
        rope=_rope(config),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=flag(config, "tie_word_embeddings"),
        experts=_experts(config, layers),
        attention_sinks=True,
    )


def _layers(config: Mapping[str, Any], layers: int) -> tuple[LayerSpec, ...]:
    types = config.get("layer_types") or [LAYER_TYPES[i % 2] for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise ModelLoadError(f"config.json: layer_types must list {layers} layers")
    if unknown := sorted({str(kind) for kind in types} - set(LAYER_TYPES)):
        raise ModelLoadError(f"config.json: layer_types {unknown} are not supported; {' and '.join(LAYER_TYPES)} are")
    window = optional_int(config, "sliding_window") if "sliding_window" in config else 128
    if "sliding_attention" in types and not window:
        raise ModelLoadError("config.json: layer_types has sliding_attention, but there is no sliding window")
    return tuple(LayerSpec("attention", "moe", window if kind == "sliding_attention" else None) for kind in types)


def _rope(config: Mapping[str, Any]) -> RopeSpec:
    given = config.get("rope_scaling") or config.get("rope_parameters")
    return parse_rope(config if given else {**config, "rope_parameters": DEFAULT_ROPE}, default_theta=DEFAULT_THETA)


def _experts(config: Mapping[str, Any], layers: int) -> ExpertsSpec:
    twice = config.get("experts_per_token")
    if twice is not None and twice != config.get("num_experts_per_tok"):
        raise ModelLoadError("config.json: experts_per_token and num_experts_per_tok differ")
    experts, _ = parse_experts(GPT_OSS, config, layers)
    assert experts is not None, "every layer has experts"
    alpha = positive_float({"swiglu_alpha": 1.702, **config}, "swiglu_alpha")
    limit = positive_float({"swiglu_limit": 7.0, **config}, "swiglu_limit")
    return ExpertsSpec(
        experts.num_experts,
        experts.top_k,
        experts.intermediate_size,
        renormalize=True,
        module="mlp",
        projections=experts.projections,
        router="router",
        swiglu=ClampedSwiGLU(alpha, limit),
    )
