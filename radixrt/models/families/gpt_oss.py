"""gpt-oss: attention sinks, windows on every other layer, YaRN, and experts with biases and a clamped gate."""

from __future__ import annotations

import re

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec, parse_rope
from radixrt.layers.swiglu import ClampedSwiGLU
from radixrt.models.config_fields import flag, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec
from radixrt.models.experts_spec import ROUTING_KEYS, ExpertsSpec, parse_experts
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import (
    check_activation,
    read_head_dim,
    read_kv_heads,
    read_window,
    windows_by_type,
)

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
KNOWN = {"swiglu_alpha", "swiglu_limit", "sliding_window"}
about_attention = re.compile("swiglu|sink|window").search
"""Matches names of fields that may change attention or experts; one that is set, and is not in KNOWN, is refused."""


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`. Fields that are absent have the defaults of transformers."""
    check_activation(config, architecture)
    if unknown := sorted(key for key, value in config.items() if value and about_attention(key) and key not in KNOWN):
        raise ModelLoadError(f"config.json: {', '.join(unknown)} is not supported for {architecture}")
    layers, heads = positive_int(config, "num_hidden_layers"), positive_int(config, "num_attention_heads")
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    windows = windows_by_type(config, default, read_window(config, 128))
    bias = flag(config, "attention_bias", True)
    return DecoderSpec(
        hidden_size=positive_int(config, "hidden_size"),
        intermediate_size=0,
        layers=tuple(LayerSpec("attention", "moe", window) for window in windows),
        num_heads=heads,
        num_kv_heads=read_kv_heads(config, heads),
        head_dim=read_head_dim(config, 64),
        rms_norm_eps=positive_float(config, "rms_norm_eps"),
        rope=_rope(config),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=flag(config, "tie_word_embeddings"),
        experts=_experts(config, architecture),
        attention_sinks=True,
    )


def _rope(config: Config) -> RopeSpec:
    given = config.get("rope_scaling") or config.get("rope_parameters")
    return parse_rope(config if given else {**config, "rope_parameters": DEFAULT_ROPE}, default_theta=DEFAULT_THETA)


def _experts(config: Config, architecture: str) -> ExpertsSpec | None:
    twice = config.get("experts_per_token")
    if twice is not None and twice != config.get("num_experts_per_tok"):
        raise ModelLoadError("config.json: experts_per_token and num_experts_per_tok differ")
    alpha = positive_float({"swiglu_alpha": 1.702, **config}, "swiglu_alpha")
    limit = positive_float({"swiglu_limit": 7.0, **config}, "swiglu_limit")
    keys = {*ROUTING_KEYS, "experts_per_token"}
    swiglu = ClampedSwiGLU(alpha, limit)
    return parse_experts(config, architecture, keys, columns="intermediate_size", router="router", swiglu=swiglu)[0]


FAMILY = Family(("GptOssForCausalLM",), parse, stacked_experts=True, nearest=("gptoss",))
