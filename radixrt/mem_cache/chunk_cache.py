"""`ChunkCache`: a prefix cache that caches nothing."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.mem_cache.allocator import Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.results import InsertResult, MatchResult
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import RootNode


class ChunkCache(RadixCache):
    """A tree that stays empty: every slot remains the request's own, and the request frees it when it ends.

    Requests of all namespaces lock the one root, so that the invariants of locks are checked as with RadixCache.
    """

    shares = False

    def __init__(self, allocator: TokenToKVPoolAllocator, state_slots: StateSlotAllocator | None = None) -> None:
        super().__init__(allocator, state_slots=state_slots)
        self.policy = "none"

    def match_prefix(self, key: Int32Array, namespace: str = "") -> MatchResult:
        return super().match_prefix(key)

    def insert(self, key: Int32Array, slots: Int32Array, namespace: str = "", priority: int = 0) -> InsertResult:
        if len(key) != len(slots):
            raise ValueError(f"{len(key)} tokens but {len(slots)} slots")
        return super().insert(key[:0], slots[:0])

    def roots(self) -> Iterable[RootNode]:
        """Nothing: a reader of cache events sees no namespace."""
        return ()
