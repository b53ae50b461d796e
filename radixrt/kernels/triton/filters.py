"""top_k, top_p and min_p on the rows that have them: one program finds a row's cutoff and draws.

The distribution is that of `radixrt.runner.sampling.draw`. A filter keeps all tokens above a threshold and the first
few, by id, of those that equal it. The threshold is found by bisection over logits, as integers in the same order: each
pass counts and weighs the tokens at or above the middle, and moves the bounds to the nearest logits that exist, so that
there are about as many passes as the number of tokens has bits. Chunks whose best logit is below the middle are not
read: the more peaked the row, the fewer chunks are read. Sorting the rows with torch would move all of them several
times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.sampling import BLOCK, CHUNK, MIN_CHUNKS, SampleWorkspace, _part_at, _weights

LEAST = tl.constexpr(-2147483648)
MOST = tl.constexpr(2147483647)
NOTHING = tl.constexpr(-2139095041)
"""The key of -inf."""

NUM_WARPS = 16


@triton.jit
def _order(x):
    """int32 keys that compare as the float32 x do; 0 and -0 have the same."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _logit_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


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
        chunk_key = _order(tl.load(chunk_best + chunk))
        if chunk_key >= key:
            place = chunk * CHUNK + at
            x = tl.load(row + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
            keys = _order(x)
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
        middle = ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)
        found, found_weight, least, below = _not_below(row, chunk_best, middle, best, temperature, vocab, CHUNKS)
        enough = (found >= count) & (found_weight >= weight)
        low = tl.where(enough, least, low)
        high = tl.where(enough, high, tl.maximum(below, low))
    return low


