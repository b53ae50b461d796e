"""Some rows of a step's tensors: which need an operation, and how to work on just those."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from radixrt.runner.sampling.sampling_tables import upload

Rows = npt.NDArray[np.int64]
Needs = npt.NDArray[np.uint8]
NO_ROWS: Rows = np.zeros(0, np.int64)


def rows_with(needs: Needs, every: int, bits: int) -> Rows:
    """The rows that need any of these operations; every is what all rows need together."""
    return np.flatnonzero(needs & bits) if every & bits else NO_ROWS


def take(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """values[rows] for distinct ascending rows; values itself, not a copy, when those are all of them."""
    if len(rows) == len(values):
        return values
    return values.index_select(0, upload(rows, values.device))


def put(values: torch.Tensor, rows: Rows, part: torch.Tensor) -> None:
    """values[rows] = part, for rows as in `take`; nothing to do for what `take` gave when it is values itself."""
    if len(rows) < len(values):
        values.index_copy_(0, upload(rows, values.device), part)
    elif part is not values:
        values.copy_(part)
