"""Sizes of images after resizing, as the processors of transformers compute them."""

from __future__ import annotations

import math

from radixrt.vision.limits import MAX_ASPECT, ImageError

MAX_LONGEST_EDGE = 4_096
"""Longest side of a picture before it is divided into tiles."""

Size = tuple[int, int]
"""Height and width in pixels."""


def smart_resize(height: int, width: int, factor: int, low: int, high: int) -> Size:
    """Return the size of an image for a tower with any number of patches.

    Args:
        factor: both sides of the result are multiples of this.
        low, high: bounds of the result's number of pixels. `high` is exceeded only where a side is one `factor`.

    Raises:
        ImageError: the aspect ratio is over 200.
    """
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise ImageError(f"the image's long side may be {MAX_ASPECT} times its short one; crop or divide it")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > high:
        scale = math.sqrt(height * width / high)
        rows = max(factor, math.floor(height / scale / factor) * factor)
        columns = max(factor, math.floor(width / scale / factor) * factor)
    elif rows * columns < low:
        scale = math.sqrt(low / (height * width))
        rows = math.ceil(height * scale / factor) * factor
        columns = math.ceil(width * scale / factor) * factor
    return rows, columns


def fit_longest_edge(height: int, width: int, longest: int) -> Size:
    """Return the size with the longest side `longest` and the aspect ratio kept, the other side even; enlarges small
    images. No side is over `MAX_LONGEST_EDGE`."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > MAX_LONGEST_EDGE:
        width, height = MAX_LONGEST_EDGE, int(MAX_LONGEST_EDGE / ratio)
    elif height > width and height > MAX_LONGEST_EDGE:
        height, width = MAX_LONGEST_EDGE, int(MAX_LONGEST_EDGE * ratio)
    return max(height, 1), max(width, 1)


def fit_tiles(height: int, width: int, tile: int) -> Size:
    """Return the size that whole tiles cover, with both sides rounded up to multiples of `tile`."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return height, width


def fit_shortest_edge(height: int, width: int, shortest: int) -> Size:
    """Return the size with the shortest side `shortest` and the aspect ratio kept."""
    if width <= height:
        return int(shortest * height / width), shortest
    return shortest, int(shortest * width / height)
