"""`OutputTokens`: output of the open requests of one replica, from which another replica could go on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.messages.wire import pack_i32, unpack_i32

BLOCK = 64
"""Tokens of a row of the matrix."""


class OutputTokens:
    """Columns over requests, into which the tokens of a step are written together. With a list for each request, the
    router would take more time for the lists than for the rest of a step.

    A request has a row from `add` to `drop`. A matrix of BLOCK columns holds the row's last tokens, and byte strings
    hold the blocks before.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._last = np.empty((0, BLOCK), np.int32)
        self._in_last = np.zeros(0, np.int64)  # tokens of each row there
        self._counts = np.zeros(0, np.int64)  # all tokens of each row
        self._expected = np.zeros(0)
        self._blocks: dict[int, list[bytes]] = {}
        self._silent: set[str] = set()  # without output

    def add(self, rid: str, expected: float) -> None:
        """Add a request.

        Args:
            expected: expected number of output tokens.
        """
        if not self._free:
            self._grow()
        row = self._rows[rid] = self._free.pop()
        self._expected[row] = expected
        self._silent.add(rid)

    def drop(self, rid: str) -> None:
        """Forget a request."""
        row = self._rows.pop(rid)
        self._in_last[row] = self._counts[row] = 0
        self._expected[row] = 0.0
        self._blocks.pop(row, None)
        self._silent.discard(rid)
        self._free.append(row)

    def step(self, rids: Sequence[str], token_ids: bytes) -> list[str]:
        """Append one token to each request of a step; returns the requests that had no output before.

        Args:
            token_ids: int32 column with a token for each request.

        Raises:
            KeyError: a request has not been added.
        """
        rows = np.fromiter(map(self._rows.__getitem__, rids), np.intp, len(rids))
        at = self._in_last[rows]
        self._last[rows, at] = unpack_i32(token_ids)
        at += 1
        self._in_last[rows] = at
        self._counts[rows] += 1
        # A row whose block is full begins the next block.
        if at.max(initial=0) == BLOCK:
            for row in rows[at == BLOCK].tolist():
                self._blocks.setdefault(row, []).append(self._last[row].tobytes())
                self._in_last[row] = 0
        begun = self._silent.intersection(rids) if self._silent else ()
        self._silent.difference_update(begun)
        return list(begun)

    def extend(self, rid: str, token_ids: bytes) -> bool:
        """Append any number of tokens (an int32 column) to a request; returns True for its first output."""
        row, ids = self._rows[rid], unpack_i32(token_ids)
        count = self._in_last[row]
        whole = np.concatenate([self._last[row, :count], ids])
        rest = len(whole) % BLOCK
        if len(whole) > rest:
            self._blocks.setdefault(row, []).append(whole[: len(whole) - rest].tobytes())
        self._last[row, :rest] = whole[len(whole) - rest :]
        self._in_last[row] = rest
        self._counts[row] += len(ids)
        if rid not in self._silent:
            return False
        self._silent.remove(rid)
        return True

    def of(self, rid: str) -> bytes:
        """All tokens of a request, as an int32 column."""
        row = self._rows[rid]
        return b"".join(self._blocks.get(row, ())) + pack_i32(self._last[row, : self._in_last[row]])

    def remaining(self) -> float:
        """Return the number of tokens that all requests together are expected to sample from now on."""
        return float(np.maximum(self._expected - self._counts, 0.0).sum())

    def _grow(self) -> None:
        old = len(self._counts)
        new = max(2 * old, 64)
        self._last = np.concatenate([self._last, np.empty((new - old, BLOCK), np.int32)])
        self._in_last = np.concatenate([self._in_last, np.zeros(new - old, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(new - old, np.int64)])
        self._expected = np.concatenate([self._expected, np.zeros(new - old)])
        self._free += range(new - 1, old - 1, -1)
