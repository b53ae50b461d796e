"""`ReqToTokenPool`: one row of slot ids for each request."""

from __future__ import annotations

import numpy as np

from radixrt.errors import InvariantError


class ReqToTokenPool:
    """A table of rows; `table[req_pool_idx, position]` is the KV slot of that position of that request.

    This table is the authority, the runner keeps a mirror of it. Row 0 is padding and is never allocated. A row is not
    cleared when it is freed or allocated: positions from the owner's length on mean nothing.

    Args:
        max_requests: rows that can be allocated.
        max_context_len: positions of a row.

    Attributes:
        table: int32[max_requests + 1, max_context_len].

    Raises:
        ValueError: an argument is not positive.
    """

    def __init__(self, max_requests: int, max_context_len: int) -> None:
        if max_requests < 1 or max_context_len < 1:
            raise ValueError(f"need positive max_requests and max_context_len, got {max_requests}, {max_context_len}")
        self.max_requests = max_requests
        self.max_context_len = max_context_len
        self.table = np.zeros((max_requests + 1, max_context_len), dtype=np.int32)
        self._free: list[int] = []
        self._is_free: list[bool] = []
        self.clear()

    def clear(self) -> None:
        """Free every row. All holders of rows must drop them."""
        self._free = list(range(self.max_requests, 0, -1))
        self._is_free = [False] + [True] * self.max_requests

    def available(self) -> int:
        """Free rows."""
        return len(self._free)

    def alloc(self) -> int | None:
        """A row (1..max_requests), or None if all are in use."""
        if not self._free:
            return None
        idx = self._free.pop()
        self._is_free[idx] = False
        return idx

    def free(self, idx: int) -> None:
        """Free a row.

        Raises:
            InvariantError: the row is not one that was allocated, or was freed already.
        """
        if not 1 <= idx <= self.max_requests or self._is_free[idx]:
            raise InvariantError(f"row {idx} of 1..{self.max_requests} is not in use")
        self._is_free[idx] = True
        self._free.append(idx)

    def in_use(self) -> list[int]:
        """Rows that are allocated, ascending: for invariants."""
        return [idx for idx in range(1, self.max_requests + 1) if not self._is_free[idx]]
