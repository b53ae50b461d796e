"""Interface of a prefix cache that is on (RadixCache) or off (ChunkCache)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, MutableSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from radixrt.mem_cache.allocator import Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.node_states import NodeStates
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import RootNode, TreeNode

if TYPE_CHECKING:
    from radixrt.mem_cache.cache_journal import CacheJournal


class MatchResult(NamedTuple):
    """The longest cached prefix of a key.

    Attributes:
        slots: int32[matched], read-only, the cache's own slots. Valid until the next evict unless `node` is locked.
        node: node in which the prefix ends, to be locked by the user of the slots; a root if nothing matched.
        state_node: deepest node on the path with a state of recurrent layers, to be pinned by the user of the state;
            None if there is none.
        state_len: number of tokens up to the end of that node; 0 without one.
    """

    slots: Int32Array
    node: TreeNode
    state_node: TreeNode | None = None
    state_len: int = 0


class InsertResult(NamedTuple):
    """Ownership of the parts of an inserted key; see PrefixCache.insert.

    Attributes:
        existing_len: number of leading tokens that were cached before, in whole pages, where the cache keeps its slots.
        node: node in which the cached part of the key ends, to be locked by a request that continues; a root if nothing
            of the key is cached.
        retained_len: number of leading tokens that the cache owns now, at least existing_len: whole pages, or 0 if the
            cache is off.
    """

    existing_len: int
    node: TreeNode
    retained_len: int


@dataclass(slots=True)
class CacheStats:
    """Counters since the cache was created; they never decrease, not even on a reset.

    Attributes:
        queries: calls of match_prefix.
        hit_tokens: tokens that match_prefix found; up to the state, for a model with recurrent layers.
        miss_tokens: tokens of the keys that match_prefix did not find.
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
    Every method may be called with the cache off; callers do not check whether it is on.

    A namespace (cache salt) is a tree of its own: equal keys of two namespaces share nothing, and requests of one
    namespace see no entries of another. All namespaces compete for the same slots.

    A model with recurrent layers also needs the state after a prefix, which nodes hold (`node_states`). Such a model
    saves the computation of a prefix only up to the deepest state, so match_len and the counters end there.

    Args:
        allocator: allocator of KV slots.
        state_slots: allocator of states; None if the model has no recurrent layers.
        leaves: evictable leaves, in an order that depends on whether a node has a state.

    Attributes:
        page_size: slots per page, the allocator's. Only whole pages are cached.
        stats: counters.
        node_states: the states at nodes; None if the model has no recurrent layers.
        shares: one request can reuse tokens that another request computes; if False, no request is deferred for that.
        journal: record of changes of the tree, set by `watch`; None while nobody watches.
        policy: eviction policy; "none" if the cache is off.
        clock: number of matches and inserts so far.
    """

    shares: bool
    policy: str

    def __init__(
        self, allocator: TokenToKVPoolAllocator, state_slots: StateSlotAllocator | None, leaves: MutableSet[TreeNode]
    ) -> None:
        if state_slots is not None and allocator.page_size != 1:
            raise ValueError(f"states of recurrent layers need page_size 1, got {allocator.page_size}")
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.stats = CacheStats()
        self.node_states = None if state_slots is None else NodeStates(state_slots, leaves)
        self.journal: CacheJournal | None = None
        self.clock = 0

    def watch(self, journal: CacheJournal | None) -> None:
        """Record changes of the tree in a journal from now on; None to record nothing."""
        self.journal = journal
        if self.node_states is not None:
            self.node_states.journal = journal

    @abstractmethod
    def match_prefix(self, key: Int32Array, namespace: str = "") -> MatchResult:
        """Find the longest cached prefix of whole pages, mark it as used and count hit and missed tokens.

        Call it once for each admission, and match_len for tentative look-ups. Lock the node before anything evicts.
        """

    @abstractmethod
    def match_len(self, key: Int32Array, namespace: str = "") -> int:
        """Number of tokens that match_prefix would find, up to the deepest state if the model has recurrent layers;
        changes and counts nothing."""

    @abstractmethod
    def match_node(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        """The node in which match_prefix's result would end, None if nothing matches; changes and counts nothing."""

    @abstractmethod
    def node_at(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        """The node that ends where the key's last whole page ends, created by a split if necessary; None if the key is
        not cached that far, or is shorter than a page. Counts nothing and marks nothing as used."""

    @abstractmethod
    def set_retention(self, node: TreeNode, retention: int) -> None:
        """Set a node's retention level, which has no effect if the node was evicted. A hit on a RETAIN_DONE node
        makes it RETAIN_NORMAL."""

    @abstractmethod
    def insert(self, key: Int32Array, slots: Int32Array, namespace: str = "", priority: int = 0) -> InsertResult:
        """Offer the first len(key) tokens of a request, of which protected_len are under its lock.

        Args:
            key: int32[n] tokens whose keys and values are written, or will be by a step already submitted.
            slots: int32[n], their slots in the request's row. Copied.
            priority: a higher one is kept longer, if the eviction policy uses priorities.

        Returns:
            The owner of the request's slots from now on, by position:

                [0, protected_len)              the cache, as before
                [protected_len, existing_len)   the request, and these are duplicates: another request inserted the same
                                                tokens first. It must free them and, if it continues, point its row at
                                                path_slots(node)[protected_len:existing_len] instead
                [existing_len, retained_len)    the cache, from now on; may be evicted unless locked
                [retained_len, n)               the request, as before: less than a page, or all if the cache is off

            So a request that is done frees [protected_len, existing_len) and [retained_len, n) and unlocks; one that
            continues frees the first range, locks `node`, unlocks its old one, and has protected_len = retained_len.

        Raises:
            ValueError: key and slots differ in length.
        """

    @abstractmethod
    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect the path from the root to the node from eviction until the matching dec_lock_ref.

        Raises:
            InvariantError: the node was evicted between its match and this call.
        """

    @abstractmethod
    def dec_lock_ref(self, node: TreeNode) -> None:
        """Release one lock.

        Raises:
            InvariantError: the node has no lock.
        """

    @abstractmethod
    def evict(self, num_slots: int) -> int:
        """Free slots through the allocator: whole unlocked leaves in eviction order, until at least num_slots are freed
        or nothing evictable is left.

        Returns:
            Number of slots freed, which may be less or more than num_slots.
        """

    @abstractmethod
    def reset(self) -> bool:
        """Drop everything and free its slots, for a flush.

        Returns:
            False, with nothing changed, if any token is locked; evict(evictable_size) drops everything that is not.
        """

    @property
    @abstractmethod
    def evictable_size(self) -> int:
        """Number of cached tokens that are not locked."""

    @property
    @abstractmethod
    def protected_size(self) -> int:
        """Number of cached tokens on the path of some lock."""

    @property
    def total_size(self) -> int:
        """Number of slots that the cache owns."""
        return self.evictable_size + self.protected_size

    @abstractmethod
    def path_slots(self, node: TreeNode) -> Int32Array:
        """Slots from the root to the end of the node: int32[tokens on that path], read-only."""

    @abstractmethod
    def iter_nodes(self) -> Iterator[TreeNode]:
        """Every node that holds tokens (no roots), parents first. The cache must not change meanwhile."""

    @abstractmethod
    def roots(self) -> Iterable[RootNode]:
        """The roots of all namespaces."""

    @abstractmethod
    def is_root(self, node: RootNode) -> bool:
        """Return True if the node is the root of its namespace's tree, rather than one that was dropped."""

    @abstractmethod
    def check_invariants(self, live_nodes: Iterable[TreeNode] | None = None) -> None:
        """Raise InvariantError unless the cache's state is consistent; visits all of it.

        Args:
            live_nodes: the locked node of every live request, one entry for each lock; None not to check locks.
        """
