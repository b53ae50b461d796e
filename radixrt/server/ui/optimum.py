"""Best hit rate that any cache could have had on the requests of the last minutes, in two bounds.

*Without eviction*: a token hits if any earlier request of the window put the token into the cache. *Of this size*: the
same for a cache of the pool's size that knows the future, and drops the granule whose next use is the farthest (Belady,
IBM Systems Journal 5(2), 1966). A granule is used again no earlier than the granule before on the same path, so ends of
paths are dropped first and the rest stays closed under prefixes. The pool also holds the running requests, which this
bound ignores, so a real cache need not reach the bound. The last token of a prompt is computed in any case.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.server.ui.misses import Miss

WINDOW_S = 600.0
MAX_REQUESTS = 4096
MAX_GRANULES = 131_072
NEVER = 1 << 60


class Bounds(NamedTuple):
    """Sums of tokens over a window of requests; `hits` <= `belady` <= `infinite` <= `prompt`."""

    requests: int
    seconds: float
    prompt: int
    hits: int
    belady: int
    infinite: int


class Window:
    """The requests of the last WINDOW_S seconds, within bounds of their number and size."""

    def __init__(self) -> None:
        self.misses: deque[Miss] = deque()
        self._size = 0

    def add(self, miss: Miss) -> None:
        """Add a request that has ended."""
        self.misses.append(miss)
        self._size += len(miss.granules) + len(miss.output)
        while len(self.misses) > MAX_REQUESTS or self._size > MAX_GRANULES:
            self._drop()

    def bounds(self, num_slots: int, now: float | None = None) -> Bounds | None:
        """Return the bounds for a pool of `num_slots` tokens; None without requests."""
        now = time.time() if now is None else now
        while self.misses and now - self.misses[0].at > WINDOW_S:
            self._drop()
        if not self.misses:
            return None
        prompt = sum(miss.prompt for miss in self.misses)
        hits = sum(miss.cached for miss in self.misses)
        infinite = max(sum(min(miss.seen, miss.prompt - 1) for miss in self.misses), hits)
        best = min(max(belady(list(self.misses), num_slots // GRANULE_TOKENS), hits), infinite)
        return Bounds(len(self.misses), now - self.misses[0].at, prompt, hits, best, infinite)

    def _drop(self) -> None:
        miss = self.misses.popleft()
        self._size -= len(miss.granules) + len(miss.output)


def belady(misses: Sequence[Miss], capacity: int) -> int:
    """Return the number of tokens that hit in a cache of `capacity` granules that knows the future.

    Granules that the real cache had from before the window count as present until their first use.
    """
    uses: dict[bytes, deque[int]] = {}
    for index, miss in enumerate(misses):
        for granule in miss.granules:
            uses.setdefault(granule, deque()).append(index)
    cached: dict[bytes, int] = {}  # granule -> its next use
    farthest: list[tuple[int, int, bytes]] = []  # (-next use, -depth, granule), stale where cached says otherwise
    met: set[bytes] = set()
    tokens = 0
    for index, miss in enumerate(misses):
        # The hit: the longest prefix of granules that are cached.
        count = 0
        for depth, granule in enumerate(miss.granules):
            first = granule not in met and (depth + 1) * GRANULE_TOKENS <= miss.cached
            if granule not in cached and not first:
                break
            count = depth + 1
        # After the last whole granule, tokens can hit if they come from the same cached prompt.
        rest = miss.seen % GRANULE_TOKENS if count == miss.seen // GRANULE_TOKENS else 0
        tokens += min(count * GRANULE_TOKENS + rest, miss.seen, miss.prompt - 1)

        # Cache all granules of the request, then drop the granules whose next use is the farthest.
        for depth, granule in enumerate([*miss.granules, *miss.output]):
            met.add(granule)
            upcoming = uses.get(granule)
            while upcoming and upcoming[0] <= index:
                upcoming.popleft()
            cached[granule] = upcoming[0] if upcoming else NEVER
            heapq.heappush(farthest, (-cached[granule], -depth, granule))
        while len(cached) > capacity:
            use, _, granule = heapq.heappop(farthest)
            if cached.get(granule) == -use:
                del cached[granule]
    return tokens
