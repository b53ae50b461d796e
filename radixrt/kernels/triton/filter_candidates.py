"""Candidates for the cutoff of top_k and top_p: the few logits of a row among which its cutoff is almost certainly.

A sample of a row's logits bounds its cutoff: one program sorts the sample into bins of a histogram and takes an
interval of logits that contains the cutoff but for a chance of about 1e-5 (`_band_kernel`). Then the row is read once
(`_collect_kernel`): each program counts and weighs the tokens of a chunk above the interval and writes down the logits
within. The next kernel finds the exact cutoff among the candidates and verifies that the interval contains the cutoff.
"""

from __future__ import annotations

import triton
import triton.language as tl

from radixrt.kernels.triton.sampling import CHUNK, _weights

SAMPLE = tl.constexpr(32768)
"""Logits of a row that are sampled: runs of GROUP, at equal distances; all logits of a row that has no more."""

GROUP = tl.constexpr(8)
"""Logits of a run: 32 bytes, which is as little as the memory transfers."""

TILE = tl.constexpr(4096)
"""Samples that are read at once."""

COLUMNS = tl.constexpr(4)

BINS = tl.constexpr(256)
"""Bins of the histogram; the last one holds samples that are not counted."""

DEVIATIONS = tl.constexpr(4.5)
"""Standard deviations of the estimate between it and either end of the interval."""

WEIGHTLESS = tl.constexpr(105.0)
"""A logit so many temperatures below the best has weight exp(-105), which is 0 in float32."""


