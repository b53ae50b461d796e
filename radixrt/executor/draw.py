"""Drawing one token per row: the random numbers, the weights, the filters, and the inverse of the cumulative sum.

A draw is a function of (seed, position) and the row's own logits. Every step here works on each row by itself, so a
row's token does not depend on what else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

BLOCK = 64
"""Tokens whose weights are summed first, so that the cumulative sums run over vocab / BLOCK + BLOCK numbers."""

FIRST_CANDIDATES = 1024
"""Most probable tokens that top_p looks at first; if their mass does not reach it, all are sorted."""

TIE_SLACK = 16
"""Candidates beyond top_k, so that the list usually shows by itself how many tokens tie with the k-th."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: npt.NDArray[np.int64], positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per (seed, position), 53 random bits each.

    It is the position-th output of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014: a Weyl sequence through a 64-bit
    mixer), started at the mixed seed, so that the sequences of seeds that count up lie nowhere near each other.
    """
    start = _mix(seeds.astype(np.int64).view(np.uint64) + GOLDEN)
    bits = _mix(start + GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return np.asarray(z ^ (z >> np.uint64(31)))


def token_weights(logits: torch.Tensor, best: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """exp((logit - best) / temperature), in [0, 1]: float32 [D, vocab rounded up to BLOCK], padded with 0.

    Args:
        logits: float32 [D, vocab].
        best: float32 [D], each row's largest logit.
        temperature: float32 [D].
    """
    scaled = (logits - best[:, None]).div_(temperature[:, None])
    if scaled.shape[1] % BLOCK:
        scaled = F.pad(scaled, (0, -scaled.shape[1] % BLOCK), value=-torch.inf)
    return scaled.exp_()


def inverse_cdf(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """int64 [D], the first token at which the cumulative weight, in token order, exceeds u times the total.

    Two levels, in float64: the block of BLOCK tokens, then the token within it. A token of weight 0 is never drawn.
    A row of NaN gives some token and no error.

    Args:
        weights: float32 [D, multiple of BLOCK], not negative.
        u: float64 [D] in [0, 1).
    """
    blocks, rest = _first_above(_block_sums(weights), u)
    rows = torch.arange(len(weights), device=weights.device)
    chosen = weights.view(len(weights), -1, BLOCK)[rows, blocks].double()
    offsets, _ = _first_above(chosen, rest)
    return blocks * BLOCK + offsets


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    return weights.view(len(weights), -1, BLOCK).sum(-1).double()


def _first_above(sizes: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split [0, 1) in proportion to sizes [D, n]: the part that u falls in, and where in that part, again in [0, 1]."""
    cum = sizes.cumsum(-1)
    target = u * cum[:, -1]
    # The second count is the last part that is not empty, should rounding carry the target to the very end.
    part = torch.minimum((cum <= target[:, None]).sum(-1), (cum < cum[:, -1:]).sum(-1))
    end = cum.gather(1, part[:, None])[:, 0]
    size = sizes.gather(1, part[:, None])[:, 0]
    return part, ((target - (end - size)) / size).clamp_(0.0, 1.0)


