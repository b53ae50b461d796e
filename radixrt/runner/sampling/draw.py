"""Drawing one token for each row: weights, filters, and the inverse of the cumulative distribution.

A draw is a function of (seed, position) and the row's own logits. Each row is computed independently, so its token does
not depend on the other rows of the batch.

The weight of a token is exp((logit - best) / temperature), where best is the row's largest logit. A filter keeps a set
of tokens; the drawn token is the first kept token, by id, at which the running sum of weights exceeds u times their
total. Two implementations give the same token: dense tensors over all rows at once, which never wait for a device
(`Cutoff`, `inverse_cdf`), and numpy over the few candidates of one row, which is faster on a CPU (`draw_row`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

BLOCK = 64
"""Tokens of a block, whose weights are summed first, so that cumulative sums run over vocab / BLOCK + BLOCK numbers."""

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


# --- all rows at once -----------------------------------------------------------------------------------------------


def token_weights(logits: torch.Tensor, best: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return float32 [D, vocab rounded up to BLOCK], each token's weight, in [0, 1]; 0 beyond the vocabulary.

    Args:
        logits: float32 [D, vocab].
        best: float32 [D].
        temperature: float32 [D].
    """
    scaled = (logits - best[:, None]).div_(temperature[:, None])
    if scaled.shape[1] % BLOCK:
        scaled = F.pad(scaled, (0, -scaled.shape[1] % BLOCK), value=-torch.inf)
    return scaled.exp_()


