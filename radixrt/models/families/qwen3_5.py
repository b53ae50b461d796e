"""Qwen3.5: the text part, dense or with experts, of models of text and vision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import flag
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.experts_spec import ROUTING_KEYS, SHARED_KEY
from radixrt.models.families.family import Config, Family
from radixrt.models.families.qwen3_next import parse_gated_delta

NAMES = TensorNames(text_part="model.language_model.", skipped=("model.visual.", "mtp."))
"""The vision tower and the layers that draft tokens are skipped."""
EXPERTS_KEYS = {*ROUTING_KEYS, "moe_intermediate_size", "norm_topk_prob", SHARED_KEY}


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    keys = EXPERTS_KEYS if "Moe" in architecture else set[str]()
    return parse_gated_delta(config, architecture, keys, interleaved=False, names=NAMES)


def text_fields(config: Config, architecture: str) -> Config:
    """Return the fields of the decoder: of a vision model `text_config`, with a few fields beside `text_config`; of any
    other model, all fields.

    Raises:
        ModelLoadError: a vision model has no text_config.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        if architecture.endswith("ForConditionalGeneration"):
            raise ModelLoadError(f"config.json: text_config is missing, which describes the decoder of {architecture}")
        return config
    beside = {key: config[key] for key in ("architectures", "quantization_config") if key in config}
    tied = flag(config, "tie_word_embeddings") or flag(text, "tie_word_embeddings")
    dtype = text.get("dtype", config.get("dtype", config.get("torch_dtype")))
    fields: dict[str, Any] = {**text, **beside, "tie_word_embeddings": tied, "dtype": dtype}
    return fields


FAMILY = Family(
    (
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    parse,
    classifiers={
        "Qwen3_5TextForSequenceClassification": "Qwen3_5ForCausalLM",
        "Qwen3_5ForSequenceClassification": "Qwen3_5ForConditionalGeneration",
    },
    text_fields=text_fields,
    nearest=("qwen3_5",),
)