@dataclass(frozen=True)
class Cutoff:
    """Which tokens a filter keeps: all above `threshold`, and the `ties` tokens of lowest id that equal it.

    Attributes:
        threshold: float32 [D], a logit.
        ties: int64 [D], at least 1.
        all_ties: bool [D], true where no more than `ties` tokens are known to equal the threshold.
    """

    threshold: torch.Tensor
    ties: torch.Tensor
    all_ties: torch.Tensor

    def apply(self, weights: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Set the weights (float32 [D, padded vocab]) of all other tokens to 0, in place; returns weights."""
        dense = weights[:, : logits.shape[1]]
        dense.masked_fill_(logits < self.threshold[:, None], 0.0)
        if logits.is_cuda:
            dense.masked_fill_(_surplus(logits, self.threshold, self.ties), 0.0)
            return weights
        unsure = (~self.all_ties).nonzero()[:, 0]
        if len(unsure):
            surplus = _surplus(logits[unsure], self.threshold[unsure], self.ties[unsure])
            dense[unsure] = dense[unsure].masked_fill_(surplus, 0.0)
        return weights


def top_k_cutoff(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, largest_k: int
) -> Cutoff:
    """The best top_k tokens of each row, and of those the fewest best ones whose mass is at least top_p of theirs.

    Tokens are ranked by logit, equal ones by id. Never waits for the device.

    Args:
        logits: float32 [D, vocab].
        temperature: float32 [D].
        top_k: int64 [D], from 1 up to largest_k.
        top_p: float64 [D], 1 where it is off.
    """
    values = _best_values(logits, min(largest_k + TIE_SLACK, logits.shape[1]))
    cum = _cumulative(values, temperature)
    mass = cum.gather(1, top_k[:, None] - 1)
    kept = torch.minimum((cum < top_p[:, None] * mass).sum(-1) + 1, top_k)
    return _cutoff(values, torch.where(top_p < 1.0, kept, top_k), logits.shape[1])


def top_p_cutoff(logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, weights: torch.Tensor) -> Cutoff:
    """The fewest best tokens of each row whose mass is at least top_p of the whole row's, and at least one.

    On the CPU the FIRST_CANDIDATES best tokens are tried first. On CUDA, asking whether they sufficed would wait for
    the device, so there all are sorted at once.

    Args:
        logits, temperature, top_p: as for `top_k_cutoff`.
        weights: float32 [D, padded vocab], of `token_weights`.
    """
    vocab = logits.shape[1]
    target = (top_p * _block_sums(weights).sum(-1))[:, None]
    tried = vocab if logits.is_cuda else min(FIRST_CANDIDATES, vocab)
    values = _best_values(logits, tried)
    kept = (_cumulative(values, temperature) < target).sum(-1) + 1
    cutoff = _cutoff(values, kept.clamp(max=tried), vocab)
    if tried == vocab:
        return cutoff
    short = (kept > tried).nonzero()[:, 0]
    if len(short):
        values = _best_values(logits[short], vocab)
        kept = (_cumulative(values, temperature[short]) < target[short]).sum(-1) + 1
        exact = _cutoff(values, kept.clamp(max=vocab), vocab)
        cutoff.threshold[short] = exact.threshold
        cutoff.ties[short] = exact.ties
        cutoff.all_ties[short] = exact.all_ties
    return cutoff


def _best_values(logits: torch.Tensor, n: int) -> torch.Tensor:
    """float32 [D, n], each row's n largest values, best first. numpy sorts bare values, 15 times as fast as torch."""
    if logits.is_cuda:
        return logits.topk(n).values if n <= FIRST_CANDIDATES else logits.sort(-1, descending=True).values[:, :n]
    array, vocab = logits.numpy(), logits.shape[1]
    best = np.partition(array, vocab - n, axis=-1)[:, vocab - n :] if n < vocab else array.copy()
    best.sort(-1)
    return torch.from_numpy(np.ascontiguousarray(best[:, ::-1]))


def _cumulative(values: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """float64 [D, n], running sums of the weights of values (best first), in the unit of `token_weights`."""
    weights = (values - values[:, :1]).div_(temperature[:, None]).exp_()
    return weights.cumsum(-1, dtype=torch.float64)


def _cutoff(values: torch.Tensor, kept: torch.Tensor, vocab: int) -> Cutoff:
    """Keep the `kept` (int64 [D]) best tokens, given each row's best values."""
    threshold = values.gather(1, kept[:, None] - 1)
    ties = kept - (values > threshold).sum(-1)
    listed = (values == threshold).sum(-1)
    all_listed = values[:, -1:] < threshold if values.shape[1] < vocab else torch.ones_like(threshold, dtype=torch.bool)
    return Cutoff(threshold[:, 0], ties, (listed <= ties) & all_listed[:, 0])


def _surplus(logits: torch.Tensor, threshold: torch.Tensor, ties: torch.Tensor) -> torch.Tensor:
    """bool [D, vocab], the tokens that equal the threshold after the first `ties` of them."""
    equal = logits == threshold[:, None]
    return equal & (equal.cumsum(-1, dtype=torch.int32) > ties[:, None])
