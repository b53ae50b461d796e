"""Qwen3 with mixtures of experts."""

from __future__ import annotations

from radixrt.models.config_fields import flag
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.experts_spec import ROUTING_KEYS, parse_experts
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import dense_decoder, equal_windows
from radixrt.models.families.qwen2 import qwen_window

EXPERTS_KEYS = {*ROUTING_KEYS, "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step"}


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    bias = flag(config, "attention_bias")
    experts = parse_experts(config, architecture, EXPERTS_KEYS)
    windows = equal_windows(config, architecture, qwen_window(config))
    return dense_decoder(
        config, architecture, windows=windows, qkv_bias=bias, o_bias=bias, qk_norm=True, experts=experts
    )


FAMILY = Family(
    ("Qwen3MoeForCausalLM",),
    parse,
    classifiers={"Qwen3MoeForSequenceClassification": "Qwen3MoeForCausalLM"},
    nearest=("qwen3moe",),
)
