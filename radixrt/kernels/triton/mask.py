"""Grammar masks on the logits of some rows.

xgrammar has such a kernel, but it finds a row's mask at the row's own index, so that masks of all rows would have to be
uploaded where a few are constrained or all have the same; and it would load that library into every runner.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CHUNK = tl.constexpr(4096)
NUM_WARPS = 8


@triton.jit
def _apply_bitmask_kernel(logits, rows, index, bits, words, vocab, row_stride):
    masked = tl.program_id(0)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab
    row = tl.load(rows + masked).to(tl.int64)
    word = tl.load(bits + tl.load(index + masked) * words + at // 32, mask=inside, other=0)
    target = logits + row * row_stride + at
    x = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    # Whole rows are written: with stores of single logits the accesses would be no wider than these.
    allowed = ((word >> (at % 32)) & 1) != 0
    kept = tl.where(allowed | (x != x), x, float("-inf"))
    tl.store(target, kept.to(logits.dtype.element_ty), mask=inside)


def apply_bitmask(logits: torch.Tensor, rows: torch.Tensor, index: torch.Tensor, bits: torch.Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place. NaN stays, so that a broken row is noticed.

    Args:
        logits: float32 or bfloat16 [S, vocab], vocab contiguous.
        rows: int32 [m], distinct rows of logits.
        index: int32 [m], which of the masks each of them has.
        bits: int32 [u, ceil(vocab / 32)], contiguous: bit i % 32 of word i // 32 is set where token i is allowed.
    """
    vocab = logits.shape[1]
    if len(rows):
        _apply_bitmask_kernel[(len(rows), triton.cdiv(vocab, CHUNK.value))](
            logits, rows, index, bits, bits.shape[1], vocab, logits.stride(0), num_warps=NUM_WARPS
        )
