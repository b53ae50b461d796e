"""Pictures for tests: random pixels in any mode, encoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "I;16")


def random_image(seed: int, height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Make an image of random pixels; "PA" has a palette with a transparent color."""
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 65_536, (height, width), np.uint16))
    channels = {"RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2}.get(mode, 1)
    pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
    if mode in ("P", "PA"):
        image = Image.fromarray(pixels[..., 0] % 16, "P")
        image.putpalette(rng.integers(0, 256, 48, np.uint8).tobytes())
        return image
    if mode == "1":
        return Image.fromarray(pixels[..., 0]).convert("1")
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels, None if channels == 1 else mode)


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """Encode an image."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def picture(height: int, width: int, seed: int = 0, format: str = "PNG") -> bytes:
    """Make an encoded picture of random RGB pixels."""
    return encoded(random_image(seed, height, width), format)
