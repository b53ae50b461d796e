"""LLaVA: a decoder of another family, and a CLIP or SigLIP tower with an MLP behind it."""

from __future__ import annotations

from typing import Literal

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import flag, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.families.family import Config, Family
from radixrt.models.families.text_part import parse_text_model, text_model_part
from radixrt.models.vision_spec import VisionSpec, check_heads, check_values, optional_part, part_of_config, token_id

NAMES = TensorNames(
    renamed=(
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
    ),
    skipped=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
"""Names in files of the hub, then those of transformers 5. The tower is skipped here, and loaded by itself."""
CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"
ABSENT = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""transformers' tower of a file without vision_config."""
SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
}
"""Sizes of the tower, and transformers' values of fields that are absent in vision_config."""
ACTIVATIONS: dict[str, Literal["gelu", "gelu_tanh", "quick_gelu"]] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    return parse_text_model(config, architecture, NAMES)


def parse_vision(config: Config, architecture: str, text: DecoderSpec) -> VisionSpec:
    """As `Family.parse_vision`."""
    vision = optional_part(config, "vision_config") or ABSENT
    kind = vision.get("model_type", CLIP)
    if kind not in (CLIP, SIGLIP):
        raise ModelLoadError(
            f"config.json: vision_config: model_type {kind!r} is not supported for {architecture}; {CLIP} and {SIGLIP}"
            " are"
        )
    clip = kind == CLIP
    # A row of the class stands before the patches of CLIP alone.
    check_values(config, architecture, {"projector_hidden_act": ("gelu",)})
    check_values(config, architecture, {"vision_feature_select_strategy": ("default",) if clip else ("full",)})
    name = "image_token_index" if config.get("image_token_id") is None else "image_token_id"
    image = token_id(config, name, 32000, text_model_part(config, architecture)["vocab_size"])
    with part_of_config("vision_config"):
        sizes = {name: positive_int(vision, name, default) for name, default in SIZES.items()}
        patch = positive_int(vision, "patch_size", 32 if clip else 16)
        check_values(vision, architecture, {"num_channels": (3,)})
        activation = vision.get("hidden_act", "quick_gelu" if clip else "gelu_pytorch_tanh")
        if activation not in ACTIVATIONS:
            raise ModelLoadError(f"config.json: hidden_act {activation!r} is not supported for {architecture}")
        check_heads(sizes["hidden_size"], sizes["num_attention_heads"], 1)
        eps = positive_float({"layer_norm_eps": 1e-5 if clip else 1e-6, **vision}, "layer_norm_eps")
    return VisionSpec(
        kind="llava",
        image_token_id=image,
        marker_ids=(),
        patch=patch,
        merge=1,
        depth=_blocks(config, architecture, sizes["num_hidden_layers"]),
        hidden=sizes["hidden_size"],
        intermediate=sizes["intermediate_size"],
        heads=sizes["num_attention_heads"],
        out_size=text.hidden_size,
        table_side=sizes["image_size"] // patch,
        image_size=sizes["image_size"],
        activation=ACTIVATIONS[activation],
        norm_eps=eps,
        class_token=clip,
        final_norm=False,
        projector_bias=flag(config, "multimodal_projector_bias", True),
    )


def _blocks(config: Config, architecture: str, blocks: int) -> int:
    """Return the number of blocks to compute: vision_feature_layer counts the states before and behind the blocks."""
    layer = config.get("vision_feature_layer", -2)
    if type(layer) is not int:
        raise ModelLoadError(
            f"config.json: vision_feature_layer {layer!r} is not supported for {architecture}; one layer is"
        )
    depth = layer if layer >= 0 else blocks + 1 + layer
    if not 1 <= depth <= blocks:
        raise ModelLoadError(f"config.json: vision_feature_layer {layer} is outside of the tower's {blocks} blocks")
    return depth


FAMILY = Family(
    ("LlavaForConditionalGeneration",),
    parse,
    text_fields=text_model_part,
    parse_vision=parse_vision,
    nearest=("llava",),
)
