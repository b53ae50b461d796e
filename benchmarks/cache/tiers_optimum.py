"""Offline figures of a trace for `benchmarks.cache.tiers`: its working set, and the best hit rate of a cache.

Requests are processed one after another in a given order. A prompt is a path in the tree of all pages of PAGE tokens. A
cache that knows the order drops the page whose next use is farthest in the future (Belady, IBM Systems Journal 5(2),
1966). A page is used next no earlier than the pages before it on its path, so the ends of paths are dropped first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

from benchmarks.cache.tiers_traces import Call
from radixrt.messages.wire import Int32Array

PAGE = 64
NEVER = 1 << 60


class Pages:
    """Pages of the requests of a trace.

    Attributes:
        prompts: for each request the ids of its prompt's pages.
        wholes: for each request the ids of the pages of prompt and output.
        uses: for each page the numbers of the requests whose prompts have the page, ascending.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._ids: dict[bytes, int] = {}
        self.lengths = [len(call.prompt) for call in calls]
        self.prompts: list[list[int]] = []
        self.wholes: list[list[int]] = []
        self.uses: defaultdict[int, list[int]] = defaultdict(list)
        for number, call in enumerate(calls):
            whole = self._path([call.prompt, call.output])
            self.prompts.append(whole[: len(call.prompt) // PAGE])
            self.wholes.append(whole)
            for page in self.prompts[-1]:
                self.uses[page].append(number)

    def _path(self, runs: Sequence[Int32Array]) -> list[int]:
        data, before, path = b"".join(run.tobytes() for run in runs), b"", []
        for end in range(4 * PAGE, len(data) + 1, 4 * PAGE):
            before = blake2b(before + data[end - 4 * PAGE : end], digest_size=16).digest()
            path.append(self._ids.setdefault(before, len(self._ids)))
        return path

    def working_set(self) -> int:
        """Return the largest number of tokens that are to be used again at one time."""
        changes = [0] * (len(self.prompts) + 1)
        first: dict[int, int] = {}
        for number, whole in enumerate(self.wholes):
            for page in whole:
                first.setdefault(page, number)
        for page, uses in self.uses.items():
            if uses[-1] > first[page]:
                changes[first[page]] += 1
                changes[uses[-1]] -= 1
        held = most = 0
        for change in changes:
            held += change
            most = max(most, held)
        return most * PAGE

    def best_hit_rate(self, cache_tokens: int) -> float:
        """Return the share of prompt tokens that a cache of so many tokens finds."""
        limit = cache_tokens // PAGE
        upcoming = {page: list(reversed(uses)) for page, uses in self.uses.items()}
        kept: set[int] = set()
        heap: list[tuple[int, int, int]] = []  # (minus next use, minus depth, page)
        hits = 0
        for number, (prompt, whole) in enumerate(zip(self.prompts, self.wholes, strict=True)):
            for page in prompt:
                if page not in kept:
                    break
                hits += PAGE
            for depth, page in enumerate(whole):
                uses = upcoming.get(page)
                while uses and uses[-1] <= number:
                    uses.pop()
                kept.add(page)
                heapq.heappush(heap, (-(uses[-1] if uses else NEVER), -depth, page))
            while len(kept) > limit:
                use, _, page = heapq.heappop(heap)
                uses = upcoming.get(page)
                if page in kept and -use == (uses[-1] if uses else NEVER):
                    kept.remove(page)
        return hits / sum(self.lengths)
