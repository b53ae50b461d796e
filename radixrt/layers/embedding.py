"""The embedding of tokens where the vocabulary is split over ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embed_part(input_ids: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
    """int64 [T] -> [T, hidden], this rank's part of a sum over ranks: one has a token's row, the others zeros.

    Args:
        rows: [n, hidden], of this rank.
        first: the token of its first row.
    """
    local = input_ids - first
    elsewhere = (local < 0) | (local >= rows.shape[0])
    hidden = F.embedding(local.masked_fill_(elsewhere, 0), rows)
    return hidden.masked_fill_(elsewhere[:, None], 0)
