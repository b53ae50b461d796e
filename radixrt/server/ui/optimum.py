"""Best hit rate that any cache could have had on the requests of the last minutes, in two bounds.

*Without eviction*: a token hits if any earlier request of the window put it into the cache. *Of this size*: the same
for a cache of the pool's size that knows the future, and drops what is used again last (Belady, IBM Systems Journal
5(2), 1966), by granules. A granule is used again no earlier than the one before it on its path, so ends of paths are
dropped first and the rest stays closed under prefixes. The pool also holds the running requests, which this bound
ignores, so it is a bound and no promise. The last token of a prompt is computed in any case.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.mem_cache.granules import GRANULE_TOKENS

WINDOW_S = 600.0
MAX_REQUESTS = 4096
MAX_GRANULES = 131_072
NEVER = 1 << 60


@dataclass(frozen=True)
class Access:
    """One request.

    Attributes:
        at: time in seconds.
        prompt, hits, seen: tokens of the prompt, those that the cache had, and those that it had at any time.
        granules: hashes of the prompt's granules.
        output: hashes of the granules after the prompt, which the request left in the cache.
    """

    at: float
    prompt: int
    hits: int
    seen: int
    granules: Sequence[bytes]
    output: Sequence[bytes] = ()


@dataclass(frozen=True)
class Bounds:
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
        self.accesses: deque[Access] = deque()
        self._size = 0

    def add(self, access: Access) -> None:
        self.accesses.append(access)
        self._size += len(access.granules) + len(access.output)
        while len(self.accesses) > MAX_REQUESTS or self._size > MAX_GRANULES:
            self._drop()

    def bounds(self, num_slots: int, now: float | None = None) -> Bounds | None:
        """The bounds for a pool of `num_slots` tokens; None without requests."""
        now = time.time() if now is None else now
        while self.accesses and now - self.accesses[0].at > WINDOW_S:
            self._drop()
        if not self.accesses:
            return None
        prompt = sum(access.prompt for access in self.accesses)
        hits = sum(access.hits for access in self.accesses)
        infinite = max(sum(min(access.seen, access.prompt - 1) for access in self.accesses), hits)
        best = min(max(belady(list(self.accesses), num_slots // GRANULE_TOKENS), hits), infinite)
        return Bounds(len(self.accesses), now - self.accesses[0].at, prompt, hits, best, infinite)

    def _drop(self) -> None:
        access = self.accesses.popleft()
        self._size -= len(access.granules) + len(access.output)


def belady(accesses: Sequence[Access], capacity: int) -> int:
    """Tokens that hit in a cache of `capacity` granules that knows the future.

    What the real cache had from before the window counts as present until it is used for the first time.
    """
    uses: dict[bytes, deque[int]] = {}
    for index, access in enumerate(accesses):
        for granule in access.granules:
            uses.setdefault(granule, deque()).append(index)
    cached: dict[bytes, int] = {}  # granule -> its next use
    farthest: list[tuple[int, int, bytes]] = []  # (-next use, -depth, granule), stale where cached says otherwise
    met: set[bytes] = set()
    tokens = 0
    for index, access in enumerate(accesses):
        count = 0
        for depth, granule in enumerate(access.granules):
            first = granule not in met and (depth + 1) * GRANULE_TOKENS <= access.hits
            if granule not in cached and not first:
                break
            count = depth + 1
        # Behind the last whole granule a rest can hit, if the request has it from the same neighbour.
        rest = access.seen % GRANULE_TOKENS if count == access.seen // GRANULE_TOKENS else 0
        tokens += min(count * GRANULE_TOKENS + rest, access.seen, access.prompt - 1)
        for depth, granule in enumerate([*access.granules, *access.output]):
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
