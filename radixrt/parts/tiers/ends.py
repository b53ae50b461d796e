"""`PageEnds`: where the prefixes end that tiers keep, and what a tier stores of such a prefix."""

from __future__ import annotations

from typing import NamedTuple

from radixrt.mem_cache.allocator import Int32Array
from radixrt.mem_cache.copies import Arrival
from radixrt.mem_cache.tree_node import TreeNode, path_of
from radixrt.parts.tiers.tier import Tier
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.prefix_index import common_len


class Leaving(NamedTuple):
    """Prefix of the pool that a tier may keep.

    Attributes:
        key: int32[n], tokens of the prefix in trees of tiers, whole pages; see `PageEnds.key`.
        slots: int32[n], slot of the pool that each place is copied from.
    """

    key: Int32Array
    slots: Int32Array
    namespace: str


class Coming(NamedTuple):
    """Prefix that is being copied into the pool.

    Attributes:
        slots: int32[n], slot that each place is copied to, for the places from `arrival.start` on.
    """

    arrival: Arrival
    slots: Int32Array


class PageEnds:
    """Prefixes of keys and values alone. A prefix can end after any whole page of the tiers, and a leaf of the pool is
    copied as a whole.

    Args:
        page: tokens of a page of the tiers.
    """

    def __init__(self, kv: KVManager, page: int) -> None:
        self._copies = kv.copies
        self._cache = kv.cache
        self._page = page

    # --- in tiers ---

    def key(self, tokens: Int32Array) -> Int32Array:
        """Return the tokens under which tiers keep a prefix that `found` has measured."""
        return tokens

    def found(self, tier: Tier, tokens: Int32Array, root: str) -> int:
        """Return the length of the longest prefix of tokens that a tier keeps; changes nothing."""
        return tier.match_len(tokens, root)

    def gained(self, prefix: Int32Array, tokens: Int32Array) -> int:
        """Return the number of leading tokens of a request that need not be computed once a prefix is in the pool."""
        return common_len(prefix, tokens)

    # --- out of the pool ---

    @property
    def has_evicted(self) -> bool:
        """True once the pool has evicted anything."""
        return self._cache.evicted_tokens > 0

    def coldest(self, ahead: int) -> list[TreeNode]:
        """Return the ends of the prefixes that are evicted next, the first one first.

        Args:
            ahead: tokens to look at.
        """
        leaves = []
        for leaf in self._cache.coldest():
            leaves.append(leaf)
            ahead -= leaf.num_tokens
            if ahead <= 0:
                break
        return leaves

    def leaving(self, end: TreeNode) -> Leaving:
        """Return what a tier keeps of the prefix that ends in a node."""
        tokens, namespace = path_of(end)
        key = tokens[: len(tokens) - len(tokens) % self._page]
        return Leaving(key, self._cache.path_slots(end)[: len(key)], namespace)

    def hold(self, end: TreeNode) -> None:
        """Protect a prefix of the pool from eviction until the matching `let_go`."""
        self._copies.hold(end)

    def let_go(self, end: TreeNode) -> None:
        """Release a hold."""
        self._copies.let_go(end)

    # --- into the pool ---

    def begin(self, tokens: Int32Array, namespace: str) -> Coming | None:
        """Reserve slots for a prefix, until the matching `end`; None, with nothing held, if slots are missing."""
        arrival = self._copies.begin(tokens, namespace)
        return None if arrival is None else Coming(arrival, arrival.slots)

    def end(self, coming: Coming, *, copied: bool) -> None:
        """Put a copied prefix into the tree, or free its slots, into which no copy may happen any more."""
        self._copies.end(coming.arrival, copied=copied)
