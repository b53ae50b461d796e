"""Llama, and models with its class: SmolLM2, TinyLlama and many others."""

from __future__ import annotations

from radixrt.models.config_fields import flag, positive_int
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.families.family import Config, Family, GGUFFiles
from radixrt.models.families.fields import dense_decoder


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    bias = flag(config, "attention_bias")
    return dense_decoder(
        config,
        architecture,
        kv_heads=positive_int(config, "num_attention_heads"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
    )


FAMILY = Family(
    ("LlamaForCausalLM",),
    parse,
    classifiers={"LlamaForSequenceClassification": "LlamaForCausalLM"},
    nearest=("llama", "mllama"),
    gguf=GGUFFiles("llama", "llama", rotated_pairs=True, has_bias_field=True),
)
