"""`CacheReplica`: copy of a scheduler's radix tree, built from its `CacheEvents`.

Every reader of a tree keeps this copy: the pages of `/ui`, `radixrt tree`, and the router, whose index of prefixes
follows the hooks of one replica for each scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(eq=False, slots=True)
class ReplicaNode:
    """Node of a replica; see `NodeInserted` for the fields that are not listed here.

    Nodes refer to their parents only. So they make no reference cycles, and a router can hold millions of them without
    work for the garbage collector.

    Attributes:
        number: number of the node in the stream.
        parent: None for a root.
        tokens: length of the node's run; 0 for a root.
        end: number of tokens from the root to the node's end.
        hashes: chain hashes of the granules that end in the node; the namespace's seed for a root.
    """

    number: int
    parent: ReplicaNode | None
    tokens: int
    end: int
    hashes: bytes
    created: int = 0
    last_access: int = 0
    hits: int = 0
    priority: int = 0
    retention: int = RETAIN_NORMAL
    locks: int = 0
    has_state: bool = False
    num_children: int = 0

    def path(self) -> Iterator[ReplicaNode]:
        """Yield the node and its ancestors, the root last."""
        node: ReplicaNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def granules(self) -> list[bytes]:
        """Return the hashes of all granules from the root to the node's end."""
        *nodes, _ = self.path()
        return split_hashes(b"".join(node.hashes for node in reversed(nodes)))

    def last_hash(self) -> bytes:
        """Return the hash of the last whole granule before the node's end; the seed if there is none."""
        return next(node.hashes for node in self.path() if node.hashes)[-HASH_BYTES:]


class CacheReplica:
    """See the module's docstring.

    A subclass can follow the nodes through the hooks `inserted`, `dropped` and `state_changed`. A split calls no hook:
    the granules of the path stay, and the node keeps its end and its state.

    Attributes:
        header: properties of the cache; None before the first snapshot, and after a gap.
        is_complete: the replica equals the tree as of the last batch.
        nodes: all nodes by number, roots too.
        clock: tick of the cache's clock.
        num_tokens: tokens of all nodes.
    """

    def __init__(self) -> None:
        self.header: SnapshotHeader | None = None
        self.is_complete = False
        self.nodes: dict[int, ReplicaNode] = {}
        self.clock = 0
        self.num_tokens = 0
        self._seq = -1

    def inserted(self, node: ReplicaNode) -> None:
        """Hook: a node that is no root was added."""

    def dropped(self, node: ReplicaNode) -> None:
        """Hook: a node that is no root will be removed. Its path is still complete."""

    def state_changed(self, node: ReplicaNode) -> None:
        """Hook: `has_state` of a node has changed since `inserted`."""

    def apply(self, batch: CacheEvents) -> bool:
        """Apply a batch.

        Returns:
            False, with the whole tree forgotten, if the batch before this one is missing: ask for a snapshot.
        """
        has_gap = batch.header is None and (self.header is None or batch.seq != self._seq + 1)
        if has_gap or batch.header is not None:
            self.clear()
            self.header, self.is_complete = batch.header, False
        if has_gap:
            return False
        for event in batch.events:
            self.take(event)
        self._seq, self.clock, self.is_complete = batch.seq, batch.clock, batch.complete
        return True

    def take(self, event: CacheEvent) -> None:
        """Apply one event; events of requests change nothing."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def clear(self) -> None:
        """Remove all nodes and roots."""
        for node in self.nodes.values():
            if node.parent is not None:
                self.dropped(node)
        self.nodes.clear()
        self.num_tokens = 0

    # --- events ---

    def _open_root(self, event: RootOpened) -> None:
        self.nodes[event.node] = ReplicaNode(event.node, None, 0, 0, event.seed, locks=event.locks)

    def _insert(self, event: NodeInserted) -> None:
        parent = self.nodes[event.parent]
        node = self.nodes[event.node] = ReplicaNode(
            event.node, parent, event.tokens, parent.end + event.tokens, event.hashes, event.created, event.last_access,
            event.hits, event.priority, event.retention, event.locks, event.has_state,
        )  # fmt: skip
        parent.num_children += 1
        self.num_tokens += event.tokens
        self.inserted(node)

    def _split(self, event: NodeSplit) -> None:
        node = self.nodes[event.node]
        above = node.parent
        assert above is not None  # a root is never split
        # A granule stays where it ends, so the new end decides how many of the node's hashes move to the prefix.
        end = above.end + event.tokens
        granule = 1 if self.header is None else self.header.granule
        moved = HASH_BYTES * (end // granule - above.end // granule)
        prefix = self.nodes[event.prefix] = ReplicaNode(
            event.prefix, above, event.tokens, end, node.hashes[:moved], node.created, node.last_access, node.hits,
            node.priority, locks=node.locks, num_children=1,
        )  # fmt: skip
        node.parent, node.tokens, node.hashes = prefix, node.tokens - event.tokens, node.hashes[moved:]

    def _evict(self, event: NodeEvicted) -> None:
        node = self.nodes[event.node]
        if node.parent is not None:
            self.dropped(node)
            node.parent.num_children -= 1
        self.num_tokens -= node.tokens
        del self.nodes[event.node]

    def _use(self, event: PathUsed) -> None:
        for node in self.nodes[event.node].path():
            if node.parent is None:
                break  # roots have no time of use
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
        node = self.nodes[event.node]
        if node.has_state != event.has_state:
            node.has_state = event.has_state
            self.state_changed(node)

    def _drop_all(self, event: CacheCleared) -> None:
        self.clear()


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
