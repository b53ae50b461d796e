"""Vision models whose images are not implemented, and whose text radixrt's decoder runs with `--text-only`."""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.families import llava
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import dense_decoder, rope_key, without_sections
from radixrt.models.families.qwen2 import qwen_windows
from radixrt.models.families.text_part import parse_text_model, text_model_part, text_part

LLAVA_NAMES = TensorNames(
    renamed=llava.NAMES.renamed, skipped=(*llava.NAMES.skipped, "image_newline", "model.image_newline")
)
QWEN_NAMES = TensorNames(renamed=(("model.language_model.", "model."),), skipped=("visual.", "model.visual."))


def parse_like_llava(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    return parse_text_model(config, architecture, LLAVA_NAMES)


def qwen_text(config: Config, architecture: str) -> Config:
    """As `Family.text_fields`. Files of the hub have the fields of the decoder beside `vision_config`."""
    return text_part(config, architecture) if isinstance(config.get("text_config"), Mapping) else config


def parse_qwen(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    config = without_sections(config)
    key = rope_key(config)
    # "mrope" is plain rotary positions, but for images.
    plain = {name: "default" if value == "mrope" else value for name, value in (config.get(key) or {}).items()}
    return dense_decoder(
        {**config, key: plain}, architecture, windows=qwen_windows(config), qkv_bias=True, names=QWEN_NAMES
    )


LIKE_LLAVA = Family(
    (
        "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "InternVLForConditionalGeneration",
    ),
    parse_like_llava,
    text_fields=text_model_part,
    text_alone=True,
)
QWEN = Family(
    ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    parse_qwen,
    text_fields=qwen_text,
    text_alone=True,
)
