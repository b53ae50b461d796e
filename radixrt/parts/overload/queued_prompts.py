"""`QueuedPrompts`: counts the prompt tokens that a request shares with requests before it in the queue.

A prompt token need not be computed if the prefix cache holds the token's prefix. The same is true if a request that
waits or is in PREFILL has the prefix: that request computes the prefix, and other requests find it in the cache
(`admission.PrefillPrefixes`). A prefix is identified by a hash of its first 1, 2, ... granules, as in
`radixrt.mem_cache.granules`. Python's own hash is used, which is cheaper, because the hashes never leave the process.
"""

from __future__ import annotations

from collections.abc import Set

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.messages.wire import Int32Array


class QueuedPrompts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._prefixes: dict[int, int] = {}  # hash of a prefix -> number of requests that begin with it
        self._hashes: dict[str, list[int]] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._hashes

    def shared_len(self, hashes: list[int]) -> int:
        """Return the number of leading tokens that a prompt has in common with any of the requests, in whole granules.

        Args:
            hashes: `prefix_hashes` of the prompt.
        """
        shared = 0
        for hashed in hashes:
            if hashed not in self._prefixes:
                break
            shared += GRANULE_TOKENS
        return shared

    def add(self, rid: str, hashes: list[int]) -> None:
        """Add a request, if it is not known yet."""
        if rid in self._hashes:
            return
        self._hashes[rid] = hashes
        counts = self._prefixes
        for hashed in hashes:
            counts[hashed] = counts.get(hashed, 0) + 1

    def keep(self, rids: Set[str]) -> None:
        """Remove all requests whose id is not in `rids`."""
        for rid in self._hashes.keys() - rids:
            for hashed in self._hashes.pop(rid):
                self._prefixes[hashed] -= 1
                if not self._prefixes[hashed]:
                    del self._prefixes[hashed]


def prefix_hashes(ids: Int32Array, namespace: str) -> list[int]:
    """Return the hashes of the first 1, 2, ... granules of a prompt."""
    data, size = ids.tobytes(), 4 * GRANULE_TOKENS
    hashes, last = [], hash(namespace)
    for start in range(0, len(data) - size + 1, size):
        last = hash((last, data[start : start + size]))
        hashes.append(last)
    return hashes
