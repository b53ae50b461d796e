"""List of the pages that each row of a batch reads, built on the device from req_to_token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
SPLITS = 8
"""Programs per row: one alone would take longer for a long context than its attention."""


@triton.jit(do_not_specialize_on_alignment=["rows", "starts", "indptr"])
def _kv_indices_kernel(
    table, stride, rows, starts, indptr, out, PAGE: tl.constexpr, BLOCK: tl.constexpr, HAS_STARTS: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0)
    row = tl.load(rows + i)
    first = tl.load(indptr + i)
    pages = tl.load(indptr + i + 1) - first
    source = table + row.to(tl.int64) * stride
    if HAS_STARTS:
        source += tl.load(starts + i)
    for begin in range(tl.program_id(1) * BLOCK, pages, BLOCK * tl.num_programs(1)):
        at = begin + tl.arange(0, BLOCK)
        slots = tl.load(source + at * PAGE, mask=at < pages, other=0)
        tl.store(out + first + at, slots // PAGE, mask=at < pages)


def write_kv_indices(
    table: torch.Tensor, rows: torch.Tensor, indptr: torch.Tensor, page_size: int, out: torch.Tensor,
    starts: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Set out[indptr[i] + j] to the page that holds page_size positions of row i from starts[i] + j * page_size on.

    Args:
        table: int32 [max_requests + 1, max_context_len], req_to_token.
        rows: int [B], rows of the table.
        indptr: int32 [B + 1], where each row's pages begin in out.
        out: int32 [at least indptr[B]]; the rest is unchanged.
        starts: int32 [B], multiples of page_size; None for 0.
    """
    grid = (rows.shape[0], SPLITS)
    _kv_indices_kernel[grid](
        table, table.stride(0), rows, starts, indptr, out, PAGE=page_size, BLOCK=BLOCK, HAS_STARTS=starts is not None
    )