@triton.jit
def _draw_kept(
    row, chunk_best, threshold, ties, min_p, u, best, temperature, vocab, CHUNKS: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """Draw a token by u among those above the threshold and the first `ties` that equal it, without those below min_p.

    The search is that of the kernels without filters: a chunk, a block of it, a token of that. `left` counts the ties
    that earlier tokens have not used up.
    """
    tie_weight = _weights(_logit_of(threshold), best, temperature)
    tie_weight = tl.where(tie_weight >= min_p, tie_weight, 0.0)
    index = tl.arange(0, PADDED)
    sizes = tl.zeros([PADDED], tl.float64)
    lefts = tl.zeros([PADDED], tl.int32)
    left = ties
    for chunk in range(CHUNKS):
        if _order(tl.load(chunk_best + chunk)) >= threshold:
            place = chunk * CHUNK + tl.arange(0, CHUNK)
            x = tl.load(row + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
            keys = _order(x)
            weights = _weights(x, best, temperature)
            size = tl.sum(tl.where((keys > threshold) & (weights >= min_p), weights, 0.0), axis=0)
            used = tl.minimum(tl.sum((keys == threshold).to(tl.int32), axis=0), left)
            sizes = tl.where(index == chunk, (size + used.to(tl.float32) * tie_weight).to(tl.float64), sizes)
            lefts = tl.where(index == chunk, left, lefts)
            left -= used
    chunk, within = _part_at(sizes, u, PADDED)
    left = tl.sum(tl.where(index == chunk, lefts, 0), axis=0)

    block_index = tl.arange(0, BLOCK)
    earlier = block_index[None, :] < block_index[:, None]
    place = chunk * CHUNK + block_index[:, None] * BLOCK + block_index[None, :]
    x = tl.load(row + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
    keys = _order(x)
    weights = _weights(x, best, temperature)
    block_sizes = tl.sum(tl.where((keys > threshold) & (weights >= min_p), weights, 0.0), axis=1)
    equal = tl.sum((keys == threshold).to(tl.int32), axis=1)
    before = tl.sum(tl.where(earlier, equal[None, :], 0), axis=1)
    used = tl.maximum(tl.minimum(left - before, equal), 0)
    block_sizes += used.to(tl.float32) * tie_weight
    block, within = _part_at(block_sizes.to(tl.float64), within, BLOCK)
    left -= tl.sum(tl.where(block_index == block, before, 0), axis=0)

    place_in_block = chunk * CHUNK + block * BLOCK + block_index
    x_block = tl.load(row + place_in_block, mask=place_in_block < vocab, other=float("-inf")).to(tl.float32)
    block_keys = _order(x_block)
    block_weights = _weights(x_block, best, temperature)
    ties_here = (block_keys == threshold).to(tl.int32)
    rank = tl.sum(tl.where(earlier, ties_here[None, :], 0), axis=1)
    above = tl.where((block_keys > threshold) & (block_weights >= min_p), block_weights, 0.0)
    kept = tl.where((ties_here > 0) & (rank < left), tie_weight, above)
    offset, within = _part_at(kept.to(tl.float64), within, BLOCK)
    return chunk * CHUNK + block * BLOCK + offset


@triton.jit
def _filtered_kernel(
    logits, rows, temperatures, uniforms, top_ks, top_ps, min_ps, chunk_best, bests, token_ids, vocab, row_stride,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    at_row = tl.load(rows + number)
    row = logits + at_row.to(tl.int64) * row_stride
    chunk_best += at_row * CHUNKS
    best = tl.load(bests + at_row)
    if (best == best) & (tl.abs(best) < float("inf")):
        temperature = tl.load(temperatures + at_row)
        top_k = tl.load(top_ks + number)
        top_p = tl.load(top_ps + number)
        min_p = tl.load(min_ps + number)
        high = _order(best)
        threshold = tl.full([], NOTHING, tl.int32)
        ties = tl.full([], MOST, tl.int32)
        if top_k < vocab:
            threshold = _threshold(row, chunk_best, threshold, high, top_k, -1.0, best, temperature, vocab, CHUNKS)
            above, weight, _, _ = _not_below(row, chunk_best, threshold + 1, best, temperature, vocab, CHUNKS)
            ties = top_k - above
        if top_p < 1.0:
            above, weight, _, _ = _not_below(row, chunk_best, threshold + 1, best, temperature, vocab, CHUNKS)
            tie_weight = _weights(_logit_of(threshold), best, temperature).to(tl.float64)
            target = top_p * (weight + ties.to(tl.float64) * tie_weight)
            cut = _threshold(row, chunk_best, threshold, high, 0, target, best, temperature, vocab, CHUNKS)
            above, weight, _, _ = _not_below(row, chunk_best, cut + 1, best, temperature, vocab, CHUNKS)
            tie_weight = _weights(_logit_of(cut), best, temperature).to(tl.float64)
            needed = tl.where(tie_weight > 0.0, (target - weight) / tie_weight, 1e9)
            needed = tl.minimum(tl.maximum(needed, 1.0), 1e9)
            whole = needed.to(tl.int32)
            whole = tl.where(whole.to(tl.float64) < needed, whole + 1, whole)
            ties = tl.where(cut == threshold, tl.minimum(whole, ties), whole)
            threshold = cut
        token = _draw_kept(
            row,
            chunk_best,
            threshold,
            ties,
            min_p,
            tl.load(uniforms + at_row),
            best,
            temperature,
            vocab,
            CHUNKS,
            PADDED,
        )
        tl.store(token_ids + at_row, token.to(tl.int64))


def filtered_sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    u: torch.Tensor,
    out: SampleWorkspace,
    rows: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> None:
    """Draw some rows again, filtered: out.token_ids of these rows. A row whose best is not finite is left as it is.

    Args:
        logits, temperature, u: as they were given to `fused_sample` with this `out`, just before; temperature above 0
            for these rows.
        rows: int32 [D], distinct rows of logits.
        top_k: int32 [D], at least 1; vocab or more where it is off.
        top_p: float64 [D], above 0; 1 where it is off.
        min_p: float32 [D], up to 1; 0 where it is off.
    """
    if len(rows):
        _filtered_kernel[(len(rows),)](
            logits, rows, temperature, u, top_k, top_p, min_p, out.chunk_best, out.best, out.token_ids,
            logits.shape[1], logits.stride(0), out.chunks, max(MIN_CHUNKS, triton.next_power_of_2(out.chunks)),
            num_warps=NUM_WARPS,
        )  # fmt: skip
