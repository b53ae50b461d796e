"""Embedding lookup in a vocabulary that is sharded over ranks, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.norm import num_warps

BLOCK = 4096
"""Most columns per program: 16 bytes of bfloat16 for each of 512 threads."""


@triton.jit(do_not_specialize=["first", "count"])
def _embed_part_kernel(
    input_ids, rows, out, first, count, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    local = tl.load(input_ids + token) - first
    here = (local >= 0) & (local < count)
    inside = at < SIZE
    row = rows + tl.where(here, local, 0) * SIZE
    values = tl.load(row + at, mask=at < tl.where(here, SIZE, 0), other=0.0)
    tl.store(out + token * SIZE + at, values, mask=inside)


def embed_shard(input_ids: torch.Tensor, rows: torch.Tensor, first: int, early: bool = False) -> torch.Tensor:
    """As `LayerOps.embed_shard`; rows are contiguous.

    Args:
        early: see `CudaOps`.
    """
    tokens, (count, size) = len(input_ids), rows.shape
    out = torch.empty(tokens, size, dtype=rows.dtype, device=rows.device)
    if tokens:
        block = min(BLOCK, triton.next_power_of_2(size))
        _embed_part_kernel[(tokens, triton.cdiv(size, block))](
            input_ids, rows, out, first, count, size, block, early, num_warps=num_warps(block), launch_pdl=early,
        )  # fmt: skip
    return out