@triton.jit
def total_weight(chunk_best, chunk_sum, at_row, best, temperature, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """Return the weight of all tokens of a row (float64) from the sums of its chunks."""
    index = tl.arange(0, PADDED)
    bests = tl.load(chunk_best + at_row * CHUNKS + index, mask=index < CHUNKS, other=float("-inf"))
    sums = tl.load(chunk_sum + at_row * CHUNKS + index, mask=index < CHUNKS, other=0.0)
    return tl.sum(sums.to(tl.float64) * _weights(bests, best, temperature).to(tl.float64), axis=0)


@triton.jit
def _depths(row, start, taken, best, temperature, vocab):
    """Return the depth below the best, in temperatures, of TILE sampled tokens (float32 [TILE]; inf for padding)."""
    groups = (vocab + GROUP - 1) // GROUP
    index = start + tl.arange(0, TILE)
    group = index // GROUP
    place = group * groups // taken * GROUP + index % GROUP
    x = tl.load(row + place, mask=(group < taken) & (place < vocab), other=float("-inf")).to(tl.float32)
    return (best - x) / temperature


@triton.jit
def _furthest(row, taken, best, temperature, vocab):
    """Return the depth of the deepest sampled token that weighs anything, and a little more than 0."""
    furthest = tl.zeros([TILE], tl.float32)
    for start in range(0, SAMPLE, TILE):
        depths = _depths(row, start, taken, best, temperature, vocab)
        furthest = tl.maximum(furthest, tl.where(depths < WEIGHTLESS, depths, 0.0))
    return tl.max(furthest, axis=0) + 1e-6


@triton.jit
def _histogram(row, taken, reach, best, temperature, vocab):
    """Return the number of samples in each of BINS - 1 equal parts of [0, reach], float32 [BINS], a part's size, and
    the sums of the weights beyond, and of their squares."""
    size = reach / (BINS - 1)
    counts = tl.zeros([BINS], tl.int32)
    beyond, squares = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for start in range(0, SAMPLE, TILE):
        depths = _depths(row, start, taken, best, temperature, vocab)
        inside = depths <= reach
        bins = tl.minimum((tl.where(inside, depths, 0.0) / size).to(tl.int32), BINS - 2)
        counts += tl.histogram(tl.where(inside, bins, BINS - 1), BINS)
        weights = tl.exp(-tl.where(inside, float("inf"), depths))
        beyond += weights
        squares += weights * weights
    counts = tl.where(tl.arange(0, BINS) < BINS - 1, counts, 0).to(tl.float32)
    return counts, size, tl.sum(beyond, axis=0), tl.sum(squares, axis=0)


@triton.jit
def _band_of_top_k(row, taken, scale, top_k, best, temperature, vocab):
    """Return depths between which the top_k-th logit is (0 for no upper end, inf for no lower end).

    Args:
        taken: number of runs in the sample, each of which stands for `scale`.
    """
    reach = _furthest(row, taken, best, temperature, vocab)
    counts, size, _, _ = _histogram(row, taken, reach, best, temperature, vocab)
    # Element j belongs to the lower end of bin j: the tokens above it are estimated, with a margin on either side.
    above = tl.cumsum(counts, axis=0)
    missing = 1.0 - 1.0 / scale
    margin = scale * (DEVIATIONS * tl.sqrt(above * missing) + 0.5 * DEVIATIONS * DEVIATIONS * missing)
    surely_fewer = scale * above + margin < top_k
    upper = tl.sum(surely_fewer.to(tl.int32), axis=0)
    enough = scale * above - margin >= top_k
    lower = tl.min(tl.where(enough, tl.arange(0, BINS) + 1, BINS), axis=0)
    return upper * size, tl.where(lower < BINS, lower * size, float("inf"))


@triton.jit
def _band_of_top_p(row, taken, scale, allowed, best, temperature, vocab):
    """Return depths between which the cutoff is that `allowed` of the weight (float64) lies below, as `_band_of_top_k`
    does."""
    # Were all tokens at this depth, they would weigh as much as may lie below: the cutoff is not deeper.
    deepest = tl.log(vocab.to(tl.float64) / allowed).to(tl.float32) * 1.0001 + 1e-6
    reach = tl.minimum(deepest, _furthest(row, taken, best, temperature, vocab))
    counts, size, beyond, squares_beyond = _histogram(row, taken, reach, best, temperature, vocab)
    index = tl.arange(0, BINS)
    top = tl.exp(-index.to(tl.float32) * size)
    weight = top * (1.0 - tl.exp(-size)) / size  # mean over the bin
    # Element j belongs to the upper end of bin j: the weight below it is estimated, with a margin on either side.
    below = tl.cumsum(counts * weight, axis=0, reverse=True) + beyond
    squares = tl.cumsum(counts * weight * weight, axis=0, reverse=True) + squares_beyond
    missing = 1.0 - 1.0 / scale
    deviation = tl.sqrt(squares * (scale * scale * missing + size * size / 12.0))
    margin = DEVIATIONS * deviation + 0.5 * DEVIATIONS * DEVIATIONS * scale * missing * top
    part = allowed.to(tl.float32)
    surely_more = (scale * below - margin > part) & (index < BINS - 1)
    upper = tl.max(tl.where(surely_more, index, 0), axis=0)
    little = scale * below + margin <= part
    lower = tl.min(tl.where(little, index, BINS), axis=0)
    return upper * size, tl.where(lower < BINS, lower * size, deepest)


@triton.jit
def _band_kernel(
    logits, rows, temperatures, top_ks, top_ps, chunk_best, chunk_sum, bests, bands, vocab, row_stride,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Write the interval of logits that contains a row's cutoff: the lower end (inclusive), the upper end (exclusive).

    A row with both filters gets no upper end: the candidates are all tokens that top_k may keep, because the cutoff of
    top_p depends on the total weight of these tokens.
    """
    number = tl.program_id(0)
    at_row = tl.load(rows + number)
    best = tl.load(bests + at_row)
    if (best == best) & (tl.abs(best) < float("inf")):
        low, high = tl.full([], float("-inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
        temperature = tl.load(temperatures + at_row)
        top_k, top_p = tl.load(top_ks + number), tl.load(top_ps + number)
        if (top_k < vocab) | (top_p < 1.0):
            row = logits + at_row.to(tl.int64) * row_stride
            groups = (vocab + GROUP - 1) // GROUP
            taken = tl.minimum(groups, SAMPLE // GROUP)
            scale = groups.to(tl.float32) / taken.to(tl.float32)
            if top_k < vocab:
                upper, lower = _band_of_top_k(row, taken, scale, top_k.to(tl.float32), best, temperature, vocab)
            else:
                total = total_weight(chunk_best, chunk_sum, at_row, best, temperature, CHUNKS, PADDED)
                upper, lower = _band_of_top_p(row, taken, scale, (1.0 - top_p) * total, best, temperature, vocab)
            high = tl.where(
                (upper > 0.0) & ((top_k >= vocab) | (top_p == 1.0)), best - upper * temperature, float("inf")
            )
            low = best - lower * temperature
        tl.store(bands + 2 * number, low)
        tl.store(bands + 2 * number + 1, high)


@triton.jit
def _collect_kernel(
    logits, rows, temperatures, min_ps, chunk_best, bests, bands, candidates, counts, sums, vocab, row_stride,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Write of a chunk of a row: the number of tokens above the interval and of those within (counts), the weight of
    the former, and of those of them that min_p keeps (sums), and the logits within, by id (candidates)."""
    number, chunk = tl.program_id(0), tl.program_id(1)
    at_row = tl.load(rows + number)
    best = tl.load(bests + at_row)
    if (best == best) & (tl.abs(best) < float("inf")):
        out = number * tl.num_programs(1) + chunk
        low, high = tl.load(bands + 2 * number), tl.load(bands + 2 * number + 1)
        above_count, count = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
        above_sum, kept_sum = tl.full([], 0.0, tl.float32), tl.full([], 0.0, tl.float32)
        if tl.load(chunk_best + at_row * tl.num_programs(1) + chunk) >= low:
            temperature, min_p = tl.load(temperatures + at_row), tl.load(min_ps + number)
            # As many columns as a thread loads at once: along them, running sums take no communication.
            lane, column = tl.arange(0, CHUNK // COLUMNS)[:, None], tl.arange(0, COLUMNS)[None, :]
            at = chunk * CHUNK + lane * COLUMNS + column
            row = logits + at_row.to(tl.int64) * row_stride
            x = tl.load(row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
            weights = _weights(x, best, temperature)
            above = (x >= high) & (weights > 0.0)
            within = (x >= low) & (x < high) & (weights > 0.0)
            above_count = tl.sum(tl.sum(above.to(tl.int32), axis=1), axis=0)
            above_sum = tl.sum(tl.sum(tl.where(above, weights, 0.0), axis=1), axis=0)
            kept_sum = tl.sum(tl.sum(tl.where(above & (weights >= min_p), weights, 0.0), axis=1), axis=0)
            in_lane = tl.sum(within.to(tl.int32), axis=1)
            lane_ends = tl.cumsum(in_lane, axis=0)
            count = tl.sum(in_lane, axis=0)
            slot = (lane_ends - in_lane)[:, None] + tl.cumsum(within.to(tl.int32), axis=1) - 1
            tl.store(candidates + out.to(tl.int64) * SLOTS + slot, x, mask=within & (slot < SLOTS))
        tl.store(counts + 2 * out, above_count)
        tl.store(counts + 2 * out + 1, count)
        tl.store(sums + 2 * out, above_sum)
        tl.store(sums + 2 * out + 1, kept_sum)
