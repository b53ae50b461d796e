"""Invariants of a radix cache between any two calls; the docstring of each check is its equation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import I32, TokenToKVPoolAllocator
from radixrt.mem_cache.node_states import NodeStates
from radixrt.mem_cache.tree_node import NO_CHILDREN, RootNode, TreeNode
from radixrt.messages.state_slots import RESERVED_STATES

if TYPE_CHECKING:
    from radixrt.mem_cache.radix_cache import RadixCache


def check_radix_cache(
    cache: RadixCache,
    roots: Mapping[str, RootNode],
    leaves: Collection[TreeNode],
    live_nodes: Iterable[TreeNode] | None,
) -> None:
    """Check all invariants of this module.

    Args:
        cache: the cache.
        roots: its roots by namespace.
        leaves: its set of evictable leaves.
        live_nodes: one entry for each lock held, or None not to check lock counts.

    Raises:
        InvariantError: the first equation that does not hold.
    """
    nodes = list(cache.iter_nodes())
    check_shape(roots, nodes, cache.page_size)
    check_sizes(cache, leaves, nodes)
    check_slots(nodes, cache.allocator)
    check_states(roots, nodes, cache.node_states)
    if live_nodes is not None:
        check_locks(roots, nodes, live_nodes)


def check_shape(roots: Mapping[str, RootNode], nodes: list[TreeNode], page_size: int) -> None:
    """len(key) == len(value) > 0, whole pages; child.parent.children[first page of child's key] is child;
    lock_ref(node) >= sum of lock_ref over its children; a root other than the default one has children."""
    _require(not NO_CHILDREN, "the shared empty dict of children was written to")
    for namespace, root in roots.items():
        _require(root.namespace == namespace and root.parent is None and not root.key_bytes, f"bad root {namespace!r}")
        _require(bool(root.children) or namespace == "", f"empty root of namespace {namespace!r} was kept")
    for node in nodes:
        tokens = len(node.key)
        if len(node.value) != tokens:
            raise InvariantError(f"{node!r}: {tokens} tokens but {len(node.value)} slots")
        if tokens <= 0 or tokens % page_size:
            raise InvariantError(f"{node!r}: not whole pages of {page_size}")
    for node in [*roots.values(), *nodes]:
        for first_page, child in node.children.items():
            if child.parent is not node:
                raise InvariantError(f"{child!r} has another parent than {node!r}")
            if child.key_bytes[: 4 * page_size] != first_page:
                raise InvariantError(f"{child!r} is indexed by another first page")
        below = sum(child.lock_ref for child in node.children.values())
        if node.lock_ref < below:
            raise InvariantError(f"{node!r}: its children have {below} locks")


def check_sizes(cache: RadixCache, leaves: Collection[TreeNode], nodes: list[TreeNode]) -> None:
    """evictable leaves == nodes without children and with lock_ref 0, in eviction order; evictable_size == tokens of
    nodes with lock_ref 0; protected_size == tokens of the others."""
    expected = {id(node) for node in nodes if not node.children and node.lock_ref == 0}
    ordered = list(leaves)
    _require({id(node) for node in ordered} == expected, f"{len(ordered)} evictable leaves, should be {len(expected)}")
    _require(len(ordered) == len(expected), "an evictable leaf is listed twice")
    order = getattr(leaves, "key", None)
    if order is not None:
        _require([order(n) for n in ordered] == sorted(order(n) for n in ordered), "evictable leaves out of order")
    evictable = sum(node.num_tokens for node in nodes if node.lock_ref == 0)
    protected = sum(node.num_tokens for node in nodes if node.lock_ref > 0)
    _require(cache.evictable_size == evictable, f"evictable_size {cache.evictable_size}, nodes say {evictable}")
    _require(cache.protected_size == protected, f"protected_size {cache.protected_size}, nodes say {protected}")
    _require(cache.total_size == evictable + protected, f"total_size {cache.total_size}")


def check_slots(nodes: list[TreeNode], allocator: TokenToKVPoolAllocator) -> None:
    """Slots of different tokens differ, lie in page_size..num_slots + page_size - 1 (so not in page 0), are not free,
    and each page of tokens lies in one page of slots, in order."""
    page_size = allocator.page_size
    slots = np.frombuffer(b"".join(node.value_bytes for node in nodes), dtype=I32)
    if not len(slots):
        return
    pages = slots[::page_size]
    in_order = (pages[:, None] + np.arange(page_size, dtype=I32)).ravel()
    _require(
        not (pages % page_size).any() and np.array_equal(slots, in_order), "a page of tokens is not a page of slots"
    )
    _require(pages.min() >= page_size, "a padding slot is in the tree")
    _require(slots.max() < allocator.num_slots + page_size, f"slot {slots.max()} in the tree does not exist")
    taken, counts = np.unique(pages, return_counts=True)
    _require(not (counts > 1).any(), f"slots that are in the tree twice: {taken[counts > 1][:16].tolist()}")
    both = np.intersect1d(slots, allocator.free_slots())
    _require(not len(both), f"slots that are in the tree and free: {both[:16].tolist()}")


def check_states(roots: Mapping[str, RootNode], nodes: list[TreeNode], states: NodeStates | None) -> None:
    """Slots of the nodes' states differ, are allocated and not reserved; the counts of states and of evictable ones are
    those of the nodes; a pinned state's node is locked; no root has a state."""
    _require(all(root.state is None for root in roots.values()), "a root has a state")
    holders = [node for node in nodes if node.state is not None]
    if states is None:
        _require(not holders, f"{len(holders)} nodes have states, but the model has none")
        return
    slots = [node.state.slot for node in holders if node.state is not None]
    _require(len(set(slots)) == len(slots), "two nodes have the same state slot")
    _require(all(RESERVED_STATES <= slot < states.slots.num_states for slot in slots), f"bad state slots {slots}")
    _require(not set(slots) & set(states.slots.free_slots()), "a node's state slot is free")
    _require(len(states) == len(holders), f"{len(states)} states are counted, nodes have {len(holders)}")
    pinned = [node for node in holders if node.state is not None and node.state.pins]
    _require(states.evictable == len(holders) - len(pinned), f"{states.evictable} states are counted as evictable")
    for node in pinned:
        _require(node.lock_ref > 0, f"{node!r} has a pinned state, but no lock")


def check_locks(roots: Mapping[str, RootNode], nodes: list[TreeNode], live_nodes: Iterable[TreeNode]) -> None:
    """lock_ref(node) == number of live nodes in its subtree, itself included; each live node is in the tree, or is a
    root without children that its namespace has dropped."""
    expected: Counter[TreeNode] = Counter()
    for live in live_nodes:
        path = live.path()
        top = path[0]
        if not isinstance(top, RootNode):
            raise InvariantError(f"live {live!r} was evicted")
        if roots.get(top.namespace) is not top:
            _require(len(path) == 1 and not top.children, f"live {live!r} hangs from a dropped root")
        expected.update(path)
    for node in {*roots.values(), *nodes, *expected}:
        if node.lock_ref != expected[node]:
            raise InvariantError(f"{node!r}: {expected[node]} live nodes in its subtree")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvariantError(otherwise)
