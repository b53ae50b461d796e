"""`VisionSpec`: the vision part of a model, as config.json describes it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import positive_int

QWEN3_VL, SMOLVLM, LLAVA = (f"{name}ForConditionalGeneration" for name in ("Qwen3VL", "SmolVLM", "Llava"))
VISION_MODELS = (QWEN3_VL, "Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration", SMOLVLM, LLAVA)
"""Vision models that run, for messages."""

_BOTH_WAYS = "its tokens attend in both directions within an image", QWEN3_VL
_SECTIONS = "its rotary positions are in sections that are not interleaved", QWEN3_VL
_ANY_RESOLUTION = "it divides an image into tiles of any resolution, and packs their rows", LLAVA
_INTERN = "its tower, InternViT, is not implemented", QWEN3_VL
_PIXTRAL = "its tower, Pixtral, is not implemented", QWEN3_VL
UNSUPPORTED = {
    "Gemma": _BOTH_WAYS,
    "PaliGemma": _BOTH_WAYS,
    "Qwen2_5_VL": ("its vision tower attends within windows", QWEN3_VL),
    "Qwen2_5Omni": ("its vision tower attends within windows", QWEN3_VL),
    "Qwen2VL": _SECTIONS,
    "Glm4v": _SECTIONS,
    "InternVL": _INTERN,
    "InternS1": _INTERN,
    "LlavaNext": _ANY_RESOLUTION,
    "LlavaOnevision": _ANY_RESOLUTION,
    "Mistral3": _PIXTRAL,
    "Idefics2": ("it resamples an image's rows by attention", SMOLVLM),
    "Mllama": ("its text attends to images in layers of their own", QWEN3_VL),
}
"""Why vision models are refused, and the nearest model that runs, by the beginning of the architecture's name."""


