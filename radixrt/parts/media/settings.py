"""`MediaSettings`: facts of a vision model that the scheduler needs, without tensors."""

from __future__ import annotations

from dataclasses import dataclass

CPU_FLOPS_PER_S, GPU_FLOPS_PER_S = 1e11, 3e14
"""Speeds of towers that are assumed until steps have shown them."""
IMAGES_IN_POOL = 4
"""Largest images that the encoder pool holds at the same time."""


def encoder_rows(max_image_tokens: int) -> int:
    """Return the number of rows of the encoder pool."""
    return IMAGES_IN_POOL * max_image_tokens


@dataclass(frozen=True)
class MediaSettings:
    """A vision tower and its place in the language model.

    Attributes:
        token: token id that the model reads at the positions of images.
        rows: rows of the encoder pool, at least those of the largest image.
        blocks: blocks of the tower.
        patch: side of a patch in pixels.
        hidden, intermediate: sizes of a block of the tower.
        is_rotary: rotary positions have several axes.
        flops_per_s: speed of the tower that is assumed until steps have shown it.
        shares_memory: every rank reads the files of pixels; otherwise steps carry the pixels.
    """

    token: int
    rows: int
    blocks: int
    patch: int
    hidden: int
    intermediate: int
    is_rotary: bool
    flops_per_s: float
    shares_memory: bool = True

    def block_flops(self, height: int, width: int) -> float:
        """Return the floating-point operations of one block for an image of this size in pixels: four projections of
        attention, two of the feed-forward network, and the attention of all patches to all."""
        patches = height * width / self.patch**2
        weights = 4 * self.hidden * self.hidden + 2 * self.hidden * self.intermediate
        return 2 * patches * (weights + 2 * patches * self.hidden)
