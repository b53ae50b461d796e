"""Qwen3, without experts."""

from __future__ import annotations

from radixrt.models.config_fields import flag
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.families.family import Config, Family, GGUFFiles
from radixrt.models.families.fields import dense_decoder
from radixrt.models.families.qwen2 import qwen_windows


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    bias = flag(config, "attention_bias")
    return dense_decoder(
        config,
        architecture,
        windows=qwen_windows(config),
        head_dim=128,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
    )


FAMILY = Family(
    ("Qwen3ForCausalLM",),
    parse,
    classifiers={"Qwen3ForSequenceClassification": "Qwen3ForCausalLM"},
    nearest=("qwen",),
    gguf=GGUFFiles("qwen3", "qwen3", has_bias_field=True),
)