@dataclass(frozen=True)
class VisionSpec:
    """A tower that encodes images, and what becomes of its rows in the text.

    Attributes:
        kind: which tower, and which processing of images.
        image_token_id: token at the positions of images in the model's own inputs; never sampled.
        marker_ids: tokens of config.json that stand around images, or for other media; never sampled.
        patch: side of a patch in pixels.
        merge: patches along each axis that become one position.
        depth: blocks to compute.
        hidden, intermediate, heads: of a block.
        out_size: of a row, equal to the hidden size of the text.
        table_side: learned positions along each axis.
        image_size: height and width of every image in pixels; None where both may be any multiple of patch * merge.
        frames: patches in a sequence that the weight of patches covers; a still image counts as `frames` equal ones.
        activation: of feed-forwards: "gelu", "gelu_tanh" or "quick_gelu".
        norm_eps: of layer norms.
        rotary_theta: of the tower's rotary embedding over rows and columns; None for a tower without one.
        class_token: whether a learned row precedes the patches, which are then without bias and normalized first.
        final_norm: whether rows are normalized behind the last block.
        projector_bias: whether the linear layers between tower and text have a bias.
        deepstack: blocks, in ascending order, after which rows are taken that are added to the hidden states of images
            behind the first text layers, one after the other.
        rotary_axes: axis of each frequency of the text's rotary embedding, 0 time, 1 height, 2 width; empty where an
            image's positions count as those of text do.
    """

    kind: Literal["qwen_vl", "idefics3", "llava"]
    image_token_id: int
    marker_ids: tuple[int, ...]
    patch: int
    merge: int
    depth: int
    hidden: int
    intermediate: int
    heads: int
    out_size: int
    table_side: int
    image_size: int | None = None
    frames: int = 1
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu_tanh"
    norm_eps: float = 1e-6
    rotary_theta: float | None = None
    class_token: bool = False
    final_norm: bool = True
    projector_bias: bool = True
    deepstack: tuple[int, ...] = ()
    rotary_axes: tuple[int, ...] = ()

    @property
    def head_dim(self) -> int:
        """Size of a head of the tower."""
        return self.hidden // self.heads

    @property
    def out_columns(self) -> int:
        """Numbers of a position of an image: its row, then its deepstack rows."""
        return self.out_size * (1 + len(self.deepstack))

    @property
    def num_parameters(self) -> int:
        """Parameters in memory: the weights of a patch's frames are added up."""
        hidden, wide = self.hidden, self.hidden * self.merge**2
        block = 4 * hidden**2 + 2 * hidden * self.intermediate + 9 * hidden + self.intermediate
        before = 3 * self.patch**2 * hidden + self.table_side**2 * hidden
        before += 4 * hidden if self.class_token else hidden  # a class, its position and a norm, or the patches' bias
        behind = self._projector_weights * (1 + len(self.deepstack)) + 2 * hidden * self.final_norm
        if self.kind == "qwen_vl":
            behind += (wide + self.out_size) * (1 + len(self.deepstack)) + 2 * wide * len(self.deepstack)
        elif self.projector_bias:
            behind += 2 * self.out_size
        return before + self.depth * block + behind

    @property
    def _projector_weights(self) -> int:
        """Weights of the linear layers that make a row."""
        wide = self.hidden * self.merge**2
        if self.kind == "idefics3":
            return wide * self.out_size
        return (wide + self.out_size) * (wide if self.kind == "qwen_vl" else self.out_size)

    def flops(self, height: int, width: int) -> int:
        """Return the operations of the matrix products for an image of a size in pixels."""
        return self.piece_flops(height, width, 0, self.depth)

    def piece_flops(self, height: int, width: int, first: int, count: int) -> int:
        """Return the part of `flops` that blocks [first, first + count) take: with the first block the patches, behind
        the last block and those of `deepstack` what makes rows."""
        rows, columns = self.grid(height, width)
        before = 2 * rows * columns * self.merge**2 * 3 * self.patch**2 * self.hidden if first == 0 else 0
        made = sum(first <= block < first + count for block in self.deepstack) + (first + count == self.depth)
        behind = 2 * rows * columns * self._projector_weights * made
        return before + count * self.block_flops(height, width) + behind

    def block_flops(self, height: int, width: int) -> int:
        """Return the part of `flops` that one block takes."""
        rows, columns = self.grid(height, width)
        tokens = rows * columns * self.merge**2 + self.class_token
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.intermediate
        return 2 * tokens * weights + 4 * tokens**2 * self.hidden

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of positions of an image of a size in pixels."""
        return height // self.patch // self.merge, width // self.patch // self.merge


def refuse_vision(architecture: str, config: Mapping[str, Any], instead: str = "") -> None:
    """Refuse a model of several parts whose images are not implemented.

    Args:
        instead: end of the message.

    Raises:
        ModelLoadError: names the architecture, the reason and the nearest vision model that runs.
    """
    if not any(isinstance(config.get(part), Mapping) for part in ("vision_config", "audio_config", "text_config")):
        return
    reasons = [reason for begin, reason in UNSUPPORTED.items() if architecture.startswith(begin)]
    why, nearest = reasons[0] if reasons else ("models of several parts need a family of their own", "")
    known = f"the nearest vision model that runs is {nearest}" if nearest else f"{', '.join(VISION_MODELS)} run"
    raise ModelLoadError(f"config.json: {architecture} is not supported: {why}; {known}{instead}")


@contextmanager
def part_of_config(name: str) -> Iterator[None]:
    """Name the object of config.json that is read in the messages of errors about its fields."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(str(error).replace("config.json: ", f"config.json: {name}: ", 1)) from None


def token_id(config: Mapping[str, Any], name: str, default: int, vocab_size: int) -> int:
    """Return the id of a token of the vocabulary."""
    found = positive_int(config, name, default, low=0)
    if found >= vocab_size:
        raise ModelLoadError(f"config.json: {name} {found} is outside of the vocabulary of {vocab_size}")
    return found


def check_heads(hidden: int, heads: int, multiple: int) -> None:
    """Refuse heads that do not divide the hidden size, or whose size is no multiple of a number."""
    if hidden % heads or hidden // heads % multiple:
        raise ModelLoadError(
            f"config.json: hidden_size {hidden} is not divided into {heads} heads of a multiple of {multiple}"
        )


def check_values(config: Mapping[str, Any], architecture: str, fields: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields that have other values than these; the first of each is the value of an absent field."""
    for name, allowed in fields.items():
        value = config.get(name, allowed[0])
        if value not in allowed:
            raise ModelLoadError(f"config.json: {name} {value!r} is not supported for {architecture}")


def optional_part(config: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return an object of config.json; None where the key is absent or null."""
    part = config.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise ModelLoadError(f"config.json: {name} must be an object, not {part!r}")
    return part
