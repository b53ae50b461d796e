"""The text part of models of several parts: its fields in config.json, and the family that it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import flag
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.families import llama, mistral, qwen2
from radixrt.models.families.family import Config, Family

TEXT_MODELS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": (
        llama.FAMILY,
        {"intermediate_size": 11008, "num_key_value_heads": None, "vocab_size": 32000, "max_position_embeddings": 2048},
    ),
    "mistral": (
        mistral.FAMILY,
        {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072},
    ),
    "qwen2": (
        qwen2.FAMILY,
        {"intermediate_size": 22016, "num_key_value_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768},
    ),
}
"""Families of text parts by the `model_type` of text_config, and transformers' values of absent fields."""
SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6}
"""Likewise, of all of these families."""


def text_part(config: Config, architecture: str) -> Config:
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
    dtype = text.get("dtype", text.get("torch_dtype", config.get("dtype", config.get("torch_dtype"))))
    fields: dict[str, Any] = {**text, **beside, "tie_word_embeddings": tied, "dtype": dtype}
    return fields


def text_model_part(config: Config, architecture: str) -> Config:
    """As `text_part`, of a vision model whose text is a model of `TEXT_MODELS`, with transformers' values of absent
    fields: files of such models often have those fields alone that differ.

    Raises:
        ModelLoadError: the text is another model; names those that run.
    """
    text = text_part(config, architecture)
    kind = text.get("model_type", "llama")
    if kind not in TEXT_MODELS:
        raise ModelLoadError(
            f"config.json: text_config: model_type {kind!r} is not supported for {architecture};"
            f" {', '.join(TEXT_MODELS)} are"
        )
    return {**SIZES, **TEXT_MODELS[kind][1], **text, "model_type": kind}


def parse_text_model(config: Config, architecture: str, names: TensorNames) -> DecoderSpec:
    """Return the decoder that the fields of `text_model_part` describe."""
    family = TEXT_MODELS[config["model_type"]][0]
    return replace(family.parse(config, architecture), names=names)
