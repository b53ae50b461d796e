"""Order in which admission considers waiting requests.

Every policy sorts by priority first. Requests that have waited longer than `PATIENCE_S` come before other requests of
their priority, in order of arrival, so that a stream of well-cached requests cannot starve a request without a cached
prefix.

lpm and dfs-weight are the cache-aware orders of SGLang (arXiv 2312.07104, section 3): longest matching prefix first,
and depth-first over the radix tree, heaviest subtree first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.req import Req

PATIENCE_S = 10.0

WINDOW = 128
"""Cache-aware policies consider the first WINDOW requests in order of arrival: matching all requests of a long queue at
every step would cost more time than the better order saves. Policies also consider the next WINDOW requests whose kin
has begun (`Req.kin`): a request of the first window may be deferred until their common prefix is cached."""

MATCH_UNIT = 32
"""Lengths of cached prefixes are compared in multiples of this number of tokens. Texts of one template share a few more
or fewer tokens by chance, which saves nothing and should not change the order of arrival."""

_Policy = Callable[[list[Req], KVManager], list[Req]]


class Order(Protocol):
    """Waiting requests in the order in which admission tries them; a deque has these methods."""

    def __len__(self) -> int:
        """Return the number of requests that are left."""
        ...

    def popleft(self) -> Req:
        """Remove and return the next request."""
        ...

    def appendleft(self, req: Req) -> None:
        """Put a request before all others that it competes with."""
        ...


class Turns(Protocol):
    """Turns of several clients in one step: the order of waiting requests, and prompt tokens."""

    def tokens_left(self, req: Req) -> int | None:
        """Return the number of prompt tokens that a request may have in the step; None for any number."""
        ...

    def spend(self, req: Req, tokens: int) -> None:
        """Count prompt tokens of a request in the step."""
        ...

    def order(self, waiting: list[Req], arrange: Callable[[list[Req]], list[Req]]) -> Order:
        """Return the waiting requests that may begin in the step.

        Args:
            arrange: brings requests into the order of the schedule policy.
        """
        ...

    def play(self, waiting: list[Req], arrange: Callable[[list[Req]], list[Req]]) -> Iterable[Req]:
        """Return all waiting requests in the order in which they are expected to begin."""
        ...


def arrange(policy: str, waiting: list[Req], kv: KVManager, now: float) -> list[Req]:
    """Return the waiting requests in the order in which admission should try them. The policy fcfs returns all waiting
    requests; other policies return the requests described at WINDOW."""
    by_arrival = sorted(waiting, key=lambda r: (-r.priority, r.seq))
    if policy == "fcfs" or len(by_arrival) < 2:
        return by_arrival
    window = by_arrival[:WINDOW]
    window += islice((r for r in by_arrival[WINDOW:] if r.kin is not None and r.kin.has_begun), WINDOW)
    patient = [r for r in window if not is_overdue(r, now)]
    overdue = [r for r in window if is_overdue(r, now)]
    arranged = _ORDERS[policy](patient, kv)
    arranged.sort(key=lambda r: -r.priority)  # stable: the policy's order within one priority
    return sorted(overdue + arranged, key=lambda r: -r.priority) if overdue else arranged


def is_overdue(req: Req, now: float) -> bool:
    return now - req.stats.arrived_at > PATIENCE_S


def _longest_prefix_match(reqs: list[Req], kv: KVManager) -> list[Req]:
    lens = {r.rid: kv.match_len(r) // MATCH_UNIT for r in reqs}
    return sorted(reqs, key=lambda r: (-lens[r.rid], r.seq))


def _depth_first_by_weight(reqs: list[Req], kv: KVManager) -> list[Req]:
    """Sort requests by their paths of (weight, node) pairs from the root. The order is a depth-first walk, heaviest
    child first, in which requests that end at a node come before requests that end below the node."""
    paths: dict[str, list[Any]] = {}
    weight: Counter[int] = Counter()
    for r in reqs:
        node, path = kv.cache.match_node(r.reusable_ids, r.namespace), []
        while node is not None:
            path.append(node)
            weight[id(node)] += 1
            node = node.parent
        paths[r.rid] = path[::-1]
    return sorted(reqs, key=lambda r: (tuple(x for n in paths[r.rid] for x in (-weight[id(n)], id(n))), r.seq))


_ORDERS: dict[str, _Policy] = {"lpm": _longest_prefix_match, "dfs-weight": _depth_first_by_weight}
