"""Matrices with a batch's tokens as rows, and room behind them for as many as a product of `skinny_gemm` reads at once.

The copy engine may fetch a tile that goes past the end of a matrix, but the product then takes up to twice as long, the
longer the more rows are missing. So what products read is made with
memory behind it, which is fetched with it; whatever lies there ends in rows of the result that nobody stores.
"""

from __future__ import annotations

import torch

from radixrt.kernels.triton.skinny_gemm_config import MAX_TOKENS, padded


def empty_with_room(rows: int, *sizes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[rows, *sizes], contiguous, of any content, and at the beginning of its memory."""
    with_room = padded(rows) if 0 < rows <= MAX_TOKENS else rows
    return torch.empty(with_room, *sizes, dtype=dtype, device=device)[:rows]


def with_room(x: torch.Tensor, rows: int) -> torch.Tensor:
    """A contiguous matrix [T, columns] and the memory behind it as [rows, columns]; x itself if there is too little."""
    columns = x.shape[1]
    elements = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    return x.as_strided((rows, columns), (columns, 1)) if elements >= rows * columns else x
