"""Encoding of several images in few calls of a tower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from radixrt.models.vision.tower import VisionTower

CALL_PATCHES = 8192
"""Patches of all images of a call, unless one image has more."""


def encode_together(tower: VisionTower, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Encode images, and return the rows of each. Images with a captured graph are encoded from it, all others are
    packed into calls of any sizes.

    Args:
        images: pixels, see `VisionTower.begin`.
    """
    sizes = [(pixels.shape[0], pixels.shape[1]) for pixels in images]
    counts = [rows * columns for rows, columns in (tower.spec.grid(*size) for size in sizes)]
    patches = [count * tower.spec.merge**2 for count in counts]
    found: dict[int, torch.Tensor] = {}

    def take(call: Sequence[int], rows: torch.Tensor) -> None:
        found.update(zip(call, torch.split(rows, [counts[i] for i in call]), strict=True))

    loose: list[int] = []
    for _, group in groupby(sorted(range(len(images)), key=sizes.__getitem__), key=sizes.__getitem__):
        for call in equal_calls(list(group), patches):
            rows = None if tower.replay is None else tower.replay([images[i] for i in call])
            if rows is None:
                loose += call
            else:
                take(call, rows)
    for call in packed_calls(loose, patches):
        take(call, tower.encode_directly(*(images[i] for i in call)))
    return [found[i] for i in range(len(images))]


def equal_calls(group: Sequence[int], patches: Sequence[int]) -> Iterator[Sequence[int]]:
    """Divide images of one size into calls. The numbers of images are powers of two, so that few graphs serve any
    number of images.

    Args:
        group: indices of the images.
        patches: of each index.
    """
    while group:
        most = max(1, min(len(group), CALL_PATCHES // patches[group[0]]))
        count = 1 << most.bit_length() - 1
        yield group[:count]
        group = group[count:]


def packed_calls(images: Sequence[int], patches: Sequence[int]) -> Iterator[Sequence[int]]:
    """Divide images of any sizes into calls, in order; arguments as of `equal_calls`."""
    call: list[int] = []
    for i in images:
        if call and sum(patches[j] for j in call) + patches[i] > CALL_PATCHES:
            yield call
            call = []
        call.append(i)
    if call:
        yield call
