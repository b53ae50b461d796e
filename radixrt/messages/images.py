"""Images in the rows of a request: the keys of their positions, and where the ModelRunner finds their pixels.

A row of tokens holds a key at each position of an image, in place of the model's image token. Keys are derived from the
pixels, so that the radix tree, granules, cache events and tiers tell images apart without knowing of images. A key is
at most -2: -1 stands for a token that is not known yet, and all other values are token ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from radixrt.messages.wire import Int32Array

MAX_KEY = -2
"""Largest key."""

PROVEN_KEYS = 4
"""Number of equal keys of an image that prove equal pixels: 124 bits. Fewer equal keys may be a collision."""


class RowImage(msgspec.Struct, frozen=True, array_like=True):
    """One image of a row. The tiles of a divided picture are images of their own.

    Attributes:
        start: position of the image's first key in the row.
        count: number of keys, rows * columns for a model whose positions are multidimensional.
        rows, columns: size of the image in merged patches, each of which is one position.
        height, width: size of the processed image in pixels.
        digest: SHA-256 of the processed pixels, their size and the settings of the processing.
        pixels: path of a file with uint8 [height, width, 3], valid until the request has ended.
    """

    start: int
    count: int
    rows: int
    columns: int
    height: int
    width: int
    digest: bytes
    pixels: str

    @property
    def end(self) -> int:
        """Position behind the image's last key."""
        return self.start + self.count


def images_to_encode(images: Iterable[RowImage], cached: int) -> Iterator[RowImage]:
    """Yield the images of a row that must be encoded if the keys and values of its first `cached` tokens are cached:
    those with positions behind, each picture once."""
    seen: set[bytes] = set()
    for image in images:
        if image.end > cached and image.digest not in seen:
            seen.add(image.digest)
            yield image


def image_keys(digest: bytes, count: int) -> Int32Array:
    """Return int32 [count], the keys of an image's positions, each of them 31 bits of a hash of the digest and the
    position.

    Args:
        digest: `RowImage.digest`.
    """
    drawn = hashlib.shake_128(digest).digest(8 * count)
    numbers = np.frombuffer(drawn, "<u8") % np.uint64(2**31 - 2)
    keys: Int32Array = (MAX_KEY - numbers.astype(np.int64)).astype(np.int32)
    return keys
