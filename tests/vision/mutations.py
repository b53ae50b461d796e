"""Mutated pictures: bytes that are flipped, cut, repeated, and taken from other files."""

from __future__ import annotations

import random

from radixrt.vision.limits import ImageError
from radixrt.vision.processor import ImageProcessor
from tests.vision.pictures import MODES, encoded, random_image


def seeds() -> list[bytes]:
    """Encoded pictures of every format and mode."""
    files = [
        encoded(random_image(i, 48, 64, mode), "JPEG" if mode == "CMYK" else "PNG") for i, mode in enumerate(MODES)
    ]
    for format, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True})):
        files.append(encoded(random_image(0, 48, 64), format, **options))
    return files


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a file in one to four places, more often in its header than behind it."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(changed), rng.choice((40, 200, len(changed)))))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1"))
        elif kind == 2:
            del changed[at : at + rng.randint(1, 50)]
        elif kind == 3:
            changed[at:at] = changed[at : at + rng.randint(1, 50)]
        else:
            start = rng.randrange(len(other))
            changed[at : at + 30] = other[start : start + 30]
        if not changed:
            return b""
    return bytes(changed)


def mutated(rng: random.Random, count: int, processor: ImageProcessor) -> int:
    """Process mutated pictures, each of which is read or refused with an `ImageError`; return how many were read."""
    files = seeds()
    num_read = 0
    refusals: list[str] = []
    for _ in range(count):
        data = mutate(rng, rng.choice(files), rng.choice(files))
        try:
            for tile in processor.process(data):
                assert tile.pixels.shape == (tile.rows * 32, tile.columns * 32, 3)
            num_read += 1
        except ImageError as error:
            refusals.append(str(error))
    assert all(text.startswith(("the image", "the bytes")) for text in refusals)
    return num_read
