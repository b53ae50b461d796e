"""`RotaryPositions`: rotary positions of a row with images, for models with positions on several axes (M-RoPE).

A text token has the same position p on the axes of time, height and width, and the next token has p + 1. An image at p
has (p, p + row, p + column) at each of its merged patches, and the token behind it has p + max(rows, columns). So
positions grow slower than tokens, and a token's position depends on the tokens before it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from radixrt.messages.images import RowImage
from radixrt.messages.wire import Int32Array


class RotaryPositions:
    """See the module's docstring.

    Args:
        images: images of the row, in ascending order.

    Attributes:
        end: position behind the last image.
        offset: rotary position minus position of every token behind the last image.
    """

    def __init__(self, images: Sequence[RowImage]) -> None:
        self._images = images
        shifts = (max(image.rows, image.columns) - image.count for image in images)
        self._offsets = list(accumulate(shifts, initial=0))
        self._ends = [image.end for image in images]
        self.end = self._ends[-1] if images else 0
        self.offset = self._offsets[-1]

    def within(self, start: int, stop: int) -> Int32Array:
        """Return int32 [3, stop - start], the rotary positions of the tokens at positions [start, stop)."""
        places = np.arange(start, stop, dtype=np.int32)
        behind = np.searchsorted(self._ends, places, "right")
        found: Int32Array = np.tile(places + np.array(self._offsets, np.int32)[behind], (3, 1))
        for image, offset in zip(self._images, self._offsets, strict=False):
            first, last = max(start, image.start), min(stop, image.end)
            if first >= last:
                continue
            patch = np.arange(first - image.start, last - image.start, dtype=np.int32)
            here = found[:, first - start : last - start]
            here[:] = image.start + offset
            here[1] += patch // image.columns
            here[2] += patch % image.columns
        return found
