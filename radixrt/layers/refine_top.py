"""Recomputes in float32 the logits that decide a row's next token, where the output head's weight rounds."""

from __future__ import annotations

import math

import torch

NEAR_TOP = 4.0
"""Logits within so many nats of a row's largest are recomputed in float32: 26 tokens of a row on average with SmolLM2,
which hold 98 % of its probability. bfloat16 rounds a logit of 25 by up to 1/16."""

MAX_NEAR = 128
"""Most logits of a row that are recomputed. Where a distribution is so flat that more lie near the top, these are the
largest as bfloat16 has them, so that the argmax is among them unless more than 128 tokens lie within a rounding of the
top. Each other token then has a probability below 1/128, of which the rounding of a logit of 25 changes at most a
sixteenth. Without a bound, a flat row costs many times its linear layer."""

GATHERED = 256
"""Rows of the weight that are gathered at once: in float32 they stay in the cache."""

BLOCK = 64
"""Logits whose maximum is compared with the threshold at once."""


def refine_top(logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
    """Recompute in float32, in place, the logits near each row's largest, at most MAX_NEAR of a row.

    Args:
        logits: float32 [S, V], contiguous.
        hidden: [S, n].
        weight: [V, n].
    """
    for rows, ids in zip(*(torch.split(places, GATHERED) for places in _near_top(logits)), strict=True):
        logits[rows, ids] = (weight[ids].float() * hidden[rows].float()).sum(dim=1)


def _near_top(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and columns, int64 [n] each, of the logits within NEAR_TOP of their row's largest: the MAX_NEAR
    largest ones of a row that has more.

    They are found by the maxima of short blocks: comparing all logits takes ten times as long.
    """
    block = math.gcd(logits.shape[1], BLOCK)
    blocks = logits.view(logits.shape[0], -1, block)
    maxima = blocks.amax(dim=2)
    threshold = maxima.amax(dim=1, keepdim=True) - NEAR_TOP
    near = maxima >= threshold
    if int(near.sum(dim=1).max()) > MAX_NEAR:
        # The largest logits are in the blocks with the largest maxima.
        threshold = torch.maximum(threshold, maxima.topk(MAX_NEAR, dim=1).values[:, -1:])
        near = maxima >= threshold
    rows, places = near.nonzero(as_tuple=True)
    found, offsets = (blocks[rows, places] >= threshold[rows]).nonzero(as_tuple=True)
    rows, ids = rows[found], places[found] * block + offsets
    counts = rows.bincount(minlength=logits.shape[0]).tolist()
    if max(counts) <= MAX_NEAR:
        return rows, ids
    largest = [
        of_row[row_logits[of_row].topk(min(count, MAX_NEAR)).indices]
        for row_logits, of_row, count in zip(logits, torch.split(ids, counts), counts, strict=True)
    ]
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor([len(of_row) for of_row in largest]))
    return rows, torch.cat(largest)
