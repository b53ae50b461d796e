"""Grammar masks on the logits of some rows, from a table of masks on the device.

xgrammar has such a kernel, but it finds a row's mask at the row's own index, so that masks of all rows would have to be
uploaded in every step; and it would load that library into every runner.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CHUNK = tl.constexpr(4096)
NUM_WARPS = 8


@triton.jit
def _apply_bitmask_kernel(logits, slots, table, words, vocab, row_stride):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab
    word = tl.load(table + slot * words + at // 32, mask=inside, other=0)
    target = logits + row * row_stride + at
    x = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    # Whole rows are written: with stores of single logits the accesses would be no wider than these.
    allowed = ((word >> (at % 32)) & 1) != 0
    kept = tl.where(allowed | (x != x), x, float("-inf"))
    tl.store(target, kept.to(logits.dtype.element_ty), mask=inside)


def apply_bitmask(logits: torch.Tensor, slots: torch.Tensor, table: torch.Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place. NaN stays, so that a broken row is noticed.

    Args:
        logits: float32 or bfloat16 [S, vocab], vocab contiguous.
        slots: int32 [S], row of the table that is the mask of each row; -1 for a row without one.
        table: int32 [slots, ceil(vocab / 32)], contiguous: bit i % 32 of word i // 32 is set where token i is allowed.
    """
    rows, vocab = logits.shape
    _apply_bitmask_kernel[(rows, triton.cdiv(vocab, CHUNK.value))](
        logits, slots, table, table.shape[1], vocab, logits.stride(0), num_warps=NUM_WARPS
    )
