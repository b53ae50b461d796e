"""`MediaSettings`: facts of a vision model that the scheduler needs, and the size of the encoder pool; no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.models.vision_spec import VisionSpec

CPU_FLOPS_PER_S, GPU_FLOPS_PER_S = 1e11, 3e14
"""Speeds of towers that are assumed until steps have shown them, if no rank has measured its own."""
IMAGES_IN_POOL = 4
"""Largest images that the encoder pool holds at the same time."""


def encoder_rows(max_image_tokens: int) -> int:
    """Return the number of rows of the encoder pool."""
    return IMAGES_IN_POOL * max_image_tokens


@dataclass(frozen=True)
class MediaSettings:
    """A vision tower and its encoder pool, as the scheduler sees them.

    Attributes:
        vision: the tower, and its place in the language model.
        rows: rows of the encoder pool, at least those of the largest image.
        flops_per_s, image_s, block_s: times of the tower that are assumed until steps have shown them; see
            `TowerTimes`.
        shares_memory: every rank reads the files of pixels; otherwise steps carry the pixels.
        links: see `PixelLinks`.
    """

    vision: VisionSpec
    rows: int
    flops_per_s: float
    shares_memory: bool = True
    links: str = ""
    image_s: float = 1e-3
    block_s: float = 1e-4
