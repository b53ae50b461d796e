"""Sampling of one token per row of logits, by temperature alone or greedily: two launches, one read of the logits.

The distribution is that of `radixrt.runner.sampling.draw`: a token weighs exp((logit - best) / temperature), and the
draw is the first token, by id, at which the running sum of weights exceeds u times their total. The first kernel sums
up chunks of a row, each relative to its own best logit; the second combines a row's chunks in float64, searches the
chunk that contains the draw, and then one block of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = tl.constexpr(64)
CHUNK = tl.constexpr(4096)
"""Tokens of one program of the first kernel: BLOCK blocks of BLOCK tokens."""

MIN_CHUNKS = 16  # to which the second kernel pads
MAX_VOCAB = 1 << 20
CHUNK_WARPS = 8
ROW_WARPS = 8


@triton.jit
def _weights(x, best, temperature):
    """float32 weights of logits x relative to best; 0 for a logit of -inf. Defined where best is finite."""
    return tl.exp((x - best) / temperature)


@triton.jit
def _part_at(sizes, u, COUNT: tl.constexpr):
    """Split [0, 1) in proportion to sizes (float64 [COUNT]): the part that u falls in, and where in it, in [0, 1].

    Running sums are one sum each over a triangle, all in the same order: they never decrease.
    """
    index = tl.arange(0, COUNT)
    earlier = index[None, :] <= index[:, None]
    cum = tl.sum(tl.where(earlier, sizes[None, :], 0.0), axis=1)
    total = tl.max(cum, axis=0)
    target = u * total
    # The second count is the last part that is not empty, should rounding carry the target to the very end.
    passed = tl.sum((cum <= target).to(tl.int32), axis=0)
    part = tl.minimum(passed, tl.sum((cum < total).to(tl.int32), axis=0))
    chosen = index == part
    end = tl.sum(tl.where(chosen, cum, 0.0), axis=0)
    size = tl.sum(tl.where(chosen, sizes, 0.0), axis=0)
    within = (target - (end - size)) / size
    return part, tl.minimum(tl.maximum(within, 0.0), 1.0)


@triton.jit
def chunk_sums(row_start, chunk, columns, temperature):
    """Return the best logit of a chunk of a row (NaN if any logit is), the sum of weights relative to it, its id."""
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(row_start + at, mask=at < columns, other=float("-inf")).to(tl.float32)
    broken = tl.max((x != x).to(tl.int32), axis=0)
    x = tl.where(x != x, float("-inf"), x)
    best, first = tl.max(x, axis=0, return_indices=True)
    base = tl.where(best == float("-inf"), 0.0, best)
    total = tl.sum(_weights(x, base, tl.where(temperature > 0.0, temperature, 1.0)), axis=0)
    return tl.where(broken > 0, float("nan"), best), total, chunk * CHUNK + first


@triton.jit
def draw_chunk(bests, sums, ids, temperature, u, COUNT: tl.constexpr):
    """From a row's chunks, in order of ids [COUNT]: its first largest logit's id, that logit, whether that is finite,
    and, where it is and the temperature is positive, the chunk that u falls on and where in it."""
    broken = tl.max((bests != bests).to(tl.int32), axis=0)
    best = tl.max(tl.where(bests != bests, float("-inf"), bests), axis=0)
    best = tl.where(broken > 0, float("nan"), best)
    finite = (best == best) & (tl.abs(best) < float("inf"))
    # The least id among the best is the row's first largest logit.
    token = tl.min(tl.where(bests == best, ids, 0x7FFFFFFF), axis=0)
    chunk, within = tl.zeros((), tl.int32), tl.zeros((), tl.float64)
    if finite & (temperature > 0.0):
        sizes = sums.to(tl.float64) * _weights(bests, best, temperature).to(tl.float64)
        chunk, within = _part_at(sizes, u, COUNT)
    return token, best, finite, chunk, within


@triton.jit
def draw_token(row_start, first, columns, best, temperature, within):
    """The token that `within` falls on, of the chunk that begins at column `first` of a row of logits."""
    index = tl.arange(0, BLOCK)
    at = first + index[:, None] * BLOCK + index[None, :]
    x = tl.load(row_start + at, mask=at < columns, other=float("-inf")).to(tl.float32)
    block_sums = tl.sum(_weights(x, best, temperature), axis=1).to(tl.float64)
    block, within = _part_at(block_sums, within, BLOCK)
    at_token = first + block * BLOCK + index
    x_token = tl.load(row_start + at_token, mask=at_token < columns, other=float("-inf")).to(tl.float32)
    offset, within = _part_at(_weights(x_token, best, temperature).to(tl.float64), within, BLOCK)
    return first + block * BLOCK + offset


@triton.jit
def _chunk_kernel(logits, temperatures, chunk_best, chunk_sum, chunk_id, vocab, row_stride):
    row, chunk = tl.program_id(0), tl.program_id(1)
    start = logits + row.to(tl.int64) * row_stride
    best, total, first = chunk_sums(start, chunk, vocab, tl.load(temperatures + row))
    out = row * tl.num_programs(1) + chunk
    tl.store(chunk_best + out, best)
    tl.store(chunk_sum + out, total)
    tl.store(chunk_id + out, first)


@triton.jit
def _row_kernel(
    logits, temperatures, uniforms, chunk_best, chunk_sum, chunk_id, token_ids, best_out, vocab, row_stride,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    index = tl.arange(0, PADDED)
    inside = index < CHUNKS
    bests = tl.load(chunk_best + row * CHUNKS + index, mask=inside, other=float("-inf"))
    sums = tl.load(chunk_sum + row * CHUNKS + index, mask=inside, other=0.0)
    ids = tl.load(chunk_id + row * CHUNKS + index, mask=inside, other=0)
    temperature = tl.load(temperatures + row)
    token, best, finite, chunk, within = draw_chunk(bests, sums, ids, temperature, tl.load(uniforms + row), PADDED)
    if finite & (temperature > 0.0):
        start = logits + row.to(tl.int64) * row_stride
        token = draw_token(start, chunk * CHUNK, vocab, best, temperature, within)
    tl.store(token_ids + row, tl.where(finite, token, 0).to(tl.int64))
    tl.store(best_out + row, best)


class SampleWorkspace:
    """Outputs of `fused_sample`, allocated once, so that a captured graph writes to the same addresses at each replay.

    Attributes:
        token_ids: int64 [max_rows].
        best: float32 [max_rows], each row's largest logit; NaN where a logit is.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device | str) -> None:
        if vocab_size > MAX_VOCAB:
            raise ValueError(f"vocab_size is {vocab_size}; the sampling kernels take at most {MAX_VOCAB}")
        self.chunks = triton.cdiv(vocab_size, CHUNK.value)
        self.max_rows = max_rows
        self.token_ids = torch.empty(max_rows, dtype=torch.int64, device=device)
        self.best = torch.empty(max_rows, dtype=torch.float32, device=device)
        self.chunk_best = torch.empty(max_rows * self.chunks, dtype=torch.float32, device=device)
        self.chunk_sum = torch.empty(max_rows * self.chunks, dtype=torch.float32, device=device)
        self.chunk_id = torch.empty(max_rows * self.chunks, dtype=torch.int32, device=device)


