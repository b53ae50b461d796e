"""Search of a row's cutoff through all of its logits, for the rows whose candidates do not contain it.

The cutoff is found by bisection over logits, as integers in the same order: each pass counts and weighs the tokens at
or above the middle, and moves the bounds to the nearest logits that exist, so that there are about as many passes as
the number of tokens has bits. Chunks whose best logit is below the middle are not read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from radixrt.kernels.triton.sampling import CHUNK, _weights

LEAST = tl.constexpr(-2147483648)
MOST = tl.constexpr(2147483647)
NOTHING = tl.constexpr(-2139095041)
"""The key of -inf."""


@triton.jit
def order(x):
    """int32 keys that compare as the float32 x do; 0 and -0 have the same."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def logit_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def middle_of(low, high):
    """The upper middle of two keys."""
    return ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)


@triton.jit
def _not_below(row, chunk_best, key, best, temperature, vocab, CHUNKS: tl.constexpr):
    """Return count (int32), weight (float64) and least key of the tokens with at least this key, and the largest key of
    the other tokens."""
    at = tl.arange(0, CHUNK)
    counts = tl.zeros([CHUNK], tl.int32)
    weights = tl.zeros([CHUNK], tl.float32)
    least = tl.full([CHUNK], MOST, tl.int32)
    below = tl.full([CHUNK], LEAST, tl.int32)
    for chunk in range(CHUNKS):
        chunk_key = order(tl.load(chunk_best + chunk))
        if chunk_key >= key:
            place = chunk * CHUNK + at
            x = tl.load(row + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
            keys = order(x)
            kept = keys >= key
            counts += kept.to(tl.int32)
            weights += tl.where(kept, _weights(x, best, temperature), 0.0)
            least = tl.minimum(least, tl.where(kept, keys, MOST))
            below = tl.maximum(below, tl.where(kept, LEAST, keys))
        else:
            below = tl.maximum(below, chunk_key)
    weight = tl.sum(weights.to(tl.float64), axis=0)
    return tl.sum(counts, axis=0), weight, tl.min(least, axis=0), tl.max(below, axis=0)


@triton.jit
def _threshold(row, chunk_best, low, high, count, weight, best, temperature, vocab, CHUNKS: tl.constexpr):
    """Return the largest key in [low, high] that at least `count` tokens and `weight` reach; low must qualify."""
    while low < high:
        middle = middle_of(low, high)
        found, found_weight, least, below = _not_below(row, chunk_best, middle, best, temperature, vocab, CHUNKS)
        enough = (found >= count) & (found_weight >= weight)
        low = tl.where(enough, least, low)
        high = tl.where(enough, high, tl.maximum(below, low))
    return low


@triton.jit
def ties_needed(missing, tie_weight):
    """Return the least positive number of tokens of this weight (float64) that weigh at least `missing`."""
    needed = tl.where(tie_weight > 0.0, missing / tie_weight, 1e9)
    needed = tl.minimum(tl.maximum(needed, 1.0), 1e9)
    whole = needed.to(tl.int32)
    return tl.where(whole.to(tl.float64) < needed, whole + 1, whole)


@triton.jit
def search_cutoff(row, chunk_best, top_k, top_p, best, temperature, vocab, CHUNKS: tl.constexpr):
    """Return the key of the cutoff and the number of tokens that equal it which are kept."""
    high = order(best)
    threshold = tl.full([], NOTHING, tl.int32)
    ties = tl.full([], MOST, tl.int32)
    if top_k < vocab:
        threshold = _threshold(row, chunk_best, threshold, high, top_k, -1.0, best, temperature, vocab, CHUNKS)
        above, weight, _, _ = _not_below(row, chunk_best, threshold + 1, best, temperature, vocab, CHUNKS)
        ties = top_k - above
    if top_p < 1.0:
        above, weight, _, _ = _not_below(row, chunk_best, threshold + 1, best, temperature, vocab, CHUNKS)
        tie_weight = _weights(logit_of(threshold), best, temperature).to(tl.float64)
        target = top_p * (weight + ties.to(tl.float64) * tie_weight)
        cut = _threshold(row, chunk_best, threshold, high, 0, target, best, temperature, vocab, CHUNKS)
        above, weight, _, _ = _not_below(row, chunk_best, cut + 1, best, temperature, vocab, CHUNKS)
        whole = ties_needed(target - weight, _weights(logit_of(cut), best, temperature).to(tl.float64))
        ties = tl.where(cut == threshold, tl.minimum(whole, ties), whole)
        threshold = cut
    return threshold, ties


@triton.jit
def kept_of_chunks(
    row, chunk_best, threshold, ties, min_p, best, temperature, vocab, CHUNKS: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """Return the weight of each chunk's kept tokens (float64 [PADDED]), and the number of ties (int32 [PADDED]) that
    earlier chunks have left."""
    tie_weight = _weights(logit_of(threshold), best, temperature)
    tie_weight = tl.where(tie_weight >= min_p, tie_weight, 0.0)
    index = tl.arange(0, PADDED)
    sizes = tl.zeros([PADDED], tl.float64)
    lefts = tl.zeros([PADDED], tl.int32)
    left = ties
    for chunk in range(CHUNKS):
        if order(tl.load(chunk_best + chunk)) >= threshold:
            place = chunk * CHUNK + tl.arange(0, CHUNK)
            x = tl.load(row + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
            keys = order(x)
            weights = _weights(x, best, temperature)
            size = tl.sum(tl.where((keys > threshold) & (weights >= min_p), weights, 0.0), axis=0)
            used = tl.minimum(tl.sum((keys == threshold).to(tl.int32), axis=0), left)
            sizes = tl.where(index == chunk, (size + used.to(tl.float32) * tie_weight).to(tl.float64), sizes)
            lefts = tl.where(index == chunk, left, lefts)
            left -= used
    return sizes, lefts
