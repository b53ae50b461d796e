"""Idefics3 and SmolVLM: Llama's decoder, and a SigLIP tower over tiles of an image."""

from __future__ import annotations

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.families.family import Config, Family
from radixrt.models.families.text_part import parse_text_model, text_model_part
from radixrt.models.vision_spec import VisionSpec, check_heads, check_values, optional_part, part_of_config, token_id

NAMES = TensorNames(renamed=(("model.text_model.", "model."),), skipped=("model.vision_model.", "model.connector."))
"""The tower is skipped here, and loaded by itself."""
SIZES = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
"""Sizes of the tower, and transformers' values of absent fields."""


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    return parse_text_model(config, architecture, NAMES)


def parse_vision(config: Config, architecture: str, text: DecoderSpec) -> VisionSpec:
    """As `Family.parse_vision`."""
    vision, vocabulary = (
        optional_part(config, "vision_config") or {},
        text_model_part(config, architecture)["vocab_size"],
    )
    shuffle, image = positive_int(config, "scale_factor", 2), token_id(config, "image_token_id", 128257, vocabulary)
    with part_of_config("vision_config"):
        sizes = {name: positive_int(vision, name, default) for name, default in SIZES.items()}
        check_values(vision, architecture, {"hidden_act": ("gelu_pytorch_tanh",), "num_channels": (3,)})
        check_heads(sizes["hidden_size"], sizes["num_attention_heads"], 1)
        side, patch = sizes["image_size"], sizes["patch_size"]
        if side < patch or side // patch % shuffle:
            raise ModelLoadError(
                f"config.json: image_size {side} with patch_size {patch} makes {side // patch} patches along an axis,"
                f" no multiple of scale_factor {shuffle}"
            )
        return VisionSpec(
            kind="idefics3",
            image_token_id=image,
            marker_ids=(),
            patch=patch,
            merge=shuffle,
            depth=sizes["num_hidden_layers"],
            hidden=sizes["hidden_size"],
            intermediate=sizes["intermediate_size"],
            heads=sizes["num_attention_heads"],
            out_size=text.hidden_size,
            table_side=side // patch,
            image_size=side,
            norm_eps=positive_float({"layer_norm_eps": 1e-6, **vision}, "layer_norm_eps"),
            projector_bias=False,
        )


FAMILY = Family(
    ("SmolVLMForConditionalGeneration", "Idefics3ForConditionalGeneration"),
    parse,
    text_fields=text_model_part,
    parse_vision=parse_vision,
    nearest=("smolvlm", "idefics"),
)
