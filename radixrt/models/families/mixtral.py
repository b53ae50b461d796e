"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.experts_spec import ROUTING_KEYS, parse_experts
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import dense_decoder, equal_windows, read_window


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    experts = parse_experts(
        config,
        architecture,
        ROUTING_KEYS,
        columns="intermediate_size",
        module="block_sparse_moe",
        projections=("w1", "w3", "w2"),
    )
    windows = equal_windows(config, architecture, read_window(config, None))
    return dense_decoder(config, architecture, windows=windows, default_theta=1e6, experts=experts)


FAMILY = Family(
    ("MixtralForCausalLM",),
    parse,
    classifiers={"MixtralForSequenceClassification": "MixtralForCausalLM"},
    nearest=("mixtral",),
)
