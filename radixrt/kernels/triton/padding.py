"""Matrices whose rows are a batch's tokens, with padding behind them up to the tile size of `skinny_gemm`.

The copy engine may fetch a tile that extends past the end of a tensor, but the GEMM then takes up to twice as long, the
longer the more rows are missing. Therefore the inputs of GEMMs are allocated with padding behind them, which is fetched
too; its content only reaches rows of the result that are not stored.
"""

from __future__ import annotations

import torch

from radixrt.kernels.triton.skinny_gemm_config import allocated_tokens


def empty_padded(rows: int, *sizes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate [rows, *sizes], contiguous and uninitialized, with padding behind it in the same storage."""
    return torch.empty(allocated_tokens(rows), *sizes, dtype=dtype, device=device)[:rows]


def padded_view(x: torch.Tensor, rows: int) -> torch.Tensor:
    """View a contiguous matrix [T, columns] with the padding behind it as [rows, columns]; x if the padding is too
    short."""
    columns = x.shape[1]
    elements = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    return x.as_strided((rows, columns), (columns, 1)) if elements >= rows * columns else x
