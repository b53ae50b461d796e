"""Qwen3-VL, dense or with experts: Qwen3's decoder with rotary positions on three axes, and its tower."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import flag, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.experts_spec import ExpertsSpec, parse_experts
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import dense_decoder, rope_sections, without_sections
from radixrt.models.families.qwen3_moe import EXPERTS_KEYS
from radixrt.models.families.text_part import text_part
from radixrt.models.vision_spec import (
    VisionSpec,
    check_heads,
    check_values,
    optional_part,
    part_of_config,
    token_id,
)

NAMES = TensorNames(renamed=(("model.language_model.", "model."),), skipped=("model.visual.",))
"""The tower is skipped here, and loaded by itself."""
TOKENS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
"""Fields with the ids of tokens, and transformers' values of absent fields."""
SECTIONS = (24, 20, 20)
"""mrope_section where config.json has none."""
DEFAULT_THETA = 500000.0
DEEPSTACK = (8, 16, 24)
SIZES = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "out_hidden_size": 3584,
}
"""Sizes of the tower, and transformers' values of absent fields."""
about_windows = re.compile("window|fullatt").search
"""Matches names of fields about attention within windows, which this tower does not have."""


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    check_values(config, architecture, {"use_sliding_window": (None, False), "norm_topk_prob": (None, True)})
    bias, head_dim = flag(config, "attention_bias"), 128
    experts: tuple[ExpertsSpec | None, frozenset[int]] = None, frozenset()
    if "Moe" in architecture:
        # A token's routing weights are always divided by their sum.
        experts = parse_experts({**config, "norm_topk_prob": True}, architecture, EXPERTS_KEYS)
        head_dim = positive_int(config, "hidden_size") // positive_int(config, "num_attention_heads")
    return dense_decoder(
        without_sections(config),
        architecture,
        head_dim=head_dim,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        default_theta=DEFAULT_THETA,
        experts=experts,
        names=NAMES,
    )


def parse_vision(config: Config, architecture: str, text: DecoderSpec) -> VisionSpec:
    """As `Family.parse_vision`."""
    return parse_tower(config, architecture, text, TOKENS, sections=SECTIONS, deepstack=DEEPSTACK)


def parse_tower(
    config: Config,
    architecture: str,
    text: DecoderSpec,
    tokens: Mapping[str, int],
    *,
    sections: Sequence[int],
    deepstack: Sequence[int] | None,
) -> VisionSpec:
    """Return the vision part of a model with this tower.

    Args:
        tokens: fields with the ids of tokens, that of images first, and the values of absent fields.
        sections: mrope_section where there is none.
        deepstack: deepstack_visual_indexes where there are none; None for a tower without deepstack.
    """
    decoder, vision = text_part(config, architecture), optional_part(config, "vision_config") or {}
    vocabulary = positive_int(decoder, "vocab_size")
    image, *markers = (token_id(config, name, default, vocabulary) for name, default in tokens.items())
    with part_of_config("vision_config"):
        sizes = {name: _size(vision, name, default) for name, default in SIZES.items()}
        check_values(vision, architecture, {"hidden_act": ("gelu_pytorch_tanh",), "in_channels": (3,)})
        if windows := sorted(name for name, value in vision.items() if value and about_windows(name)):
            raise ModelLoadError(
                f"config.json: {', '.join(windows)} is not supported for {architecture}; its tower attends to all of"
                " an image"
            )
        check_heads(sizes["hidden_size"], sizes["num_heads"], 4)
        if sizes["out_hidden_size"] != text.hidden_size:
            raise ModelLoadError(
                f"config.json: out_hidden_size {sizes['out_hidden_size']} is not the text's hidden_size"
                f" {text.hidden_size}"
            )
        return VisionSpec(
            kind="qwen_vl",
            image_token_id=image,
            marker_ids=tuple(markers),
            patch=sizes["patch_size"],
            merge=sizes["spatial_merge_size"],
            depth=sizes["depth"],
            hidden=sizes["hidden_size"],
            intermediate=sizes["intermediate_size"],
            heads=sizes["num_heads"],
            out_size=sizes["out_hidden_size"],
            table_side=_table_side(sizes["num_position_embeddings"]),
            frames=sizes["temporal_patch_size"],
            rotary_theta=_rotary_theta(vision),
            deepstack=_deepstack(vision, deepstack, sizes["depth"], len(text.layers)),
            rotary_axes=interleaved_axes(rope_sections(decoder, sections), (text.rotary_dim or text.head_dim) // 2),
        )


def interleaved_axes(sections: Sequence[int], frequencies: int) -> tuple[int, ...]:
    """Return the axis of each frequency of the text's rotary embedding: time, height and width in turn, and time alone
    behind the sections of the other two."""
    return tuple(i % 3 if i % 3 and i < 3 * sections[i % 3] else 0 for i in range(frequencies))


def _size(vision: Config, name: str, default: int) -> int:
    """Return a size; one of an axis may be written as a list of equal numbers, one for each axis."""
    value = vision.get(name)
    if isinstance(value, (list, tuple)) and value and all(each == value[0] for each in value):
        return positive_int({name: value[0]}, name)
    return positive_int(vision, name, default)


def _table_side(positions: int) -> int:
    side = math.isqrt(positions)
    if side * side != positions:
        raise ModelLoadError(f"config.json: num_position_embeddings {positions} is no square number")
    return side


def _rotary_theta(vision: Config) -> float:
    rope = optional_part(vision, "rope_parameters") or {}
    with part_of_config("rope_parameters"):
        check_values(rope, "the tower", {"rope_type": ("axial", "default")})
        if unknown := sorted(set(rope) - {"rope_type", "rope_theta"}):
            raise ModelLoadError(f"config.json: {', '.join(unknown)} is not supported for the tower")
        return positive_float({"rope_theta": 10000.0, **rope}, "rope_theta")


def _deepstack(vision: Config, default: Sequence[int] | None, depth: int, layers: int) -> tuple[int, ...]:
    name = "deepstack_visual_indexes"
    found = vision.get(name)
    found = default or [] if found is None else found
    if not isinstance(found, (list, tuple)) or any(type(i) is not int for i in found):
        raise ModelLoadError(f"config.json: {name} must list the indices of blocks, not {found!r}")
    if default is None and found:
        raise ModelLoadError(f"config.json: {name} {list(found)} is not supported for a tower without deepstack")
    if sorted(set(found)) != list(found) or any(not 0 <= i < depth for i in found) or len(found) >= layers:
        raise ModelLoadError(
            f"config.json: {name} {list(found)} must be ascending indices of the tower's {depth} blocks, fewer than"
            f" the text's {layers} layers"
        )
    return tuple(found)


FAMILY = Family(
    ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
    parse,
    text_fields=text_part,
    parse_vision=parse_vision,
    nearest=("qwen3vl",),
)
