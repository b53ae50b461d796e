"""States of recurrent layers at the nodes of a prefix cache, and the order in which they are evicted.

A node may hold the state after its last token. A later request with the same tokens up to there continues from it;
without a state the recurrent layers must read these tokens again, even though the cache has their keys and values.

The value of a state is the cost of computing the state again: the tokens since the next state above, for each use.
States are evicted by GDSF (Greedy-Dual-Size-Frequency, Cherkasova 1998) for objects of equal size: the state with the
smallest `clock at its last use + uses * tokens` goes first, and the clock advances to the value of each evicted state,
so that an unused state grows old. The retention level of the node, which programs set, counts before the value.

For a node with one child, two uses do not count: the expected use, and the use by the request that made the child. A
conversation that has gone on seldom comes back to an earlier turn, while a fork has several children.
"""

from __future__ import annotations

import heapq
from collections.abc import MutableSet, Sequence
from typing import TYPE_CHECKING

from radixrt.errors import InvariantError
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import RETAIN_NORMAL, NodeState, TreeNode

if TYPE_CHECKING:
    from radixrt.mem_cache.tree_observer import TreeObserver

PASSED_USES = 0.25
"""Expected uses of a state from which one request has continued: chosen by `benchmarks.cache.hybrid`."""

Rank = tuple[int, float]
"""Retention level of a state's node and the state's value: of two states the one with the lower rank is evicted first.
"""


class NoStates:
    """What a cache asks of the states at its nodes, answered for a model without recurrent layers.

    Attributes:
        observers: the cache's.
    """

    observers: tuple[TreeObserver, ...] = ()

    def deepest(self, end: TreeNode, length: int) -> tuple[TreeNode | None, int]:
        """Return the deepest node with a state on the path to `end`, and the number of tokens up to its end; (None, 0)
        if there is none."""
        return None, 0

    def usable(self, path: Sequence[TreeNode], length: int, common: int) -> int:
        """Return the number of cached tokens of a prefix that a request need not compute.

        Args:
            path: the prefix's whole nodes, without the root.
            length: number of tokens of `path`.
            common: number of the prefix's tokens in the first part of a further node.
        """
        return length + common

    def retention_changed(self, node: TreeNode) -> None:
        """Sort the node's state again after its retention level was set."""

    def drop(self, node: TreeNode) -> None:
        """Free the slot of the node's state, which is evicted with its node."""


