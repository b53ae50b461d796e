"""Comparison of a radix cache with a replica that was built from its events."""

from __future__ import annotations

from typing import cast

import msgspec

from radixrt.mem_cache.cache_journal import CacheJournal
from radixrt.mem_cache.granules import prompt_hashes
from radixrt.mem_cache.radix_cache import _EVICTION_KEYS, RadixCache
from radixrt.mem_cache.replica import CacheReplica
from radixrt.mem_cache.tree_node import RootNode, TreeNode
from radixrt.messages.cache_events import CacheEvents, SnapshotHeader


class Reader:
    """The journal of a cache, and a replica that gets its events in their wire form."""

    def __init__(self, cache: RadixCache) -> None:
        self.cache = cache
        self.journal = CacheJournal()
        self.replica = CacheReplica()
        self.seq = 0
        self.header: SnapshotHeader | None = None

    def snapshot(self) -> None:
        """Begin a snapshot, whatever the replica knows."""
        self.journal.begin(self.cache)
        self.cache.watch(self.journal)
        self.header = SnapshotHeader(self.cache.allocator.num_slots, self.cache.page_size, 64, self.cache.policy)

    def take(self, max_tokens: int, *, lost: bool = False) -> bool:
        """Go on with the snapshot and apply the events so far, or lose them; returns what `apply` does."""
        self.journal.visit(self.cache, max_tokens, max_tokens)
        events, self.journal.events = self.journal.events, []
        header, self.header = self.header, None
        self.seq += 1
        if lost:
            return True
        batch = CacheEvents(self.seq, self.cache.clock, self.journal.is_complete, events, header)
        return self.replica.apply(msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=CacheEvents))


def check_equal(replica: CacheReplica, cache: RadixCache) -> None:
    """The replica has exactly the nodes of the tree, below the same parents, with the same values and hashes."""
    assert replica.is_complete
    (journal,) = cache.observers
    assert isinstance(journal, CacheJournal)
    roots = [root for root in cache.roots() if root.children]
    nodes = {journal.number(node): node for node in cache.iter_nodes()}
    copies = {number: copy for number, copy in replica.nodes.items() if copy.parent is not None}
    assert copies.keys() == nodes.keys()
    assert all(replica.nodes[journal.number(root)].locks == root.lock_ref for root in roots)
    assert replica.num_tokens == cache.total_size
    assert replica.clock == cache.clock
    for number, node in nodes.items():
        copy = copies[number]
        values = (copy.tokens, copy.created, copy.last_access, copy.hits, copy.priority, copy.retention, copy.locks)
        assert values == (
            node.num_tokens, node.created, node.last_access, node.hits, node.priority, node.retention, node.lock_ref
        )  # fmt: skip
        assert copy.has_state == (node.state is not None)
        assert copy.parent is replica.nodes[journal.number(node.parent)]
        assert copy.num_children == len(node.children)
        root, *above = node.path()
        assert isinstance(root, RootNode)
        tokens = b"".join(each.key_bytes for each in above)
        assert copy.end == len(tokens) // 4
        assert b"".join(copy.granules()) == prompt_hashes(tokens, root.namespace)
    leaves = [node for node in copies.values() if not node.num_children and not node.locks]
    order = sorted(leaves, key=lambda node: (node.has_state, _EVICTION_KEYS[cache.policy](cast(TreeNode, node))))
    assert [node.number for node in order] == [journal.number(leaf) for leaf in getattr(cache, "_leaves", ())]