def fused_sample(
    logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor, out: SampleWorkspace | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token per row, without synchronization; nothing is allocated if `out` is given.

    Args:
        logits: float32 or bfloat16 [S, vocab], vocab contiguous; not changed.
        temperature: float32 [S]; a row at 0 or below is greedy and takes its first largest logit.
        u: float64 [S] in [0, 1), read for the other rows only.
        out: for at least S rows of this vocabulary.

    Returns:
        (int64 [S], float32 [S]), views of out's token_ids and best. A row whose best is not finite has token 0.
    """
    rows, vocab = logits.shape
    if out is None:
        out = SampleWorkspace(rows, vocab, logits.device)
    elif rows > out.max_rows or triton.cdiv(vocab, CHUNK.value) != out.chunks:
        raise ValueError(
            f"logits are {rows} x {vocab}; the workspace is for {out.max_rows} rows of {out.chunks} chunks"
        )
    if rows:
        stride = logits.stride(0)
        _chunk_kernel[(rows, out.chunks)](
            logits, temperature, out.chunk_best, out.chunk_sum, out.chunk_id, vocab, stride, num_warps=CHUNK_WARPS
        )
        _row_kernel[(rows,)](
            logits, temperature, u, out.chunk_best, out.chunk_sum, out.chunk_id, out.token_ids, out.best, vocab, stride,
            out.chunks, max(MIN_CHUNKS, triton.next_power_of_2(out.chunks)), num_warps=ROW_WARPS,
        )  # fmt: skip
    return out.token_ids[:rows], out.best[:rows]
