"""`MissLog`: why the prompts of requests were not in the cache, from the events of the cache.

A request computes the tokens of its prompt that the cache does not have, and publishes them into the tree as granules
with chain hashes. A granule whose hash was in the tree before was evicted, or dropped with the whole cache. Any other
granule is new since the watching began.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from radixrt.mem_cache.granules import GRANULE_TOKENS, split_hashes
from radixrt.mem_cache.replica import CacheReplica, ReplicaNode
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
    """The prompt of a request, and where its tokens came from.

    Attributes:
        number: position in the order of admission.
        at: time of the admission, in seconds since 1970.
        prompt, cached, matched, reusable: numbers of tokens; see `RequestAdmitted`.
        beside: number of cached continuations from which the prompt parts where its cached prefix ends.
        evicted, reset: tokens that had been in the cache, and were evicted or dropped with the whole cache.
        evicted_s: seconds since the latest of these tokens were evicted or dropped.
        together: tokens that another request computed at the same time.
        new: tokens that the cache never had since the watching began.
        granules, output: hashes of the granules of the prompt, and of the granules after the prompt, once published.
        ended: reason of the request's finish; None while the request is open.
        out, first_token_s: tokens of the output, and seconds to the first token, once the request has ended.
    """

    rid: str
    number: int
    at: float
    prompt: int
    cached: int
    matched: int
    reusable: int
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
    fetched: dict[str, int] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """Number of prompt tokens that the cache had at any time."""
        return self.cached + self.evicted + self.reset + self.together

    def body(self) -> list[Any]:
        """The members that the page shows, as an array."""
        return [
            self.rid, round(self.at, 2), self.prompt, self.cached, self.matched, self.reusable, self.beside,
            self.evicted, self.reset, round(self.evicted_s, 1), self.together, self.new, self.ended, self.number,
            self.program, self.branch, self.out, round(self.ended_at, 2),
            None if self.first_token_s is None else round(self.first_token_s, 4), self.fetched,
        ]  # fmt: skip


class MissLog(CacheReplica):
    """Copy of the tree that follows the prompts of requests; see the module's docstring.

    Args:
        on_end: called with each request that has ended, whose hashes are complete then.
        now: returns seconds since 1970.

    Attributes:
        ended: requests that have ended, the oldest first, without hashes.
        open: requests that have not ended, by id.
        changed: requests that have changed since the caller last cleared this dict, by number.
    """

    def __init__(
        self, on_end: Callable[[Miss], None] = lambda miss: None, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._on_end = on_end
        self._now = now
        self._ghosts: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._admitted = 0
        self.open: OrderedDict[str, Miss] = OrderedDict()
        self.ended: deque[Miss] = deque(maxlen=MAX_ENDED)
        self.changed: dict[int, Miss] = {}

    def take(self, event: CacheEvent) -> None:
        if isinstance(event, NodeEvicted):
            self._remember([self.nodes[event.node]], EVICTED)
        elif isinstance(event, CacheCleared):
            self._remember(self.nodes.values(), RESET)
        super().take(event)
        if isinstance(event, RequestAdmitted):
            self._admit(event)
        elif isinstance(event, RequestPublished):
            self._publish(event)
        elif isinstance(event, RequestEnded):
            self._end(event)

    def _remember(self, nodes: Iterable[ReplicaNode], cause: str) -> None:
        """Keep the granules of nodes that leave the tree."""
        now = self._now()
        for node in nodes:
            if node.parent is not None:
                self._ghosts.update(dict.fromkeys(split_hashes(node.hashes), (now, cause)))
        while len(self._ghosts) > MAX_GHOSTS:
            self._ghosts.popitem(last=False)

    def _admit(self, event: RequestAdmitted) -> None:
        node = self.nodes.get(event.node)
        self._admitted += 1
        miss = Miss(
            event.rid,
            self._admitted,
            self._now(),
            event.prompt_tokens,
            event.cached_tokens,
            event.matched_tokens,
            event.reusable_tokens,
            0 if node is None else node.num_children,
            program=event.program,
            branch=event.branch,
            fetched=event.fetched_tokens,
        )
        if node is not None:
            miss.granules = node.granules()[: event.prompt_tokens // GRANULE_TOKENS]
        self.open[event.rid] = self.changed[miss.number] = miss
        if len(self.open) > MAX_OPEN:
            self.open.popitem(last=False)

    def _publish(self, event: RequestPublished) -> None:
        miss, node = self.open.get(event.rid), self.nodes.get(event.node)
        if miss is None or node is None:
            return
        self.changed[miss.number] = miss
        known = node.granules()
        prompt = miss.prompt // GRANULE_TOKENS
        if len(known) >= len(miss.granules):
            miss.granules, miss.output = known[:prompt], known[prompt:]
        # Only tokens of the prompt count, and the ghosts tell why the cache did not have them.
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
        """Return why the tokens [start, end) of a prompt with these chain hashes are not in the cache."""
        return self._causes(split_hashes(hashes), start, end)

    def _causes(self, known: list[bytes], start: int, end: int) -> Causes:
        sums, evicted_s, cause, now = {EVICTED: 0, RESET: 0, "": 0}, 0.0, "", self._now()
        at = start
        while at < end:
            index = at // GRANULE_TOKENS
            until = min((index + 1) * GRANULE_TOKENS, end)
            if index < len(known):
                evicted_at, cause = self._ghosts.get(known[index], (0.0, ""))
                if cause:
                    evicted_s = now - evicted_at
            sums[cause] += until - at  # tokens after the last whole granule share the cause of the granule before
            at = until
        return Causes(sums[EVICTED], sums[RESET], evicted_s, sums[""])

    def _end(self, event: RequestEnded) -> None:
        miss = self.open.pop(event.rid, None)
        if miss is None:
            return
        miss.ended, miss.ended_at, miss.out = event.reason, self._now(), event.output_tokens
        miss.first_token_s = event.first_token_s
        kept = replace(miss, granules=[], output=[])  # the hashes of a long prompt take most of the memory
        self.ended.append(kept)
        self.changed[miss.number] = kept
        self._on_end(miss)
