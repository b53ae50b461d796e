"""The embedding of tokens where the vocabulary is split over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from radixrt.executor.parallel import TPGroup


def embed_parallel(input_ids: torch.Tensor, rows: torch.Tensor, first: int, group: TPGroup) -> torch.Tensor:
    """int64 [T] -> [T, hidden] on every rank. Exact: one rank adds a token's row, the others zeros.

    Args:
        rows: [n, hidden], of this rank.
        first: the token of its first row.
    """
    local = input_ids - first
    elsewhere = (local < 0) | (local >= rows.shape[0])
    hidden = F.embedding(local.masked_fill_(elsewhere, 0), rows)
    return group.all_reduce(hidden.masked_fill_(elsewhere[:, None], 0))
