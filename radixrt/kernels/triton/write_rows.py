"""Write of runs of slots into rows of req_to_token, all in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
SPLITS = 4
"""Programs per run."""


@triton.jit
def _write_rows_kernel(table, stride, rows, starts, indptr, slots, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    first = tl.load(indptr + i)
    count = tl.load(indptr + i + 1) - first
    target = table + tl.load(rows + i).to(tl.int64) * stride + tl.load(starts + i)
    for begin in range(tl.program_id(1) * BLOCK, count, BLOCK * tl.num_programs(1)):
        at = begin + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(slots + first + at, mask=at < count, other=0), mask=at < count)


def write_rows(
    table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, indptr: torch.Tensor, slots: torch.Tensor
) -> None:
    """Set table[rows[i], starts[i] : starts[i] + n] = slots[indptr[i] : indptr[i + 1]], n of them, for each i.

    No two runs may overlap.

    Args:
        table: int32 [max_requests + 1, max_context_len], req_to_token.
        rows, starts: int32 [N].
        indptr: int32 [N + 1].
        slots: int32.
    """
    _write_rows_kernel[(rows.shape[0], SPLITS)](table, table.stride(0), rows, starts, indptr, slots, BLOCK=BLOCK)
