"""`OutputTokens`: what the open requests of one replica have sampled, which another replica would go on from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.messages.wire import pack_i32, unpack_i32

BLOCK = 64
"""Tokens of a row of the matrix."""


class OutputTokens:
    """Columns over requests, into which the tokens of a step are written together. A list of each request would cost
    the router more than everything else that it does for a step.

    A request has a row, from `add` to `drop`: the last tokens in a matrix of BLOCK columns, those before them as bytes.
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
            expected: number of tokens that it is expected to sample.
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
        """Append one token to each of these requests; returns those that had no output before.

        Raises:
            KeyError: a request has not been added.
        """
        rows = np.fromiter(map(self._rows.__getitem__, rids), np.intp, len(rids))
        at = self._in_last[rows]
        self._last[rows, at] = unpack_i32(token_ids)
        at += 1
        self._in_last[rows] = at
        self._counts[rows] += 1
        if at.max(initial=0) == BLOCK:
            for row in rows[at == BLOCK].tolist():
                self._blocks.setdefault(row, []).append(self._last[row].tobytes())
                self._in_last[row] = 0
        begun = self._silent.intersection(rids) if self._silent else ()
        self._silent.difference_update(begun)
        return list(begun)

    def extend(self, rid: str, token_ids: bytes) -> bool:
        """Append any number of tokens to a request; returns whether it had no output before."""
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
        """Number of tokens that all requests together are expected to sample yet."""
        return float(np.maximum(self._expected - self._counts, 0.0).sum())

    def _grow(self) -> None:
        old = len(self._counts)
        new = max(2 * old, 64)
        self._last = np.concatenate([self._last, np.empty((new - old, BLOCK), np.int32)])
        self._in_last = np.concatenate([self._in_last, np.zeros(new - old, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(new - old, np.int64)])
        self._expected = np.concatenate([self._expected, np.zeros(new - old)])
        self._free += range(new - 1, old - 1, -1)
