"""`ChunkCache`: a prefix cache that caches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import I32, Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.prefix_cache import InsertResult, MatchResult, PrefixCache
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import RootNode, TreeNode


class ChunkCache(PrefixCache):
    """Finds nothing and keeps nothing: every slot stays the request's own, which frees it when it is done.

    Locks are counted on one root, so that the invariants of locks are checked as with RadixCache.
    """

    shares = False
    policy = "none"

    def __init__(self, allocator: TokenToKVPoolAllocator, state_slots: StateSlotAllocator | None = None) -> None:
        super().__init__(allocator, state_slots, set())
        self._root = RootNode("")
        self._no_slots = np.empty(0, dtype=I32)
        self._no_slots.flags.writeable = False

    def match_prefix(self, key: Int32Array, namespace: str = "") -> MatchResult:
        self.stats.queries += 1
        self.stats.miss_tokens += len(key)
        return MatchResult(self._no_slots, self._root)

    def match_len(self, key: Int32Array, namespace: str = "") -> int:
        return 0

    def match_node(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        return None

    def node_at(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        return None

    def set_retention(self, node: TreeNode, retention: int) -> None: ...

    def insert(self, key: Int32Array, slots: Int32Array, namespace: str = "", priority: int = 0) -> InsertResult:
        if len(key) != len(slots):
            raise ValueError(f"{len(key)} tokens but {len(slots)} slots")
        return InsertResult(existing_len=0, node=self._root, retained_len=0)

    def inc_lock_ref(self, node: TreeNode) -> None:
        node.lock_ref += 1

    def dec_lock_ref(self, node: TreeNode) -> None:
        if node.lock_ref < 1:
            raise InvariantError(f"{node!r} is unlocked more often than locked")
        node.lock_ref -= 1

    def evict(self, num_slots: int) -> int:
        return 0

    def reset(self) -> bool:
        return True

    @property
    def evictable_size(self) -> int:
        return 0

    @property
    def protected_size(self) -> int:
        return 0

    def path_slots(self, node: TreeNode) -> Int32Array:
        return self._no_slots

    def iter_nodes(self) -> Iterator[TreeNode]:
        return iter(())

    def roots(self) -> Iterable[RootNode]:
        return ()

    def is_root(self, node: RootNode) -> bool:
        return node is self._root

    def check_invariants(self, live_nodes: Iterable[TreeNode] | None = None) -> None:
        """lock_ref(root) == number of live nodes, and each of them is the root."""
        if live_nodes is None:
            return
        live = list(live_nodes)
        if any(node is not self._root for node in live) or self._root.lock_ref != len(live):
            raise InvariantError(f"{len(live)} live nodes, but the root has lock_ref {self._root.lock_ref}")