def inverse_cdf(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return int64 [D], the token at quantile u of each row: see the module's docstring.

    The search has two levels, in float64: the block of BLOCK tokens, then the token within the block. A token of weight
    0 is never drawn. A row of NaN gives an arbitrary token and no error.

    Args:
        weights: float32 [D, multiple of BLOCK], not negative.
        u: float64 [D] in [0, 1).
    """
    blocks, rest = _part_at(_block_sums(weights), u)
    rows = torch.arange(len(weights), device=weights.device)
    chosen = weights.view(len(weights), -1, BLOCK)[rows, blocks].double()
    offsets, _ = _part_at(chosen, rest)
    return blocks * BLOCK + offsets


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    return weights.view(len(weights), -1, BLOCK).sum(-1).double()


def _part_at(sizes: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide [0, 1) in proportion to sizes [D, n]; return the part that contains u, and u's position in it, in [0,
    1]."""
    cum = sizes.cumsum(-1)
    target = u * cum[:, -1]
    # The second count is the last part that is not empty, in case rounding moves the target to the very end.
    part = torch.minimum((cum <= target[:, None]).sum(-1), (cum < cum[:, -1:]).sum(-1))
    end = cum.gather(1, part[:, None])[:, 0]
    size = sizes.gather(1, part[:, None])[:, 0]
    return part, ((target - (end - size)) / size).clamp_(0.0, 1.0)


@dataclass(frozen=True)
class Cutoff:
    """Tokens that a filter keeps: all tokens above `threshold` (float32 [D], a logit), and the first `ties` (int64 [D])
    tokens by id of those that equal it."""

    threshold: torch.Tensor
    ties: torch.Tensor

    def apply(self, weights: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Set the weights (float32 [D, padded vocab]) of all other tokens to 0, in place; returns weights."""
        threshold = self.threshold[:, None]
        equal = logits == threshold
        surplus = equal & (equal.cumsum(-1, dtype=torch.int32) > self.ties[:, None])
        weights[:, : logits.shape[1]].masked_fill_((logits < threshold) | surplus, 0.0)
        return weights


def top_k_cutoff(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, largest_k: int
) -> Cutoff:
    """Keep the best top_k tokens of each row, and of those the fewest best ones whose mass is at least top_p of theirs.

    Args:
        logits: float32 [D, vocab].
        temperature: float32 [D].
        top_k: int64 [D], from 1 to largest_k.
        top_p: float64 [D], 1 where the filter is off.
    """
    values = logits.topk(largest_k).values
    cum = _cumulative(values, temperature)
    mass = cum.gather(1, top_k[:, None] - 1)
    kept = torch.minimum((cum < top_p[:, None] * mass).sum(-1) + 1, top_k)
    return _cutoff(values, torch.where(top_p < 1.0, kept, top_k))


def top_p_cutoff(logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, weights: torch.Tensor) -> Cutoff:
    """Keep the fewest best tokens of each row whose mass is at least top_p of the whole row's, and at least one.

    The whole row is sorted: sorting the best few first would need a synchronization to find out whether they suffice.

    Args:
        logits, temperature, top_p: as for `top_k_cutoff`.
        weights: float32 [D, padded vocab], result of `token_weights`.
    """
    values = logits.sort(dim=-1, descending=True).values
    target = top_p * _block_sums(weights).sum(-1)
    kept = (_cumulative(values, temperature) < target[:, None]).sum(-1) + 1
    return _cutoff(values, kept.clamp_(max=logits.shape[1]))


def _cumulative(values: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return float64 [D, n], running sums of the weights of logits in descending order."""
    weights = (values - values[:, :1]).div_(temperature[:, None]).exp_()
    return weights.cumsum(-1, dtype=torch.float64)


def _cutoff(values: torch.Tensor, kept: torch.Tensor) -> Cutoff:
    """Keep the best `kept` (int64 [D]) tokens, given at least that many of each row's best logits in descending
    order."""
    threshold = values.gather(1, kept[:, None] - 1)
    return Cutoff(threshold[:, 0], kept - (values > threshold).sum(-1))


# --- row by row, in numpy -------------------------------------------------------------------------------------------


def draw_row(logits: Floats, best: float, u: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """Return the token at quantile u of one row; top_k is the vocabulary, top_p 1 and min_p 0 where the filter is off.

    Args:
        logits: float32 [vocab]; `best` is the largest of them and finite.
    """
    vocab = len(logits)
    if top_k < vocab:
        ids = _best_ids(logits, np.partition(logits, vocab - top_k)[vocab - top_k], top_k)
        weights = _weights(logits[ids], best, temperature)
        if top_p < 1.0:
            inside = _nucleus(weights, top_p * float(weights.sum()))
            ids, weights = ids[inside], weights[inside]
    elif top_p < 1.0:
        weights = _weights(logits, best, temperature)
        ids = _nucleus(weights, top_p * float(weights.sum()))
        weights = weights[ids]
    else:
        least = best + temperature * math.log(min_p)
        # Rounding may only admit too many candidates here: the weights decide below.
        ids = np.flatnonzero(logits >= np.float32(least - 1e-5 * (1.0 + abs(best) + abs(least))))
        weights = _weights(logits[ids], best, temperature)
    if min_p > 0.0:
        heavy = weights >= np.float32(min_p)
        ids, weights = ids[heavy], weights[heavy]
    cum = _running_sum(weights)
    return int(ids[cum.searchsorted(u * cum[-1], side="right")])


def _nucleus(weights: Floats, target: float) -> Indices:
    """Return the ids, ascending, of the fewest heaviest tokens whose weights add up to at least the target.

    Light tokens are excluded before sorting: usually all below 1e-4 of the target; if the others do not reach the
    target, fewer, down to tokens so light that they do not change a float32 sum.
    """
    for share in (1e-4, 1e-6, 1e-8 / len(weights)):
        ids = np.flatnonzero(weights >= np.float32(share * target))
        ranked = np.sort(weights[ids])[::-1].copy()
        cum = _running_sum(ranked)
        if len(ids) and cum[-1] >= target:
            break
    kept = min(int(cum.searchsorted(target)) + 1, len(ranked))
    return ids[_best_ids(weights[ids], ranked[kept - 1], kept)]


def _weights(logits: Floats, best: float, temperature: float) -> Floats:
    scaled = logits - np.float32(best)
    scaled /= np.float32(temperature)
    np.exp(scaled, out=scaled)
    return scaled


def _running_sum(weights: Floats) -> npt.NDArray[np.float64]:
    """Compute with torch, which takes a fifth of numpy's time."""
    return torch.from_numpy(weights).cumsum(0, dtype=torch.float64).numpy()


def _best_ids(values: Floats, least: np.float32, n: int) -> Indices:
    """Return the ids of the n largest values, ascending, given the n-th largest; equal values by id."""
    ids = np.flatnonzero(values >= least)
    surplus = len(ids) - n
    if surplus > 0:
        ids = np.delete(ids, np.flatnonzero(values[ids] == least)[-surplus:])
    return ids
