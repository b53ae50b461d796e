"""Qwen3.5, dense or with experts: the text part, and of models of text and vision the tower."""

from __future__ import annotations

from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.experts_spec import ROUTING_KEYS, SHARED_KEY
from radixrt.models.families import qwen3_vl
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import without_sections
from radixrt.models.families.qwen3_next import parse_gated_delta
from radixrt.models.families.text_part import text_part
from radixrt.models.vision_spec import VisionSpec, optional_part

NAMES = TensorNames(renamed=(("model.language_model.", "model."),), skipped=("model.visual.", "mtp."))
"""The vision tower and the layers that draft tokens are skipped."""
TOKENS = {
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
}
"""Fields with the ids of tokens, and transformers' values of absent fields."""
EXPERTS_KEYS = {*ROUTING_KEYS, "moe_intermediate_size", "norm_topk_prob", SHARED_KEY}


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    keys = EXPERTS_KEYS if "Moe" in architecture else set[str]()
    return parse_gated_delta(without_sections(config), architecture, keys, interleaved=False, names=NAMES)


def parse_vision(config: Config, architecture: str, text: DecoderSpec) -> VisionSpec | None:
    """As `Family.parse_vision`; None for a checkpoint of the text part alone."""
    if optional_part(config, "vision_config") is None:
        return None
    return qwen3_vl.parse_tower(config, architecture, text, TOKENS, sections=(11, 11, 10), deepstack=None)


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
    text_fields=text_part,
    parse_vision=parse_vision,
    nearest=("qwen3_5",),
)
