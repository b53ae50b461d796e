"""`Copies`: slots, states and nodes of a tree that belong to copies between its pool and other memory, and to no
request."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from radixrt.mem_cache.allocator import Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.node_states import NodeStates
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.tree_node import TreeNode


class Arrival(NamedTuple):
    """Prefix that is being copied into a pool.

    Attributes:
        node: held node in which the part of the prefix ends that is in the tree.
        tokens: int32[n], the prefix from position 0 on.
        slots: int32[n - start], reserved slots for the rest of the prefix; empty if the tree has all of it.
    """

    node: TreeNode
    tokens: Int32Array
    slots: Int32Array
    namespace: str

    @property
    def start(self) -> int:
        """Position of the first token that is copied."""
        return len(self.tokens) - len(self.slots)


class Copies:
    """See the module's docstring.

    Attributes:
        reserved: number of slots that copies into the pool have reserved.
        held: nodes that copies have locked, an entry for each lock.
        reserved_states: state slots that copies into the pool have reserved.
        pinned: nodes whose states copies have pinned, an entry for each pin.
    """

    def __init__(self, cache: RadixCache, allocator: TokenToKVPoolAllocator) -> None:
        self.reserved = 0
        self.held: list[TreeNode] = []
        self.reserved_states: list[int] = []
        self.pinned: list[TreeNode] = []
        self._cache = cache
        self._allocator = allocator

    def make_room(self, need: int) -> bool:
        """Evict until `need` slots are free; return False, with nothing changed, if so many cannot be freed."""
        missing = need - self._allocator.available()
        if missing > 0:
            if missing > self._cache.evictable_size:
                return False
            self._cache.evict(missing)
        return self._allocator.available() >= need

    def begin(self, tokens: Int32Array, namespace: str, *, evicts: bool = True) -> Arrival | None:
        """Hold the part of a prefix that is in the tree, and reserve slots for the rest, until the matching `end`.

        Args:
            tokens: int32[n], whole pages.
            evicts: other tokens may be evicted for the prefix.

        Returns:
            None, with nothing held, if slots are missing.
        """
        match = self._cache.match_prefix(tokens, namespace)
        count = len(tokens) - len(match.slots)
        self.hold(match.node)
        slots = self.reserve(count) if evicts or count <= self._allocator.available() else None
        if slots is None:
            self.let_go(match.node)
            return None
        return Arrival(match.node, tokens, slots, namespace)

    def end(self, arrival: Arrival, *, copied: bool) -> None:
        """Put a copied prefix into the tree, or free its slots, into which no copy may happen any more."""
        if copied:
            self.adopt(arrival.node, arrival.tokens, arrival.slots, arrival.namespace)
        else:
            self.cancel(arrival.slots)
        self.let_go(arrival.node)

    def hold(self, node: TreeNode) -> None:
        """Protect the path to a node from eviction until the matching `let_go`."""
        self._cache.inc_lock_ref(node)
        self.held.append(node)

    def let_go(self, node: TreeNode) -> None:
        """Release a hold."""
        self.held.remove(node)
        self._cache.dec_lock_ref(node)

    def reserve(self, count: int) -> Int32Array | None:
        """Allocate slots for keys and values that are copied into the pool, evicting if needed.

        Args:
            count: number of tokens, in whole pages; the first one begins a page.

        Returns:
            int32[count]; None if slots are missing.
        """
        slots = self._allocator.alloc_extend(0, count, 0) if self.make_room(count) else None
        if slots is not None:
            self.reserved += count
        return slots

    def cancel(self, slots: Int32Array) -> None:
        """Free reserved slots. A copy into them must not happen any more."""
        self.reserved -= len(slots)
        self._allocator.free(slots)

    def adopt(self, node: TreeNode, tokens: Int32Array, slots: Int32Array, namespace: str) -> TreeNode:
        """Put tokens whose keys and values were copied into reserved slots, or will be before the next step, into the
        tree. Slots of tokens that the tree has meanwhile are freed.

        Args:
            node: held node in which the prefix before the reserved slots ends, or passes.
            tokens: int32[n], all tokens from the first one on; the last len(slots) have the reserved slots.

        Returns:
            The node in which the tokens end.
        """
        self.reserved -= len(slots)
        start = len(tokens) - len(slots)
        before = self._cache.path_slots(node)[:start]
        result = self._cache.insert(tokens, np.concatenate([before, slots]), namespace)
        self._allocator.free(slots[: max(result.existing_len - start, 0)])
        self._allocator.free(slots[max(result.retained_len - start, 0) :])
        return result.node

    # --- states of recurrent layers, for a cache that has them ---

    @property
    def _states(self) -> NodeStates:
        return cast(NodeStates, self._cache.node_states)

    def pin(self, node: TreeNode) -> None:
        """Protect the state of a held node until the matching `unpin`."""
        self._states.pin(node)
        self.pinned.append(node)

    def unpin(self, node: TreeNode) -> None:
        """Release a pin."""
        self.pinned.remove(node)
        self._states.unpin(node)

    def reserve_state(self) -> int | None:
        """Return a slot for a state that is copied into the pool, evicting another state if needed; None if no slot can
        be freed."""
        states = self._states
        slot = states.slots.alloc()
        if slot is None and states.evict():
            slot = states.slots.alloc()
        if slot is not None:
            self.reserved_states.append(slot)
        return slot

    def cancel_state(self, slot: int) -> None:
        """Free a reserved slot. A copy into the slot must not happen any more."""
        self.reserved_states.remove(slot)
        self._states.slots.free(slot)

    def adopt_state(self, slot: int, node: TreeNode) -> None:
        """Give a copied state to the node in which its tokens end. If the node has a state meanwhile, the slot is
        freed."""
        self.reserved_states.remove(slot)
        if not self._states.attach(node, slot):
            self._states.slots.free(slot)
