"""`BodyBudget`: a bound on the memory of all bodies that are being received."""

from __future__ import annotations

from collections import Counter

from radixrt.errors import RequestError

LARGE_BODIES_BYTES = 256 * 1024 * 1024
CLIENTS = 4
"""One client may take this part of the budget."""


class BodyBudget:
    """Bounds the memory of all large bodies that are being received at a time, and the part of one client in it."""

    def __init__(self, max_body_bytes: int) -> None:
        self._total = max(LARGE_BODIES_BYTES, CLIENTS * max_body_bytes)
        self._held: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        """Account for bytes that have arrived; raises RequestError (503) if they are too many."""
        if self._held[client] + size > self._total // CLIENTS or self._held.total() + size > self._total:
            raise RequestError("too many large bodies are being received; try again", code="busy", status=503)
        self._held[client] += size

    def give_back(self, client: str, size: int) -> None:
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
