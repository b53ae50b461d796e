"""For which numbers of rows and tokens graphs are captured, which of them a step uses, and how it is padded."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def graph_buckets(max_rows: int) -> list[int]:
    """Ascending numbers of rows, the last one max_rows: a step is padded by an eighth at most, or by seven rows.

    Padding rows cost what other rows cost in the matrix products, and nothing in attention; a graph costs a quarter of
    a second to capture and a few megabytes.
    """
    buckets, n = [], 1
    while n < max_rows:
        buckets.append(n)
        if n < 8:
            n *= 2
        elif n < 64:
            n += 8
        else:
            n += 2 ** (n.bit_length() - 4)
    return [*buckets, max_rows]


def token_buckets(max_tokens: int) -> list[int]:
    """Ascending numbers of prompt tokens, the last one max_tokens: a step is padded by an eighth at most, or by 15."""
    buckets, n = [], 16
    while n < max_tokens:
        buckets.append(n)
        n += max(16, 2 ** (n.bit_length() - 4))
    return [*buckets, max_tokens]


def bucket_for(rows: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds that many rows; None if none does."""
    at = bisect.bisect_left(buckets, rows)
    return buckets[at] if at < len(buckets) else None


def padded(values: npt.NDArray[Any], rows: int, fill: int = 0, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """The values, [n] for n <= rows, and `fill` behind them, [rows]; of their own dtype if none is given. It takes a
    tenth of the time of numpy's pad."""
    made = np.full(rows, fill, values.dtype if dtype is None else dtype)
    made[: len(values)] = values
    return made
