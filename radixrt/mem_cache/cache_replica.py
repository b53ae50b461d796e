"""`CacheReplica`: copy of a scheduler's radix tree, built from its `CacheEvents`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from radixrt.mem_cache.granules import HASH_BYTES, split_hashes
from radixrt.mem_cache.tree_node import RETAIN_DONE, RETAIN_NORMAL
from radixrt.messages.cache_events import (
    CacheCleared,
    CacheEvent,
    CacheEvents,
    NodeEvicted,
    NodeInserted,
    NodeSplit,
    PathLocked,
    PathUsed,
    RetentionSet,
    RootOpened,
    SnapshotHeader,
    StateSet,
)


class ReplicaNode:
    """Node of a replica; see `NodeInserted` for its fields. A root has no tokens, and its namespace's seed.

    Attributes:
        children: by number.
        parent: None for a root, and for a node that was evicted.
        hashes: of the granules that end in the node.
    """

    __slots__ = (
        "children",
        "created",
        "has_state",
        "hashes",
        "hits",
        "last_access",
        "locks",
        "number",
        "parent",
        "priority",
        "retention",
        "seed",
        "tokens",
    )

    def __init__(self, number: int, parent: ReplicaNode | None, seed: bytes) -> None:
        self.number = number
        self.parent = parent
        self.seed = seed
        self.children: dict[int, ReplicaNode] = {}
        self.tokens = self.created = self.last_access = self.hits = self.priority = self.locks = 0
        self.retention = RETAIN_NORMAL
        self.hashes = b""
        self.has_state = False

    @property
    def end(self) -> int:
        """Number of tokens from the root to the node's end."""
        return sum(node.tokens for node in self.path())

    def path(self) -> Iterator[ReplicaNode]:
        """The node and those above it, the root last."""
        node: ReplicaNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def granules(self) -> list[bytes]:
        """Hashes of all granules from the root to the node's end."""
        return split_hashes(b"".join(reversed([node.hashes for node in self.path()])))


class CacheReplica:
    """See the module's docstring.

    Attributes:
        header: properties of the cache; None before the first snapshot.
        is_complete: the replica equals the tree as of the last batch.
        nodes: all nodes by number, roots too.
        roots: roots by number.
        clock: tick of the cache's clock.
        num_tokens: tokens of all nodes.
    """

    def __init__(self) -> None:
        self.header: SnapshotHeader | None = None
        self.is_complete = False
        self.nodes: dict[int, ReplicaNode] = {}
        self.roots: dict[int, ReplicaNode] = {}
        self.clock = 0
        self.num_tokens = 0
        self._seq = -1

    def apply(self, batch: CacheEvents) -> bool:
        """Apply a batch.

        Returns:
            False, with the batch ignored, if one before it is missing: ask for a snapshot.
        """
        if not self.begin(batch):
            return False
        for event in batch.events:
            self.take(event)
        self.end(batch)
        return True

    def begin(self, batch: CacheEvents) -> bool:
        """Begin to apply a batch whose events the caller gives to `take` one by one; see `apply` for the result."""
        if batch.header is not None:
            self.header = batch.header
            self._clear()
        elif self.header is None or batch.seq != self._seq + 1:
            self.header = None
            self.is_complete = False
            return False
        self._seq = batch.seq
        return True

    def take(self, event: CacheEvent) -> None:
        """Apply one event; events of requests change nothing."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def end(self, batch: CacheEvents) -> None:
        """Note that all events of a batch are applied."""
        self.clock = batch.clock
        self.is_complete = batch.complete

    def eviction_key(self, node: ReplicaNode) -> tuple[int, ...]:
        """Sort key of leaves without locks: the one with the smallest is evicted first."""
        policy = "lru" if self.header is None else self.header.policy
        return (node.has_state, *_EVICTION_KEYS[policy](node))

    # --- events ---

    def _clear(self) -> None:
        self.nodes.clear()
        self.roots.clear()
        self.num_tokens = 0

    def _open_root(self, event: RootOpened) -> None:
        root = self.nodes[event.node] = self.roots[event.node] = ReplicaNode(event.node, None, event.seed)
        root.locks = event.locks

    def _insert(self, event: NodeInserted) -> None:
        parent = self.nodes[event.parent]
        node = self.nodes[event.node] = parent.children[event.node] = ReplicaNode(event.node, parent, parent.seed)
        node.tokens, node.hashes, node.has_state = event.tokens, event.hashes, event.has_state
        node.created, node.last_access, node.hits = event.created, event.last_access, event.hits
        node.priority, node.retention, node.locks = event.priority, event.retention, event.locks
        self.num_tokens += event.tokens

    def _split(self, event: NodeSplit) -> None:
        node = self.nodes[event.node]
        above = node.parent
        assert above is not None  # a root is never split
        prefix = self.nodes[event.prefix] = above.children[event.prefix] = ReplicaNode(event.prefix, above, above.seed)
        granule = 1 if self.header is None else self.header.granule
        start = above.end
        count = (start + event.tokens) // granule - start // granule
        prefix.tokens, prefix.hashes = event.tokens, node.hashes[: count * HASH_BYTES]
        prefix.created, prefix.last_access, prefix.hits = node.created, node.last_access, node.hits
        prefix.priority, prefix.locks = node.priority, node.locks
        node.tokens -= event.tokens
        node.hashes = node.hashes[count * HASH_BYTES :]
        del above.children[node.number]
        prefix.children[node.number] = node
        node.parent = prefix

    def _evict(self, event: NodeEvicted) -> None:
        node = self.nodes.pop(event.node)
        self.roots.pop(event.node, None)
        self.num_tokens -= node.tokens
        if node.parent is not None:
            del node.parent.children[node.number]
            node.parent = None

    def _use(self, event: PathUsed) -> None:
        for node in self.nodes[event.node].path():
            if node.parent is None:
                break  # a root is not used itself
            node.last_access = event.clock
            node.hits += event.hits
            if event.priority is not None:
                node.priority = max(node.priority, event.priority)
            if node.retention == RETAIN_DONE:
                node.retention = RETAIN_NORMAL

    def _lock(self, event: PathLocked) -> None:
        for node in self.nodes[event.node].path():
            node.locks += event.change

    def _retain(self, event: RetentionSet) -> None:
        self.nodes[event.node].retention = event.retention

    def _set_state(self, event: StateSet) -> None:
        self.nodes[event.node].has_state = event.has_state

    def _drop_all(self, event: CacheCleared) -> None:
        self._clear()


_HANDLERS: dict[type, Callable[[CacheReplica, Any], None]] = {
    RootOpened: CacheReplica._open_root,
    NodeInserted: CacheReplica._insert,
    NodeSplit: CacheReplica._split,
    NodeEvicted: CacheReplica._evict,
    PathUsed: CacheReplica._use,
    PathLocked: CacheReplica._lock,
    RetentionSet: CacheReplica._retain,
    StateSet: CacheReplica._set_state,
    CacheCleared: CacheReplica._drop_all,
}

_EVICTION_KEYS: dict[str, Callable[[ReplicaNode], tuple[int, ...]]] = {
    "lru": lambda node: (node.retention, node.last_access),
    "lfu": lambda node: (node.retention, node.hits, node.last_access),
    "fifo": lambda node: (node.retention, node.created),
    "priority": lambda node: (node.priority, node.retention, node.last_access),
    "none": lambda node: (),
}
"""As those of `radixrt.mem_cache.radix_cache`."""
