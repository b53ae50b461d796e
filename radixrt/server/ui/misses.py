"""`MissLog`: why the prompts of requests were not in the cache, from the events of the cache.

The tokens of a prompt that the cache did not have are computed and then published into the tree, as granules with chain
hashes. A granule whose hash was in the tree before was evicted, or dropped with the whole cache; any other one is new
since the watching began.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from radixrt.mem_cache.granules import GRANULE_TOKENS, split_hashes
from radixrt.mem_cache.replica import CacheReplica
from radixrt.messages.cache_events import (
    CacheCleared,
    CacheEvent,
    NodeEvicted,
    RequestAdmitted,
    RequestEnded,
    RequestPublished,
)

MAX_GHOSTS = 262_144
MAX_OPEN = 8192
MAX_ENDED = 512
EVICTED, RESET = "evicted", "reset"


class Causes(NamedTuple):
    """Tokens that are not in the cache, by the reason; see `Miss` for the fields."""

    evicted: int
    reset: int
    evicted_s: float
    new: int


@dataclass(eq=False)
class Miss:
    """A prompt, and what became of its tokens.

    Attributes:
        number: position in the order of admission.
        at: time of the admission, in seconds since 1970.
        evicted, reset: tokens that had been in the cache, and were evicted or dropped with the whole cache.
        evicted_s: seconds since the latest of them was.
        together: tokens that another request computed at the same time.
        new: tokens that the cache never had since the watching began.
        beside: number of cached continuations from which the prompt parts where its cached prefix ends.
        granules: hashes of the prompt's granules, once they are known.
        ended: reason of the request's finish; None while it is open.
        out, first_token_s: tokens of the output, and seconds to the first one, once it has ended.
    """

    rid: str
    number: int
    at: float
    prompt: int
    cached: int
    matched: int
    reusable: int
    node: int
    beside: int
    evicted: int = 0
    reset: int = 0
    evicted_s: float = 0.0
    together: int = 0
    new: int = 0
    granules: list[bytes] = field(default_factory=list)
    output: list[bytes] = field(default_factory=list)
    ended: str | None = None
    ended_at: float = 0.0
    out: int = 0
    first_token_s: float | None = None
    program: str = ""
    branch: str = ""

    def body(self) -> list[Any]:
        """The members that the page shows, as an array."""
        return [
            self.rid, round(self.at, 2), self.prompt, self.cached, self.matched, self.reusable, self.beside,
            self.evicted, self.reset, round(self.evicted_s, 1), self.together, self.new, self.ended, self.number,
            self.program, self.branch, self.out, round(self.ended_at, 2),
            None if self.first_token_s is None else round(self.first_token_s, 4),
        ]  # fmt: skip


class MissLog:
    """See the module's docstring. `before` takes each event before the replica does, `after` after it.

    Attributes:
        ended: requests that have ended, the oldest first, without hashes.
        open: those that have not, by id.
        changed: requests with news since the caller last cleared it.
    """

    def __init__(self, replica: CacheReplica, clock: Callable[[], float] = time.time) -> None:
        self._replica = replica
        self._clock = clock
        self._ghosts: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._admitted = 0
        self.open: OrderedDict[str, Miss] = OrderedDict()
        self.ended: deque[Miss] = deque(maxlen=MAX_ENDED)
        self.changed: dict[int, Miss] = {}

    def before(self, event: CacheEvent) -> None:
        if isinstance(event, NodeEvicted):
            self._remember(self._replica.nodes[event.node].hashes, EVICTED)
        elif isinstance(event, CacheCleared):
            for node in self._replica.nodes.values():
                self._remember(node.hashes, RESET)

    def after(self, event: CacheEvent) -> Miss | None:
        """Take an event; returns the request that it ended, if any."""
        if isinstance(event, RequestAdmitted):
            self._admit(event)
        elif isinstance(event, RequestPublished):
            self._publish(event)
        elif isinstance(event, RequestEnded):
            return self._end(event)
        return None

    def _remember(self, hashes: bytes, cause: str) -> None:
        now = self._clock()
        for granule in split_hashes(hashes):
            self._ghosts[granule] = (now, cause)
        while len(self._ghosts) > MAX_GHOSTS:
            self._ghosts.popitem(last=False)

    def _admit(self, event: RequestAdmitted) -> None:
        node = self._replica.nodes.get(event.node)
        self._admitted += 1
        miss = Miss(
            event.rid, self._admitted, self._clock(), event.prompt_tokens, event.cached_tokens, event.matched_tokens,
            event.reusable_tokens, event.node, 0 if node is None else node.num_children, program=event.program,
            branch=event.branch,
        )  # fmt: skip
        if node is not None:
            miss.granules = node.granules()[: event.prompt_tokens // GRANULE_TOKENS]
        self.open[event.rid] = self.changed[miss.number] = miss
        if len(self.open) > MAX_OPEN:
            self.open.popitem(last=False)

    def _publish(self, event: RequestPublished) -> None:
        miss, node = self.open.get(event.rid), self._replica.nodes.get(event.node)
        if miss is None or node is None:
            return
        self.changed[miss.number] = miss
        known = node.granules()
        prompt = miss.prompt // GRANULE_TOKENS
        if len(known) >= len(miss.granules):
            miss.granules, miss.output = known[:prompt], known[prompt:]
        end = min(event.end, miss.prompt)
        miss.together += max(min(event.existing, end) - event.start, 0)
        start = max(event.existing, event.start)
        found = self._causes(known, start, end)
        for granule in known[start // GRANULE_TOKENS : -(-end // GRANULE_TOKENS)]:
            self._ghosts.pop(granule, None)  # it is in the tree again
        miss.evicted += found.evicted
        miss.reset += found.reset
        miss.new += found.new
        miss.evicted_s = found.evicted_s or miss.evicted_s

    def causes(self, hashes: bytes, start: int, end: int) -> Causes:
        """Find out why the tokens [start, end) of a prompt with these chain hashes are not in the cache."""
        return self._causes(split_hashes(hashes), start, end)

    def _causes(self, known: list[bytes], start: int, end: int) -> Causes:
        sums, evicted_s, cause, now = {EVICTED: 0, RESET: 0, "": 0}, 0.0, "", self._clock()
        at = start
        while at < end:
            index = at // GRANULE_TOKENS
            until = min((index + 1) * GRANULE_TOKENS, end)
            if index < len(known):
                evicted_at, cause = self._ghosts.get(known[index], (0.0, ""))
                if cause:
                    evicted_s = now - evicted_at
            sums[cause] += until - at  # a rest of less than a granule is as what comes before it
            at = until
        return Causes(sums[EVICTED], sums[RESET], evicted_s, sums[""])

    def _end(self, event: RequestEnded) -> Miss | None:
        miss = self.open.pop(event.rid, None)
        if miss is not None:
            miss.ended, miss.ended_at, miss.out = event.reason, self._clock(), event.output_tokens
            miss.first_token_s = event.first_token_s
            kept = replace(miss, granules=[], output=[])  # of a long prompt, the hashes are most of it
            self.ended.append(kept)
            self.changed[miss.number] = kept
        return miss
