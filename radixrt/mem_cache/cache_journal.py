"""`CacheJournal`: record of the changes of a radix tree, as `CacheEvents`, and of the tree itself as a snapshot.

A cache that nobody watches has no journal, and only tests whether there is one.

A snapshot is made in slices, between which the tree changes. A node is *announced* once its NodeInserted is recorded.
Changes of an announced node are recorded as events. Changes of other nodes are not recorded, because their NodeInserted
will show the result. A path is announced from the root down, so an event of a path is recorded for the announced part.
Every node that is not announced lies at or below a node that the snapshot has yet to visit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from radixrt.mem_cache.granules import GRANULE_TOKENS, HASH_BYTES, chain_hashes, seed_of
from radixrt.mem_cache.tree_node import RootNode, TreeNode
from radixrt.mem_cache.tree_observer import TreeObserver
from radixrt.messages.cache_events import (
    CacheCleared,
    CacheEvent,
    NodeEvicted,
    NodeInserted,
    NodeSplit,
    PathLocked,
    PathUsed,
    RetentionSet,
    RootOpened,
    StateSet,
)

if TYPE_CHECKING:
    from radixrt.mem_cache.radix_cache import RadixCache


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """Announced node.

    Attributes:
        number: number of the node in the stream.
        end: number of tokens from the root to the node's end.
        hashes: of the granules that end in it; of a root the seed.
    """

    number: int
    end: int
    hashes: bytes


class CacheJournal(TreeObserver):
    """See the module's docstring. The cache calls the methods that are named for an event, after the change. A subclass
    may read other trees than the KV pool's: `seed`, `run` and `has_state`.

    Attributes:
        events: recorded and not yet taken.
        records_requests: the scheduler appends events of requests to `events`.
        records_usage: uses, locks and retention levels of nodes are recorded, too.
    """

    def __init__(self) -> None:
        self.events: list[CacheEvent] = []
        self.records_requests = False
        self.records_usage = True
        self._entries: dict[TreeNode, _Entry] = {}
        self._nodes: dict[int, TreeNode] = {}
        self._next_number = 1
        self._unvisited: list[TreeNode] = []

    # --- nodes ---

    def seed(self, root: RootNode) -> bytes:
        """Return the hash before the first granule below a root."""
        return seed_of(root.namespace)

    def run(self, node: TreeNode) -> bytes:
        """Return the tokens of a node, an int32 column."""
        return node.key_bytes

    def has_state(self, node: TreeNode) -> bool:
        """Return True if a state of recurrent layers is kept for the prefix that ends in a node."""
        return node.state is not None

    # --- snapshots ---

    @property
    def is_complete(self) -> bool:
        """The recorded events describe the whole tree."""
        return not self._unvisited

    def begin(self, cache: RadixCache) -> None:
        """Begin a snapshot; forget all events."""
        self.clear()
        self._unvisited = list(cache.roots())

    def clear(self) -> None:
        """Forget all events and nodes."""
        self.events = []
        self._entries = {}
        self._nodes = {}
        self._unvisited = []

    def visit(self, cache: RadixCache, max_tokens: int, max_nodes: int) -> None:
        """Announce the next nodes, up to `max_nodes` or `max_tokens` tokens. Each node counts as GRANULE_TOKENS tokens
        more, so that small nodes do not make a slice long."""
        last = self._next_number + max_nodes
        while self._unvisited and max_tokens > 0 and self._next_number < last:
            node = self._unvisited.pop()
            if node.parent is None and not (isinstance(node, RootNode) and cache.is_root(node)):
                continue  # evicted meanwhile
            self._announce(node)
            self._unvisited.extend(node.children.values())
            max_tokens -= node.num_tokens + GRANULE_TOKENS

    def node(self, number: int) -> TreeNode | None:
        """The announced node with this number."""
        return self._nodes.get(number)

    def number(self, node: TreeNode | None) -> int:
        """Number of the deepest announced node at or above a node; 0 if there is none."""
        entries = self._entries
        while node is not None and node not in entries:
            node = node.parent
        return 0 if node is None else entries[node].number

    # --- events of the cache ---

    def inserted(self, leaf: TreeNode) -> None:
        self._announce(leaf)

    def split(self, node: TreeNode, prefix: TreeNode) -> None:
        entry = self._entries.get(node)
        if entry is None:
            self._unvisited.append(prefix)  # the snapshot may come to it no other way
            return
        tokens = len(self.run(prefix)) // 4
        end = entry.end - len(self.run(node)) // 4
        count = end // GRANULE_TOKENS - (end - tokens) // GRANULE_TOKENS
        number = self._enter(prefix, end, entry.hashes[: count * HASH_BYTES])
        self._entries[node] = _Entry(entry.number, entry.end, entry.hashes[count * HASH_BYTES :])
        self.events.append(NodeSplit(entry.number, number, tokens))

    def evicted(self, node: TreeNode) -> None:
        """Record that a leaf, or the root of a namespace, was dropped."""
        entry = self._entries.pop(node, None)
        if entry is not None:
            del self._nodes[entry.number]
            self.events.append(NodeEvicted(entry.number))

    def used(self, node: TreeNode, clock: int, hits: int, priority: int | None = None) -> None:
        number = self.number(node) if self.records_usage else 0
        if number:
            self.events.append(PathUsed(number, clock, hits, priority))

    def locked(self, node: TreeNode, change: int) -> None:
        number = self.number(node) if self.records_usage else 0
        if number:
            self.events.append(PathLocked(number, change))

    def retained(self, node: TreeNode) -> None:
        entry = self._entries.get(node)
        if entry is not None and self.records_usage:
            self.events.append(RetentionSet(entry.number, node.retention))

    def state_changed(self, node: TreeNode) -> None:
        entry = self._entries.get(node)
        if entry is not None:
            self.events.append(StateSet(entry.number, self.has_state(node)))

    def cleared(self) -> None:
        """Record that nothing is left: no nodes, and no roots."""
        events = self.events
        self.clear()
        self.events = [*events, CacheCleared()]

    # --- announcing ---

    def _announce(self, node: TreeNode) -> None:
        """Record the nodes of a path that are not announced yet, from the top."""
        path = []
        above: TreeNode | None = node
        while above is not None and above not in self._entries:
            path.append(above)
            above = above.parent
        for each in reversed(path):
            if isinstance(each, RootNode):
                seed = self.seed(each)
                self.events.append(RootOpened(self._enter(each, 0, seed), seed, each.lock_ref))
            else:
                self._record(each)

    def _record(self, node: TreeNode) -> None:
        above = node.parent
        assert above is not None  # it is no root, and in the tree
        run, parent = self.run(node), self._entries[above]
        tokens, hashes = len(run) // 4, self._hashes(above, run)
        number = self._enter(node, parent.end + tokens, hashes)
        self.events.append(
            NodeInserted(
                number, parent.number, tokens, hashes, node.created, node.last_access, node.hits,
                node.priority, node.retention, node.lock_ref, self.has_state(node),
            )
        )  # fmt: skip

    def _enter(self, node: TreeNode, end: int, hashes: bytes) -> int:
        number = self._next_number
        self._next_number += 1
        self._entries[node] = _Entry(number, end, hashes)
        self._nodes[number] = node
        return number

    def _hashes(self, above: TreeNode, tokens: bytes) -> bytes:
        """Hashes of the granules that end in a run of tokens, the first of which may begin in nodes above the run."""
        missing = self._entries[above].end % GRANULE_TOKENS
        if missing + len(tokens) // 4 < GRANULE_TOKENS:
            return b""

        # Tokens of the first granule that lie above the run.
        runs = [tokens]
        at = above
        while missing:
            run = at.key_bytes[-4 * missing :]
            runs.append(run)
            missing -= len(run) >> 2
            if missing:
                assert at.parent is not None  # the path has as many tokens as its entry says
                at = at.parent

        # The chain continues from the last hash above the node, or from the seed of the namespace.
        while not self._entries[above].hashes:
            assert above.parent is not None  # a root has its seed
            above = above.parent
        return chain_hashes(self._entries[above].hashes[-HASH_BYTES:], b"".join(reversed(runs)))
