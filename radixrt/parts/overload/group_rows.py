"""`GroupRows`: work of the rows of a request without sampling (`RequestGroup`), most of which are not in the queue yet.

Each row is a sequence of its own. Rows with equal beginnings share what is computed, through the prefix cache, so the
tokens of a common beginning count once. To keep the estimate cheap for thousands of rows, the share of cached tokens is
estimated from SAMPLED_ROWS of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from radixrt.messages.request import Request
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.admission import DEFER_TOKENS

SAMPLED_ROWS = 32
"""Number of rows whose tokens are compared with the cache and with each other."""


class RowsWork(NamedTuple):
    """Work of several rows.

    Attributes:
        tokens: number of tokens to compute.
        pairs: sum over these tokens of the number of positions that the token attends to.
        rows: number of rows.
    """

    tokens: float
    pairs: float
    rows: int


class GroupRows:
    """Estimated work of the rows of one request.

    Args:
        message: request with several rows.
        cached_len: returns the number of leading tokens of a sequence that the prefix cache holds; None if rows share
            nothing, because there is no prefix cache.

    Attributes:
        longest: number of tokens of the longest row.
    """

    def __init__(self, message: Request, cached_len: Callable[[Int32Array], int] | None) -> None:
        share = 0.0 if cached_len is None else _cached_share(message, cached_len)
        prefix = np.array([message.row_len(i) - len(row.ids) // 4 for i, row in enumerate(message.rows)], np.float64)
        own = np.array([len(row.ids) // 4 for row in message.rows], np.float64)
        new = own * (1 - share)
        pairs = new * (prefix + own * share + new / 2)
        # The first row with a prefix computes the prefix.
        of_row = np.array([row.prefix for row in message.rows])
        begins = (of_row >= 0) & (of_row != np.roll(of_row, 1))
        new[begins] += prefix[begins]
        pairs[begins] += prefix[begins] ** 2 / 2
        self.longest = int((prefix + own).max())
        self._tokens_from = np.append(new[::-1].cumsum()[::-1], 0.0)
        self._pairs_from = np.append(pairs[::-1].cumsum()[::-1], 0.0)

    def rest(self, first: int) -> RowsWork:
        """Return the work of all rows from row `first` on."""
        return RowsWork(
            float(self._tokens_from[first]), float(self._pairs_from[first]), len(self._tokens_from) - 1 - first
        )


def _cached_share(message: Request, cached_len: Callable[[Int32Array], int]) -> float:
    """Return the estimated share of the rows' own tokens that need not be computed, because the cache or an earlier row
    has them."""
    count = len(message.rows)
    chosen = sorted(set(np.linspace(1, count - 1, min(count - 1, SAMPLED_ROWS)).astype(int).tolist()))
    rows = [
        (message.tokens(i)[: message.first_read(i)], message.row_len(i), len(message.rows[i].ids) // 4) for i in chosen
    ]
    # Neighbours in the order of their bytes have the longest common beginnings. The rows outside the sample are more of
    # the same kind, so the first row is compared with its only neighbour.
    rows.sort(key=lambda row: row[0].tobytes())
    cached = total = 0
    for i, (ids, length, own) in enumerate(rows):
        neighbour = rows[i - 1 if i else min(1, len(rows) - 1)][0]
        shared = _common_len(ids, neighbour) if len(rows) > 1 else 0
        known = max(cached_len(ids), shared if shared >= DEFER_TOKENS else 0)
        cached += max(known - (length - own), 0)
        total += own
    return cached / total if total else 0.0


def _common_len(a: Int32Array, b: Int32Array) -> int:
    """Return the number of leading tokens that are equal."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size
