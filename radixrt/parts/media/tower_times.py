"""`TowerTimes`: model of the seconds that a vision tower takes, corrected by the steps as they are answered.

    scale * (image * images begun + block * blocks + floating-point operations / speed)

To begin an image, its pixels are read and copied to the device; the kernels of a block are launched. For small images
these fixed times exceed the time of the products. Steps correct the scale alone.
"""

from __future__ import annotations

from typing import NamedTuple

LEARNING = 0.2
"""Weight of a step in the mean scale, if the step has no other work."""
CLIP = 4.0
"""Largest ratio of the time in one step to the mean, either way: a step may capture a graph."""
LEAST_SHARE = 0.1
"""The tower takes at least this share of the time of a step, whatever the model of tokens says."""


class TowerWork(NamedTuple):
    """Work of the tower in one step.

    Attributes:
        images: number of images whose encoding begins.
        blocks: number of blocks, counted for each image.
        flops: floating-point operations of the matrix products.
    """

    images: float = 0.0
    blocks: float = 0.0
    flops: float = 0.0

    def plus(self, other: TowerWork, share: float = 1.0) -> TowerWork:
        """Return the sum of this work and a share of another."""
        return TowerWork(*(own + share * more for own, more in zip(self, other, strict=True)))


NO_WORK = TowerWork()


class TowerTimes:
    """See the module's docstring.

    Args:
        flops_per_s: speed of the products.
        image_s, block_s: fixed seconds of an image and of a block.
    """

    def __init__(self, flops_per_s: float, image_s: float = 0.0, block_s: float = 0.0) -> None:
        self._flops_per_s, self._image_s, self._block_s = flops_per_s, image_s, block_s
        self._scale = 1.0

    def seconds(self, work: TowerWork) -> float:
        """Return the predicted seconds of some work."""
        fixed_s = self._image_s * work.images + self._block_s * work.blocks
        return self._scale * (fixed_s + work.flops / self._flops_per_s)

    def learn(self, work: TowerWork, step_s: float, tokens_s: float) -> None:
        """Learn from a step.

        Args:
            step_s: time that the step took.
            tokens_s: predicted time of the step's tokens. The larger it is beside the predicted time of the tower, the
                less does the step say about the tower.
        """
        known = self.seconds(work)
        ratio = max(step_s - tokens_s, LEAST_SHARE * step_s) / known
        weight = LEARNING * known / (known + tokens_s)
        self._scale *= 1 + weight * (min(max(ratio, 1 / CLIP), CLIP) - 1)
