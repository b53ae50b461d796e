"""top_k, top_p and min_p on the rows that have them: each row's cutoff is found exactly, and a token drawn.

The distribution is that of `radixrt.runner.sampling.draw`. A filter keeps all tokens above a cutoff and the first few,
by id, of those that equal it. Of three launches, the first two bound the cutoff and write down the few logits between
the bounds (`radixrt.kernels.triton.filter_candidates`), for which the row is read once. The third, one program for each
row, finds the cutoff among these in registers, verifies that it is the row's, and draws. If it is not, or if there are
too many candidates (thousands of equal logits), the program searches the whole row
(`radixrt.kernels.triton.filter_search`). Sorting the rows with torch would move all of them several times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.filter_candidates import _band_kernel, _collect_kernel, total_weight
from radixrt.kernels.triton.filter_search import (
    LEAST,
    MOST,
    NOTHING,
    kept_of_chunks,
    logit_of,
    middle_of,
    order,
    search_cutoff,
    ties_needed,
)
from radixrt.kernels.triton.sampling import BLOCK, CHUNK, MIN_CHUNKS, SampleWorkspace, _part_at, _weights

CANDIDATES = 16384
"""Candidates of a row, in equal parts for its chunks; a flat row of 151,936 tokens has about 5,000."""

COLUMNS = tl.constexpr(32)
"""Candidates of each chunk that are read at once."""

MIN_SLOTS = 64  # candidates of a chunk
BAND_WARPS, BAND_REGISTERS = 16, 64
COLLECT_WARPS = 4
ROW_WARPS, ROW_REGISTERS = 8, 128
"""With so many registers a multiprocessor runs two programs at once, so that 256 rows take no longer than 128."""


@triton.jit
def _above(candidates, places, held, most, key, best, temperature):
    """Return the number and the weight (float64 both) of the candidates above a key."""
    counts, sums = tl.zeros_like(places).to(tl.float32), tl.zeros_like(places).to(tl.float32)
    column = places % COLUMNS
    for start in range(0, most, COLUMNS):
        x = tl.load(candidates + places + start, mask=start + column < held, other=float("-inf"))
        above = order(x) > key
        counts += above.to(tl.float32)
        sums += tl.where(above, _weights(x, best, temperature), 0.0)
    return tl.sum(counts.to(tl.float64), axis=0), tl.sum(sums.to(tl.float64), axis=0)


@triton.jit
def _threshold_among(candidates, places, held, most, low, high, needed, by_count, best, temperature):
    """Return the largest key in [low, high] that `needed` (float64) candidates, or so much weight, reach; low must
    qualify."""
    column = places % COLUMNS
    while low < high:
        middle = middle_of(low, high)
        found = tl.zeros_like(places).to(tl.float32)
        least, below = tl.full(places.shape, MOST, tl.int32), tl.full(places.shape, LEAST, tl.int32)
        for start in range(0, most, COLUMNS):
            x = tl.load(candidates + places + start, mask=start + column < held, other=float("-inf"))
            keys = order(x)
            kept = keys >= middle
            found += tl.where(kept, tl.where(by_count, 1.0, _weights(x, best, temperature)), 0.0)
            least = tl.minimum(least, tl.where(kept, keys, MOST))
            below = tl.maximum(below, tl.where(kept, LEAST, keys))
        if tl.sum(found.to(tl.float64), axis=0) >= needed:
            low = tl.min(least, axis=0)
        else:
            high = tl.maximum(tl.max(below, axis=0), low)
    return low


@triton.jit
def _cutoff_among(
    candidates, places, held, most, above_count, above_weight, total, low, top_k, top_p, best, temperature, vocab
):  # fmt: skip
    """Return the cutoff's key, the number of kept tokens that equal it, and whether it is surely the row's cutoff.

    Args:
        candidates: of the row, which are all tokens between two logits, of which `low` is the lower.
        places: int32 [n], places of the first COLUMNS candidates of each chunk.
        held: int32 [n], the number of candidates of each place's chunk; `most` is the largest.
        above_count, above_weight: float64, of all tokens above.
        total: weight of the row.
    """
    high = order(best)
    threshold = tl.full([], NOTHING, tl.int32)
    ties = tl.full([], MOST, tl.int32)
    count, weight = _above(candidates, places, held, most, threshold, best, temperature)
    sure = above_count >= 0.0
    if top_k < vocab:
        # Tokens that weigh nothing are no candidates; without a lower end all others are.
        sure = (above_count < top_k) & ((above_count + count >= top_k) | (low == float("-inf")))
        needed = top_k - above_count
        threshold = _threshold_among(
            candidates, places, held, most, threshold, high, needed, True, best, temperature
        )  # fmt: skip
        kept, weight_above = _above(candidates, places, held, most, threshold, best, temperature)
        ties = (needed - kept).to(tl.int32)
        tie_weight = _weights(logit_of(threshold), best, temperature).to(tl.float64)
        total = above_weight + weight_above + ties.to(tl.float64) * tie_weight
    if top_p < 1.0:
        missing = top_p * total - above_weight
        sure = sure & (missing > 0.0) & (weight >= missing)
        cut = _threshold_among(candidates, places, held, most, threshold, high, missing, False, best, temperature)
        kept, weight_above = _above(candidates, places, held, most, cut, best, temperature)
        whole = ties_needed(missing - weight_above, _weights(logit_of(cut), best, temperature).to(tl.float64))
        ties = tl.where(cut == threshold, tl.minimum(whole, ties), whole)
        threshold = cut
    return threshold, ties, sure


@triton.jit
def _kept_among(
    candidates, held, most, threshold, ties, min_p, best, temperature, PADDED: tl.constexpr, SLOTS: tl.constexpr
):
    """Return as `kept_of_chunks` does, of the candidates: `held` (int32 [PADDED]) for each chunk."""
    tie_weight = _weights(logit_of(threshold), best, temperature)
    tie_weight = tl.where(tie_weight >= min_p, tie_weight, 0.0)
    sizes, equal = tl.zeros([PADDED], tl.float32), tl.zeros([PADDED], tl.int32)
    column = tl.arange(0, COLUMNS)[None, :]
    for start in range(0, most, COLUMNS):
        place = tl.arange(0, PADDED)[:, None] * SLOTS + start + column
        x = tl.load(candidates + place, mask=start + column < held[:, None], other=float("-inf"))
        keys, weights = order(x), _weights(x, best, temperature)
        sizes += tl.sum(tl.where((keys > threshold) & (weights >= min_p), weights, 0.0), axis=1)
        equal += tl.sum(((keys == threshold) & (x > float("-inf"))).to(tl.int32), axis=1)
    lefts = tl.maximum(ties - (tl.cumsum(equal, axis=0) - equal), 0)
    return sizes + tl.minimum(equal, lefts).to(tl.float32) * tie_weight, lefts


@triton.jit
def _draw_kept(
    row, sizes, lefts, threshold, min_p, u, best, temperature, vocab, PADDED: tl.constexpr
):  # fmt: skip
    """Draw a token by u among those above the threshold and the first ties that equal it, without those below min_p.

    The search is that of the kernels without filters: a chunk, a block of it, a token of that.

    Args:
        sizes, lefts: see `kept_of_chunks`.
    """
    tie_weight = _weights(logit_of(threshold), best, temperature)
    tie_weight = tl.where(tie_weight >= min_p, tie_weight, 0.0)
    chunk, within = _part_at(sizes, u, PADDED)
    left = tl.sum(tl.where(tl.arange(0, PADDED) == chunk, lefts, 0), axis=0)

    block_index = tl.arange(0, BLOCK)
    earlier = block_index[None, :] < block_index[:, None]
    place = chunk * CHUNK + block_index[:, None] * BLOCK + block_index[None, :]
    x = tl.load(row + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
    keys = order(x)
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
    block_keys = order(x_block)
    block_weights = _weights(x_block, best, temperature)
    ties_here = (block_keys == threshold).to(tl.int32)
    rank = tl.sum(tl.where(earlier, ties_here[None, :], 0), axis=1)
    above = tl.where((block_keys > threshold) & (block_weights >= min_p), block_weights, 0.0)
    kept = tl.where((ties_here > 0) & (rank < left), tie_weight, above)
    offset, within = _part_at(kept.to(tl.float64), within, BLOCK)
    return chunk * CHUNK + block * BLOCK + offset


@triton.jit
def _filtered_kernel(
    logits, rows, temperatures, uniforms, top_ks, top_ps, min_ps, chunk_best, chunk_sum, bests, bands, candidates,
    counts, sums, token_ids, searched, vocab, row_stride,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    at_row = tl.load(rows + number)
    row = logits + at_row.to(tl.int64) * row_stride
    best = tl.load(bests + at_row)
    sure = at_row >= 0
    if (best == best) & (tl.abs(best) < float("inf")):
        temperature = tl.load(temperatures + at_row)
        top_k = tl.load(top_ks + number)
        top_p = tl.load(top_ps + number)
        min_p = tl.load(min_ps + number)
        index = tl.arange(0, PADDED)
        at_chunk = 2 * (number * CHUNKS + index)
        above_counts = tl.load(counts + at_chunk, mask=index < CHUNKS, other=0)
        held = tl.load(counts + at_chunk + 1, mask=index < CHUNKS, other=0)
        above_sums = tl.load(sums + at_chunk, mask=index < CHUNKS, other=0.0)
        kept_sums = tl.load(sums + at_chunk + 1, mask=index < CHUNKS, other=0.0)
        most = tl.minimum(tl.max(held, axis=0), SLOTS)
        candidates += number.to(tl.int64) * CHUNKS * SLOTS
        flat = tl.arange(0, PADDED * COLUMNS)
        places = flat // COLUMNS * SLOTS + flat % COLUMNS
        at_flat = 2 * (number * CHUNKS + flat // COLUMNS) + 1
        threshold, ties, sure = _cutoff_among(
            candidates, places, tl.load(counts + at_flat, mask=flat // COLUMNS < CHUNKS, other=0), most,
            tl.sum(above_counts, axis=0).to(tl.float64), tl.sum(above_sums.to(tl.float64), axis=0),
            total_weight(chunk_best, chunk_sum, at_row, best, temperature, CHUNKS, PADDED),
            tl.load(bands + 2 * number), top_k, top_p, best, temperature, vocab,
        )  # fmt: skip
        sure = sure & (tl.max(held, axis=0) <= SLOTS)
        if sure:
            kept, lefts = _kept_among(candidates, held, most, threshold, ties, min_p, best, temperature, PADDED, SLOTS)
            sizes = (kept_sums + kept).to(tl.float64)
        else:
            bests_of_chunks = chunk_best + at_row * CHUNKS
            threshold, ties = search_cutoff(row, bests_of_chunks, top_k, top_p, best, temperature, vocab, CHUNKS)
            sizes, lefts = kept_of_chunks(
                row, bests_of_chunks, threshold, ties, min_p, best, temperature, vocab, CHUNKS, PADDED
            )
        u = tl.load(uniforms + at_row)
        token = _draw_kept(row, sizes, lefts, threshold, min_p, u, best, temperature, vocab, PADDED)
        tl.store(token_ids + at_row, token.to(tl.int64))
    tl.store(searched + number, (~sure).to(tl.int32))


def filtered_sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    u: torch.Tensor,
    out: SampleWorkspace,
    rows: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Draw some rows again, filtered: out.token_ids of these rows. A row whose best is not finite is left as it is.

    Args:
        logits, temperature, u: as they were given to `fused_sample` with this `out`, just before; temperature above 0
            for these rows.
        rows: int32 [D], distinct rows of logits.
        top_k: int32 [D], at least 1; vocab or more where it is off.
        top_p: float64 [D], above 0; 1 where it is off.
        min_p: float32 [D], up to 1; 0 where it is off.

    Returns:
        int32 [D], 1 for each row that was searched as a whole.
    """
    number, vocab, stride, chunks = len(rows), logits.shape[1], logits.stride(0), out.chunks
    padded = max(MIN_CHUNKS, triton.next_power_of_2(chunks))
    slots = max(MIN_SLOTS, CANDIDATES // padded)
    searched = rows.new_empty(number)
    if number:
        bands, candidates = out.best.new_empty(number, 2), out.best.new_empty(number, chunks, slots)
        counts, sums = rows.new_empty(number, chunks, 2), out.best.new_empty(number, chunks, 2)
        _band_kernel[(number,)](
            logits, rows, temperature, top_k, top_p, out.chunk_best, out.chunk_sum, out.best, bands, vocab, stride,
            chunks, padded, num_warps=BAND_WARPS, maxnreg=BAND_REGISTERS,
        )  # fmt: skip
        _collect_kernel[(number, chunks)](
            logits, rows, temperature, min_p, out.chunk_best, out.best, bands, candidates, counts, sums, vocab, stride,
            slots, num_warps=COLLECT_WARPS,
        )  # fmt: skip
        _filtered_kernel[(number,)](
            logits, rows, temperature, u, top_k, top_p, min_p, out.chunk_best, out.chunk_sum, out.best, bands,
            candidates, counts, sums, out.token_ids, searched, vocab, stride, chunks, padded, slots,
            num_warps=ROW_WARPS, maxnreg=ROW_REGISTERS,
        )  # fmt: skip
    return searched
