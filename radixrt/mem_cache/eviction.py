"""In which order the leaves of the radix tree are evicted."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from sortedcontainers import SortedSet

from radixrt.mem_cache.tree_node import TreeNode

# The leaf with the smallest value goes first. All four are total orders of the leaves: nodes with the same last_access
# (or created) lie on one path, and a path has one leaf. attrgetter, because it runs in C. What programs say counts
# before what was used when, and after what an operator or a client pays for.
_VALUE_OF: dict[str, Callable[[TreeNode], Any]] = {
    "lru": attrgetter("rank", "last_access"),
    "lfu": attrgetter("rank", "hits", "last_access"),
    "fifo": attrgetter("rank", "created"),
    "priority": attrgetter("priority", "rank", "last_access"),
}

EVICTION_POLICIES = tuple(_VALUE_OF)


def leaf_order(policy: str) -> SortedSet:
    """An empty set of leaves that pop(0) takes the least valuable from; every operation is logarithmic.

    A node must be out of the set while any field that its policy looks at changes.

    Raises:
        ValueError: no such policy.
    """
    if policy not in _VALUE_OF:
        raise ValueError(f"unknown eviction policy {policy!r}, choose one of {', '.join(EVICTION_POLICIES)}")
    return SortedSet(key=_VALUE_OF[policy])
