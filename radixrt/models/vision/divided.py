"""Encoding of several images by the ranks that share a model, each of which holds the whole tower."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from radixrt.distributed.parallel import TPGroup
from radixrt.models.vision.together import encode_together
from radixrt.models.vision.tower import VisionTower


def encode_divided(tower: VisionTower, images: Sequence[torch.Tensor], group: TPGroup) -> list[torch.Tensor]:
    """Encode images, each on one rank, and return the rows of all of them on every rank, in order.

    All ranks must call this with the same images at the same time. A single image is encoded by every rank, which takes
    no longer than to encode the image on one rank and to send the rows.

    Args:
        images: pixels, see `VisionTower.begin`.
    """
    if group.size == 1 or len(images) < 2:
        return encode_together(tower, images)
    sizes = [(pixels.shape[0], pixels.shape[1]) for pixels in images]
    counts = [rows * columns for rows, columns in (tower.spec.grid(*size) for size in sizes)]
    shares = divide([tower.spec.flops(*size) for size in sizes], group.size)
    # Every rank brings as many rows as the rank that has most.
    most = max(sum(counts[i] for i in share) for share in shares)
    device = images[0].device
    own = torch.zeros(most, tower.out_columns, dtype=tower.context.activation_dtype, device=device)
    place = 0
    share = shares[group.rank]
    for i, rows in zip(share, encode_together(tower, [images[i] for i in share]), strict=True):
        own[place : place + counts[i]] = rows
        place += counts[i]
    gathered = group.all_gather_rows(own).view(group.size, most, -1)
    found: dict[int, torch.Tensor] = {}
    for rows, share in zip(gathered, shares, strict=True):
        found.update(zip(share, rows.split([*(counts[i] for i in share), most - sum(counts[i] for i in share)])))
    return [found[i] for i in range(len(images))]


def divide(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the indices that each rank gets: the largest costs first, each to the rank with the least sum so far."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    sums = [0] * ranks
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        rank = sums.index(min(sums))
        shares[rank].append(i)
        sums[rank] += costs[i]
    return shares
