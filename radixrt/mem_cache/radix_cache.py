"""The prefix cache as a radix tree over runs of tokens (SGLang, Zheng et al. 2024, arXiv:2312.07104).

Costs depend on the path, never on the size of the tree: a match or insert is one dict look-up and one memory comparison
for each node on the path, and an eviction one pop from a sorted set for each leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sortedcontainers import SortedSet

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import I32, Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.invariants import check_radix_cache
from radixrt.mem_cache.node_states import NodeStates, NoStates
from radixrt.mem_cache.results import InsertResult, MatchResult
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import NO_CHILDREN, RETAIN_DONE, RETAIN_NORMAL, RootNode, TreeNode

if TYPE_CHECKING:
    from radixrt.mem_cache.tree_observer import TreeObserver

_NO_SLOTS = np.frombuffer(b"", dtype=I32)

# Sort keys of eviction: the leaf with the smallest one is evicted first. All four are total orders of the leaves: nodes
# with the same last_access (or created) lie on one path, and a path has one leaf. attrgetter, because it runs in C. The
# retention level counts before the time of use, and after the priority, which an operator or a client sets.
_EVICTION_KEYS: dict[str, Callable[[TreeNode], Any]] = {
    "lru": attrgetter("retention", "last_access"),
    "lfu": attrgetter("retention", "hits", "last_access"),
    "fifo": attrgetter("retention", "created"),
    "priority": attrgetter("priority", "retention", "last_access"),
}

EVICTION_POLICIES = tuple(_EVICTION_KEYS)


def _leaf_order(policy: str, is_useful: Callable[[TreeNode], bool] | None) -> SortedSet:
    """Return an empty set of leaves in eviction order, whose pop(0) is the first to evict; operations are logarithmic.

    A node must be out of the set while any field of its sort key changes.

    Args:
        is_useful: see `RadixCache`; the other leaves come first.

    Raises:
        ValueError: no such policy.
    """
    if policy not in _EVICTION_KEYS:
        raise ValueError(f"unknown eviction policy {policy!r}, choose one of {', '.join(EVICTION_POLICIES)}")
    key = _EVICTION_KEYS[policy]
    return SortedSet(key=key if is_useful is None else lambda node: (is_useful(node), key(node)))


def _has_state(node: TreeNode) -> bool:
    return node.state is not None


class _Descent(NamedTuple):
    """Result of following a key down a tree. Lengths are in bytes, 4 a token.

    Attributes:
        path: nodes whose whole run matches the key, without the root.
        length: sum of their runs.
        partial: the node whose run starts with the key's next page but does not match the key as a whole.
        common: length of the whole pages that `partial` shares with the key; 0 without one.
    """

    path: list[TreeNode]
    length: int
    partial: TreeNode | None
    common: int


class RadixCache:
    """Keeps the KV slots of finished work for requests that start with the same tokens.

    Keys are int32 token ids (other integer types are converted). Sizes are in tokens, which is the same as in slots.
    The cache owns the slots in the tree; only evict and reset give them back to the allocator.

    A namespace (cache salt) is a tree of its own: equal keys of two namespaces share nothing, and requests of one
    namespace see no entries of another. Unlocked leaves of all namespaces are evicted in one common order.

    A node's end is stable: when a node is split, the node object keeps the suffix and a new parent takes the prefix, so
    a request may hold the node where its prefix ends for as long as it holds a lock on it.

    A model with recurrent layers also needs the state after a prefix, which nodes hold (`node_states`). Such a model
    saves the computation of a prefix only up to the deepest state, so match_len ends there.

    Args:
        allocator: receives evicted slots; defines the page size.
        eviction_policy: "lru"; "lfu" (fewest matches); "fifo" (oldest insert); "priority" (lowest, then LRU).
        state_slots: allocator of states; None if the model has no recurrent layers.
        is_useful: leaves for which the function returns False are evicted first. By default, with states: leaves that
            have a state, because the tokens of other leaves must be computed again, whether their keys and values are
            cached or not.

    Raises:
        ValueError: no such policy, or states with another page size than 1.

    Attributes:
        shares: one request can reuse tokens that another request computes; if False, no request is deferred for that.
        policy: eviction policy; "none" if the cache is off.
        page_size: slots per page, the allocator's. Only whole pages are cached.
        evicted_tokens: tokens that evict or reset dropped so far.
        node_states: the states at nodes; None if the model has no recurrent layers.
        observers: called after changes of the tree, set by `watch`; none while nobody watches.
        clock: number of matches and inserts so far.
    """

    shares = True

    def __init__(
        self,
        allocator: TokenToKVPoolAllocator,
        eviction_policy: str = "lru",
        state_slots: StateSlotAllocator | None = None,
        is_useful: Callable[[TreeNode], bool] | None = None,
    ) -> None:
        if state_slots is not None and allocator.page_size != 1:
            raise ValueError(f"states of recurrent layers need page_size 1, got {allocator.page_size}")
        if state_slots is not None:
            is_useful = _has_state
        self._leaves = _leaf_order(eviction_policy, is_useful)  # exactly the leaves with lock_ref 0
        self.policy = eviction_policy
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.evicted_tokens = 0
        self.node_states: NodeStates | None = None
        self._states = NoStates()
        if state_slots is not None:
            self._states = self.node_states = NodeStates(state_slots, self._leaves)
        self.observers: tuple[TreeObserver, ...] = ()
        self.clock = 0
        self._page_bytes = 4 * self.page_size
        # The roots that have children, and the default one. A root without children is not kept, so a namespace without
        # cached tokens costs nothing: match_prefix creates a root for it, which is dropped with its lock.
        self._default_root = RootNode("")
        self._roots = {"": self._default_root}
        self._evictable_size = 0
        self._protected_size = 0

    def watch(self, observer: TreeObserver) -> None:
        """Tell an observer of changes of the tree from now on."""
        if observer not in self.observers:
            self._set_observers((*self.observers, observer))

    def unwatch(self, observer: TreeObserver) -> None:
        """Tell an observer no more, if it is watching."""
        self._set_observers(tuple(each for each in self.observers if each is not observer))

    def _set_observers(self, observers: tuple[TreeObserver, ...]) -> None:
        self.observers = self._states.observers = observers

    @property
    def evictable_size(self) -> int:
        """Number of cached tokens that are not locked."""
        return self._evictable_size

    @property
    def protected_size(self) -> int:
        """Number of cached tokens on the path of some lock."""
        return self._protected_size

    @property
    def total_size(self) -> int:
        """Number of slots that the cache owns."""
        return self._evictable_size + self._protected_size

    # --- look up and add ---

    def match_prefix(self, key: Int32Array, namespace: str = "") -> MatchResult:
        """Find the longest cached prefix of whole pages, and mark it as used.

        Call it once for each admission, and match_len for tentative look-ups. Lock the node before anything evicts.
        """
        root = self._roots.get(namespace) or RootNode(namespace)
        path, length, partial, common = self._descend(root, _to_bytes(key))
        if partial is not None:
            path.append(self._split(partial, common))
            length += common
        if not path:
            return MatchResult(_NO_SLOTS, root)

        # Mark the path as used. The end leaves the eviction order while its sort key changes.
        self.clock = now = self.clock + 1
        end = path[-1]
        was_evictable = end.lock_ref == 0 and not end.children  # only the end of a path can be a leaf
        if was_evictable:
            self._leaves.discard(end)
        for node in path:
            node.last_access = now
            node.hits += 1
            if node.retention == RETAIN_DONE:
                node.retention = RETAIN_NORMAL
        if was_evictable:
            self._leaves.add(end)
        for observer in self.observers:
            observer.used(end, now, 1)
        slots = np.frombuffer(b"".join([node.value_bytes for node in path]), dtype=I32)
        return MatchResult(slots, end, *self._states.deepest(end, length >> 2))

    def match_len(self, key: Int32Array, namespace: str = "") -> int:
        """Return the number of tokens that match_prefix would find, up to the deepest state if the model has recurrent
        layers; changes nothing."""
        path, length, _, common = self._find(key, namespace)
        return self._states.usable(path, length >> 2, common >> 2)

    def keys_len(self, key: Int32Array, namespace: str = "") -> int:
        """Return the number of tokens whose keys and values match_prefix would find, with or without a state; changes
        nothing."""
        _, length, _, common = self._find(key, namespace)
        return (length + common) >> 2

    def match_node(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        """Return the node in which match_prefix's result would end, None if nothing matches; changes nothing."""
        descent = self._find(key, namespace)
        return descent.partial or (descent.path[-1] if descent.path else None)

    def node_at(self, key: Int32Array, namespace: str = "") -> TreeNode | None:
        """Return the node that ends where the key's last whole page ends, created by a split if necessary; None if the
        key is not cached that far, or is shorter than a page. Marks nothing as used."""
        whole = len(key) - len(key) % self.page_size
        path, length, partial, common = self._find(key[:whole], namespace)
        if not whole or length + common < 4 * whole:
            return None
        return path[-1] if partial is None else self._split(partial, common)

    def set_retention(self, node: TreeNode, retention: int) -> None:
        """Set a node's retention level, which has no effect if the node was evicted. A hit on a RETAIN_DONE node
        makes it RETAIN_NORMAL."""
        if node.retention == retention:
            return
        listed = node.lock_ref == 0 and not node.children and node.parent is not None
        if listed:
            self._leaves.discard(node)
        node.retention = retention
        if listed:
            self._leaves.add(node)
        if node.state is not None:
            self._states.retention_changed(node)
        for observer in self.observers:
            observer.retained(node)

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
        if len(key) != len(slots):
            raise ValueError(f"{len(key)} tokens but {len(slots)} slots")
        root = self._roots.get(namespace) or RootNode(namespace)
        retained = len(key) - len(key) % self.page_size
        if retained == 0:
            return InsertResult(0, root, 0)
        key_bytes = _to_bytes(key[:retained])
        path, length, partial, common = self._descend(root, key_bytes)
        if partial is not None:
            path.append(self._split(partial, common))
            length += common

        # Mark the path as used. The end leaves the eviction order while its sort key changes.
        self.clock = now = self.clock + 1
        end = path[-1] if path else root
        if end.lock_ref == 0 and not end.children:
            self._leaves.discard(end)
        for node in path:
            node.last_access = now
            node.priority = max(node.priority, priority)
            if node.retention == RETAIN_DONE:
                node.retention = RETAIN_NORMAL

        # The rest of the key becomes a leaf, whose slots belong to the cache from now on.
        existing = length >> 2
        if path:
            for observer in self.observers:
                observer.used(end, now, 0, priority)
        if existing < retained:
            leaf = TreeNode(end, key_bytes[length:], _to_bytes(slots[existing:retained]), now, priority)
            end.add_child(key_bytes[length : length + self._page_bytes], leaf)
            self._roots[namespace] = root
            self._evictable_size += retained - existing
            end = leaf
            for observer in self.observers:
                observer.inserted(leaf)
        if end.lock_ref == 0 and not end.children:
            self._leaves.add(end)
        return InsertResult(existing, end, retained)

    def _find(self, key: Int32Array, namespace: str) -> _Descent:
        root = self._roots.get(namespace)
        return _Descent([], 0, None, 0) if root is None else self._descend(root, _to_bytes(key))

    def _descend(self, root: TreeNode, key: bytes) -> _Descent:
        path: list[TreeNode] = []
        length = 0
        page_bytes = self._page_bytes
        node = root
        while True:
            # Past the last whole page this slice is too short to be any child's first page.
            child = node.children.get(key[length : length + page_bytes])
            if child is None:
                return _Descent(path, length, None, 0)
            run = child.key_bytes
            if not key.startswith(run, length):
                return _Descent(path, length, child, self._common_pages(run, key, length))
            path.append(child)
            length += len(run)
            node = child

    def _common_pages(self, run: bytes, key: bytes, start: int) -> int:
        """Return the length in bytes of the whole pages that are a common prefix of run and key[start:]."""
        count = min(len(run), len(key) - start) >> 2
        differs = np.frombuffer(run, I32, count) != np.frombuffer(key, I32, count, start)
        first = int(differs.argmax())
        common = first if differs[first] else count
        return (common - common % self.page_size) << 2

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Move the first `length` bytes of the node's run to a new parent, and return that parent.

        The node object keeps the suffix, because requests and `_leaves` refer to it as the end of its path, where its
        state is; the parent has none. Every lock on it covers the prefix as well, so the parent has the same lock_ref
        and no size changes; nor does any field of the node's sort key in `_leaves`.
        """
        page_bytes = self._page_bytes
        above = node.parent
        assert above is not None  # a root has no run to split
        prefix = TreeNode(above, node.key_bytes[:length], node.value_bytes[:length], node.created, node.priority)
        prefix.lock_ref = node.lock_ref
        prefix.last_access = node.last_access
        prefix.hits = node.hits
        node.key_bytes = node.key_bytes[length:]
        node.value_bytes = node.value_bytes[length:]
        node.parent = prefix
        prefix.add_child(node.key_bytes[:page_bytes], node)
        above.children[prefix.key_bytes[:page_bytes]] = prefix
        for observer in self.observers:
            observer.split(node, prefix)
        return prefix

    # --- locks ---

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect the path from the root to the node from eviction until the matching dec_lock_ref.

        Raises:
            InvariantError: the node was evicted between its match and this call.
        """
        if node.parent is None and node.key_bytes:
            raise InvariantError(f"{node!r} is locked after it was evicted")
        if node.lock_ref == 0 and not node.children:
            self._leaves.discard(node)
        above: TreeNode | None = node
        while above is not None:
            if above.lock_ref == 0:
                size = len(above.key_bytes) >> 2
                self._evictable_size -= size
                self._protected_size += size
            above.lock_ref += 1
            above = above.parent
        for observer in self.observers:
            observer.locked(node, 1)

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Release one lock.

        Raises:
            InvariantError: the node has no lock.
        """
        if node.lock_ref < 1:
            raise InvariantError(f"{node!r} is unlocked more often than locked")
        above: TreeNode | None = node
        while above is not None:
            above.lock_ref -= 1
            if above.lock_ref == 0:
                size = len(above.key_bytes) >> 2
                self._evictable_size += size
                self._protected_size -= size
            above = above.parent
        if node.lock_ref == 0 and not node.children and node.parent is not None:
            self._leaves.add(node)
        for observer in self.observers:
            observer.locked(node, -1)

    # --- drop ---

    def evict(self, num_slots: int) -> int:
        """Free slots through the allocator: whole unlocked leaves in eviction order, until at least num_slots are freed
        or nothing evictable is left.

        Returns:
            Number of slots freed, which may be less or more than num_slots.
        """
        leaves = self._leaves
        freed: list[bytes] = []
        missing = 4 * num_slots
        while missing > 0 and leaves:
            leaf: TreeNode = leaves.pop(0)
            for observer in self.observers:
                observer.evicting(leaf)
            if leaf.state is not None:
                self._states.drop(leaf)
            freed.append(leaf.value_bytes)
            missing -= len(leaf.value_bytes)
            parent = leaf.parent
            assert parent is not None  # a root is never in _leaves
            parent.remove_child(leaf.key_bytes[: self._page_bytes])
            leaf.parent = None
            for observer in self.observers:
                observer.evicted(leaf)
            if not parent.children:
                self._end_path(parent)
        return self._give_back(freed)

    def remove(self, node: TreeNode) -> bool:
        """Drop a node and all nodes below it, and free their slots.

        Returns:
            False, with nothing changed, if any of these tokens is locked, or the node is a root or was dropped before.
        """
        parent = node.parent
        if parent is None or node.lock_ref:
            return False
        nodes = [node, *node.descendants()]
        parent.remove_child(node.key_bytes[: self._page_bytes])
        for each in nodes:
            self._leaves.discard(each)
            if each.state is not None:
                self._states.drop(each)
        for each in reversed(nodes):
            each.parent, each.children = None, NO_CHILDREN
            for observer in self.observers:
                observer.evicted(each)
        if not parent.children:
            self._end_path(parent)
        self._give_back([each.value_bytes for each in nodes])
        return True

    def remove_below(self, node: TreeNode) -> None:
        """Drop all nodes below a node of which no token is locked."""
        for child in list(node.children.values()):
            if not self.remove(child):
                self.remove_below(child)

    def reset(self) -> bool:
        """Drop everything and free its slots, for a flush.

        Returns:
            False, with nothing changed, if any token is locked; evict(evictable_size) drops everything that is not.
        """
        if self._protected_size:
            return False
        freed = []
        for node in list(self.iter_nodes()):
            if node.state is not None:
                self._states.drop(node)
            freed.append(node.value_bytes)
            node.parent = None  # no cycles are left, so the memory goes without a garbage collection
            node.children = NO_CHILDREN
        self._leaves.clear()
        for root in list(self._roots.values()):
            root.children = NO_CHILDREN
            self._forget_root(root)
        self._give_back(freed)
        for observer in self.observers:
            observer.cleared()
        return True

    def _end_path(self, node: TreeNode) -> None:
        """List a node that has lost its last child as a leaf, or drop the root of an empty namespace."""
        if isinstance(node, RootNode):
            self._forget_root(node)
        elif node.lock_ref == 0:
            self._leaves.add(node)

    def _give_back(self, runs: list[bytes]) -> int:
        """Free the slots of evictable nodes that were just removed from the tree; returns their number."""
        slots = np.frombuffer(b"".join(runs), dtype=I32)
        self.allocator.free(slots)
        self._evictable_size -= len(slots)
        self.evicted_tokens += len(slots)
        return len(slots)

    def _forget_root(self, root: RootNode) -> None:
        if root is not self._default_root:
            del self._roots[root.namespace]
            for observer in self.observers:
                observer.evicted(root)

    # --- look around ---

    def coldest(self) -> Iterator[TreeNode]:
        """Yield the leaves without a lock in the order in which they would be evicted. The cache must not change
        meanwhile."""
        return iter(self._leaves)

    def path_slots(self, node: TreeNode) -> Int32Array:
        """Slots from the root to the end of the node: int32[tokens on that path], read-only."""
        return np.frombuffer(b"".join([above.value_bytes for above in node.path()]), dtype=I32)

    def iter_nodes(self) -> Iterator[TreeNode]:
        """Every node that holds tokens (no roots), parents first. The cache must not change meanwhile."""
        for root in self._roots.values():
            yield from root.descendants()

    def roots(self) -> Iterable[RootNode]:
        """The roots of all namespaces."""
        return self._roots.values()

    def is_root(self, node: RootNode) -> bool:
        """Return True if the node is the root of its namespace's tree, rather than one that was dropped."""
        return self._roots.get(node.namespace) is node

    def check_invariants(self, live_nodes: Iterable[TreeNode] | None = None) -> None:
        """Raise InvariantError unless the cache's state is consistent; visits all of it.

        Args:
            live_nodes: the locked node of every live request, one entry for each lock; None not to check locks.
        """
        check_radix_cache(self, self._roots, self._leaves, live_nodes)


def _to_bytes(ids: Int32Array) -> bytes:
    return np.asarray(ids, dtype=I32).tobytes()
