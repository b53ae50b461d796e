"""Buckets: the sizes for which CUDA graphs are captured, and padding of steps to them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_PADDING = 4
"""A missing bucket may be replaced by a bucket of up to MAX_PADDING times its size."""

FINE_LADDER = 64
"""See `bucket_ladder`. Padding rows cost a small step nothing, because it is bound by reading weights."""


def graph_buckets(max_rows: int) -> list[int]:
    """Return the ascending numbers of rows for which graphs are captured, the last one max_rows.

    Padding to the next bucket adds at most an eighth of the rows, or seven rows. Padding rows cost as much as any row
    in GEMMs and nothing in attention; a graph costs a quarter of a second to capture and a few megabytes.
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


def max_graph_rows(max_requests: int) -> int:
    """Return the largest number of tokens of a step that captured decode steps compute, one row each.

    Beyond the rows that decode, there is room for the tokens that jump-forward appends and for short prompts.
    """
    return max(max_requests, min(max(2 * max_requests, 64), 512))


def token_buckets(max_tokens: int) -> list[int]:
    """Return the ascending numbers of prompt tokens for which graphs are captured, the last one max_tokens.

    Padding to the next bucket adds at most an eighth of the tokens, or 15 tokens.
    """
    buckets, n = [], 16
    while n < max_tokens:
        buckets.append(n)
        n += max(16, 2 ** (n.bit_length() - 4))
    return [*buckets, max_tokens]


def bucket_for(rows: int, buckets: Sequence[int]) -> int | None:
    """Return the smallest bucket that holds that many rows; None if none does."""
    at = bisect.bisect_left(buckets, rows)
    return buckets[at] if at < len(buckets) else None


def larger_buckets(bucket: int, buckets: Sequence[int]) -> list[int]:
    """Return the buckets whose graphs can replace the graph of a missing one, smallest first."""
    return [n for n in buckets if bucket < n <= MAX_PADDING * bucket]


def bucket_ladder(buckets: Sequence[int]) -> list[int]:
    """Return a few buckets that can replace all others (see `larger_buckets`), the largest first. Each bucket is about
    a quarter of the previous bucket, or half of a previous bucket larger than `FINE_LADDER`."""
    ladder = [buckets[-1]]
    while ladder[-1] > buckets[0]:
        ratio = 2 if ladder[-1] > FINE_LADDER else MAX_PADDING
        at = min(bisect.bisect_left(buckets, ladder[-1]) - 1, bisect.bisect_left(buckets, ladder[-1] / ratio))
        ladder.append(buckets[at])
    return ladder


def padded(values: npt.NDArray[Any], rows: int, fill: int = 0, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return the values ([n], n <= rows) followed by `fill`, as [rows], in the values' dtype unless `dtype` is given.

    The function takes a tenth of the time of `np.pad`.
    """
    made = np.full(rows, fill, values.dtype if dtype is None else dtype)
    made[: len(values)] = values
    return made