class NodeStates(NoStates):
    """See the module's docstring. The only code that writes `TreeNode.state`.

    A pinned state is not evicted: a request is about to read it. Requests lock their paths, so a node with a pinned
    state is not evicted either.

    Args:
        slots: allocator of the states, which gets the slots of evicted ones.
        leaves: evictable leaves of the cache in an order that depends on whether a node has a state.

    Attributes:
        clock: value of the last state that was evicted; read only.
        evicted: number of states evicted so far.
    """

    def __init__(self, slots: StateSlotAllocator, leaves: MutableSet[TreeNode]) -> None:
        self.slots = slots
        self._leaves = leaves
        self.clock = 0.0
        self._heap: list[
            tuple[Rank, int, TreeNode]
        ] = []  # with the rank at the time of the push; the latest entry of a state counts
        self._entries = 0
        self._count = 0
        self._pinned = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Number of states in the cache."""
        return self._count

    @property
    def evictable(self) -> int:
        """Number of states that are not pinned."""
        return self._count - self._pinned

    # --- look up ---

    def deepest(self, end: TreeNode, length: int) -> tuple[TreeNode | None, int]:
        return deepest_state(end, length, length)

    def usable(self, path: Sequence[TreeNode], length: int, common: int) -> int:
        return deepest_state(path[-1], length, length)[1] if path else 0

    def coldest(self, count: int) -> list[TreeNode]:
        """Return the nodes of about the next `count` states to be evicted, the first one first. Pinned states are among
        them."""
        entries = (pushed for pushed in self._heap if _counts(pushed[2], pushed[1]))
        return [node for _, _, node in heapq.nsmallest(count, entries)]

    # --- attach, use and detach ---

    def attach(self, node: TreeNode, slot: int, uses: int = 1, clock: float | None = None) -> bool:
        """Give a node the state in `slot`, which belongs to the cache from now on.

        Args:
            uses: number of uses that are expected.
            clock: clock at the time from which the state ages; None: now.

        Returns:
            False, with nothing changed, if the node has a state already or is a root.
        """
        if node.state is not None or node.parent is None:
            return False
        self._set(node, NodeState(slot, uses, self.clock if clock is None else clock))
        self._count += 1
        self._push(node)
        above, _ = state_above(node)
        if above is not None:
            self._push(above)  # its value may have fallen
        return True

    def use(self, node: TreeNode) -> None:
        """Count a use of the node's state."""
        state = _state(node)
        state.uses += 1
        state.clock = self.clock

    def pin(self, node: TreeNode) -> None:
        """Protect the node's state from eviction until the matching unpin."""
        state = _state(node)
        self._pinned += state.pins == 0
        state.pins += 1

    def unpin(self, node: TreeNode) -> None:
        state = _state(node)
        if state.pins < 1:
            raise InvariantError(f"the state of {node!r} is unpinned more often than pinned")
        state.pins -= 1
        self._pinned -= state.pins == 0

    def take(self, node: TreeNode) -> int:
        """Take the state away from a node that only the caller has pinned. The caller owns the returned slot from now
        on."""
        state = _state(node)
        if state.pins != 1:
            raise InvariantError(f"the state of {node!r} has {state.pins} pins")
        self._pinned -= 1
        self._remove(node)
        return state.slot

    # --- evict ---

    def evict(self, below: Rank | None = None) -> bool:
        """Free the slot of the state with the lowest rank among those that are not pinned.

        Args:
            below: evict nothing unless the state's rank is lower than this rank.

        Returns:
            True if a slot was freed.
        """
        aside: list[tuple[Rank, int, TreeNode]] = []
        found = False
        while self._heap and not found:
            pushed = heapq.heappop(self._heap)
            rank, entry, node = pushed
            state = node.state
            if state is None or state.entry != entry:
                continue  # evicted, or pushed again since then
            if state.pins:
                aside.append(pushed)
                continue
            now = self.rank(node)
            if now > rank:
                self._push(node)  # the state was used, or the state above was evicted
            elif below is not None and now >= below:
                aside.append(pushed)
                break
            else:
                self.clock = max(self.clock, now[1])
                self.drop(node)
                found = True
        for pushed in aside:
            heapq.heappush(self._heap, pushed)
        return found

    def evict_all(self) -> None:
        """Free the slots of all states that are not pinned."""
        while self.evict():
            pass

    def drop(self, node: TreeNode) -> None:
        """Free the slot of the node's state: the state or its node is evicted.

        Raises:
            InvariantError: the state is pinned.
        """
        state = _state(node)
        if state.pins:
            raise InvariantError(f"the state of {node!r} is evicted, though it is pinned")
        self._remove(node)
        self.slots.free(state.slot)
        self.evicted += 1

    def retention_changed(self, node: TreeNode) -> None:
        """Sort the node's state again after its retention level was set."""
        self._push(node)

    def rank(self, node: TreeNode) -> Rank:
        """Current rank of the node's state."""
        state = _state(node)
        uses = state.uses if len(node.children) != 1 else max(state.uses - 2, 0) + PASSED_USES
        return node.retention, state.clock + uses * tokens_since_state(node)

    def rank_of(self, tokens: int, uses: int, clock: float) -> Rank:
        """Rank of a new state that saves so many tokens, for so many uses, and ages from `clock` on."""
        return RETAIN_NORMAL, clock + uses * tokens

    def _push(self, node: TreeNode) -> None:
        if len(self._heap) > 2 * self._count + 64:  # mostly entries that no longer count
            self._heap = [pushed for pushed in self._heap if _counts(pushed[2], pushed[1])]
            heapq.heapify(self._heap)
        self._entries += 1
        _state(node).entry = self._entries
        heapq.heappush(self._heap, (self.rank(node), self._entries, node))

    def _remove(self, node: TreeNode) -> None:
        self._set(node, None)
        self._count -= 1

    def _set(self, node: TreeNode, state: NodeState | None) -> None:
        is_listed = node in self._leaves
        if is_listed:
            self._leaves.discard(node)
        node.state = state
        if is_listed:
            self._leaves.add(node)
        for observer in self.observers:
            observer.state_changed(node)


def state_above(node: TreeNode) -> tuple[TreeNode | None, int]:
    """Return the next node above with a state, or None, and the number of tokens from there, or from the root, to the
    end of the node."""
    tokens = node.num_tokens
    above = node.parent
    while above is not None and above.state is None:
        tokens += above.num_tokens
        above = above.parent
    return above, tokens


def tokens_since_state(node: TreeNode) -> int:
    """Return the number of tokens from the next state above the node, or from the root, to the node's end."""
    return state_above(node)[1]


def deepest_state(node: TreeNode, length: int, within: int) -> tuple[TreeNode | None, int]:
    """Return the deepest node with a state on a path, and the number of tokens up to its end.

    Args:
        node, length: end of the path, and its number of tokens.
        within: states after more tokens do not count.

    Returns:
        (None, 0) if there is none.
    """
    at: TreeNode | None = node
    while at is not None and (at.state is None or length > within):
        length -= at.num_tokens
        at = at.parent
    return at, length


def _state(node: TreeNode) -> NodeState:
    if node.state is None:
        raise InvariantError(f"{node!r} has no state")
    return node.state


def _counts(node: TreeNode, entry: int) -> bool:
    return node.state is not None and node.state.entry == entry
