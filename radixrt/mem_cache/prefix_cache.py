"""What the scheduler asks of a prefix cache, be it on (RadixCache) or off (ChunkCache)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from radixrt.mem_cache.allocator import Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.tree_node import TreeNode


class MatchResult(NamedTuple):
    """The longest cached prefix of a key.

    Attributes:
        slots: int32[matched], read-only, the cache's own slots. They hold until the next evict unless `node` is locked.
        node: where the prefix ends, to be locked by whoever uses the slots; a root if nothing matched.
    """

    slots: Int32Array
    node: TreeNode


class InsertResult(NamedTuple):
    """Who owns which part of an inserted key; see PrefixCache.insert.

    Attributes:
        existing_len: leading tokens that were cached before, whole pages. There the cache keeps its own slots.
        node: where the cached part of the key ends, to be locked by a request that goes on; a root if that is empty.
        retained_len: leading tokens that the cache owns now, at least existing_len: whole pages, or 0 if it is off.
    """

    existing_len: int
    node: TreeNode
    retained_len: int


@dataclass(slots=True)
class CacheStats:
    """Counters since the cache was made; they never go down, a reset included.

    Attributes:
        queries: calls of match_prefix.
        hit_tokens: tokens that match_prefix found.
        miss_tokens: tokens that it was asked for and did not find.
        inserted_tokens: tokens that insert added.
        evicted_tokens: tokens that evict or reset dropped.
    """

    queries: int = 0
    hit_tokens: int = 0
    miss_tokens: int = 0
    inserted_tokens: int = 0
    evicted_tokens: int = 0


class PrefixCache(ABC):
    """Keeps the KV slots of finished work for requests that start with the same tokens.

    Keys are int32 token ids (other integer types are converted). Sizes are in tokens, which is the same as in slots.
    Every method may be called with the cache off; nothing else asks whether it is on.

    A namespace (cache salt) is a tree of its own: equal keys of two namespaces share nothing, and neither sees the
    other's entries. They only compete for the same slots.

    Attributes:
        page_size: slots per page, the allocator's. Only whole pages are cached.
        stats: counters.
        shares: whether what one request computes can serve another; if not, nobody need wait for it.
    """

    shares: bool

    def __init__(self, allocator: TokenToKVPoolAllocator) -> None:
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.stats = CacheStats()

    @abstractmethod
    def match_prefix(self, key: Int32Array, namespace: str = "") -> MatchResult:
        """Finds the longest cached prefix of whole pages, marks it as used and counts hit and missed tokens.

        Call it once for each admission and match_len for everything tentative. Lock the node before anything evicts.
        """

    @abstractmethod
    def match_len(self, key: Int32Array, namespace: str = "") -> int:
        """Tokens that match_prefix would find; changes and counts nothing."""

    @abstractmethod
    def match_node(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        """The node in which match_prefix's result would end, None if that is empty; changes and counts nothing."""

    @abstractmethod
    def node_at(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        """The node that ends where the key's last whole page does, made by a split if need be; None if the key is not
        cached that far, or is shorter than a page. Counts nothing and marks nothing as used."""

    @abstractmethod
    def set_rank(self, node: TreeNode, rank: int) -> None:
        """Gives a node its rank in eviction; one that was evicted keeps its peace. A hit on a node that is ranked as
        done makes it normal."""

    @abstractmethod
    def insert(self, key: Int32Array, slots: Int32Array, namespace: str = "", priority: int = 0) -> InsertResult:
        """Offers the first len(key) tokens of a request, of which it has protected_len under its lock.

        Args:
            key: int32[n] tokens whose keys and values are written, or will be by a step already submitted.
            slots: int32[n], theirs: the request's row. Copied.
            priority: kept longer if higher, where the eviction policy looks at it.

        Returns:
            Who owns the request's slots from now on, by position:

                [0, protected_len)              the cache, as before
                [protected_len, existing_len)   the request, and these are duplicates: another request inserted the same
                                                tokens first. It must free them and, if it goes on, point its row at
                                                path_slots(node)[protected_len:existing_len] instead
                [existing_len, retained_len)    the cache, from now on; may be evicted unless locked
                [retained_len, n)               the request, as before: less than a page, or all if the cache is off

            So a request that is done frees [protected_len, existing_len) and [retained_len, n) and unlocks; one that
            goes on frees the first, locks `node`, unlocks its old one, and has protected_len = retained_len.

        Raises:
            ValueError: key and slots differ in length.
        """

    @abstractmethod
    def inc_lock_ref(self, node: TreeNode) -> None:
        """Keeps the path from the root to the node from being evicted, until as many dec_lock_ref.

        Raises:
            InvariantError: the node was evicted, so it was not locked in time after its match.
        """

    @abstractmethod
    def dec_lock_ref(self, node: TreeNode) -> None:
        """Gives one lock back.

        Raises:
            InvariantError: the node has no lock.
        """

    @abstractmethod
    def evict(self, num_slots: int) -> int:
        """Frees slots through the allocator: the least valuable unlocked leaves, whole, until at least num_slots are
        freed or nothing evictable is left.

        Returns:
            Slots freed: may be less than num_slots, or more.
        """

    @abstractmethod
    def reset(self) -> bool:
        """Drops everything and frees its slots, for a flush.

        Returns:
            False, with nothing changed, if any token is locked; to drop what is not locked, evict(evictable_size).
        """

    @property
    @abstractmethod
    def evictable_size(self) -> int:
        """Cached tokens that no lock keeps."""

    @property
    @abstractmethod
    def protected_size(self) -> int:
        """Cached tokens on the path of some lock."""

    @property
    def total_size(self) -> int:
        """Slots that the cache owns."""
        return self.evictable_size + self.protected_size

    @abstractmethod
    def path_slots(self, node: TreeNode) -> Int32Array:
        """Slots from the root to the end of the node: int32[tokens on that path], read-only."""

    @abstractmethod
    def iter_nodes(self) -> Iterator[TreeNode]:
        """Every node that holds tokens (no roots), parents first. The cache must not change meanwhile."""

    @abstractmethod
    def check_invariants(self, live_nodes: Iterable[TreeNode] | None = None) -> None:
        """Raises InvariantError unless the cache's state is consistent; walks all of it.

        Args:
            live_nodes: the locked node of every live request, one entry for each lock; None to leave locks unchecked.
        """
