"""Node of the radix tree: a run of tokens below its parent, the KV slots that hold them, and the state after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from radixrt.mem_cache.allocator import I32, Int32Array

# `children` of every leaf, so that a million leaves do not hold a million empty dicts. Never written to.
NO_CHILDREN: dict[bytes, TreeNode] = {}


RETAIN_DONE, RETAIN_NORMAL, RETAIN_EXTENDED, RETAIN_LEASED = range(4)
"""Retention levels, set by `radixrt.parts.programs`: evictable leaves with a lower level are evicted first.

- RETAIN_DONE: a program is done with the node.
- RETAIN_EXTENDED: a call of the youngest program will continue from the node; see `held_level`.
- RETAIN_LEASED: the node is in the shared prefix of a fork of the youngest program, which holds the prefix for all
  branches (a *lease*).
"""

RANKS = 256
"""Number of programs whose nodes have levels of their own."""


def held_level(kind: int, number: int) -> int:
    """Return the level at which the number-th program holds a node.

    The level of a program that began earlier is higher, for programs that are fewer than `RANKS` numbers apart.

    Args:
        kind: RETAIN_EXTENDED or RETAIN_LEASED.
    """
    return kind + 2 * (RANKS - 1 - number % RANKS)


def retention_kind(level: int) -> int:
    """Return the level without its program: RETAIN_DONE, RETAIN_NORMAL, RETAIN_EXTENDED or RETAIN_LEASED."""
    return level if level < RETAIN_EXTENDED else RETAIN_EXTENDED + level % 2


class NodeState:
    """State of the recurrent layers after a node's last token. Written by `radixrt.mem_cache.node_states.NodeStates`.

    Attributes:
        slot: the state slot, which the cache owns.
        uses: number of requests that have continued from the state, or are expected to; at least 1.
        pins: number of requests that are about to read the state; while it is not 0 the state is not evicted.
        clock: eviction clock at the last use, or when the state was made.
        entry: number of the state's latest entry in the eviction order.
    """

    __slots__ = ("clock", "entry", "pins", "slot", "uses")

    def __init__(self, slot: int, uses: int, clock: float) -> None:
        self.slot = slot
        self.uses = uses
        self.pins = 0
        self.clock = clock
        self.entry = 0


class TreeNode:
    """Written by the prefix cache alone; others may hold a node to lock it and to get its slots.

    Runs are stored as bytes, not arrays: `bytes.startswith` compares a thousand tokens in a tenth of a microsecond,
    and at a million nodes an array costs 112 bytes more and, as a view, keeps its whole request's array alive.

    Attributes:
        children: by the bytes of their first page of tokens, which differs among siblings.
        parent: None for a root, and for a node that was evicted.
        key_bytes: the run, int32 tokens, whole pages; empty for a root only.
        value_bytes: one int32 slot for each token of the run.
        lock_ref: locks held on this node and on nodes below it; while it is not 0 the node is not evicted.
        last_access: time of the last match or insert through this node, in ticks of the cache's clock.
        hits: number of matches that went through this node.
        priority: highest priority of the inserts that went through this node.
        created: tick of the insert that made the run.
        retention: retention level, RETAIN_NORMAL unless a program's hint changed it.
        state: state of the recurrent layers after the node's last token; None if there is none.
    """

    __slots__ = (
        "children",
        "created",
        "hits",
        "key_bytes",
        "last_access",
        "lock_ref",
        "parent",
        "priority",
        "retention",
        "state",
        "value_bytes",
    )

    def __init__(
        self, parent: TreeNode | None, key_bytes: bytes, value_bytes: bytes, created: int, priority: int
    ) -> None:
        self.children = NO_CHILDREN
        self.parent = parent
        self.key_bytes = key_bytes
        self.value_bytes = value_bytes
        self.lock_ref = 0
        self.last_access = created
        self.hits = 0
        self.priority = priority
        self.created = created
        self.retention = RETAIN_NORMAL
        self.state: NodeState | None = None

    @property
    def key(self) -> Int32Array:
        """int32[num_tokens], read-only."""
        return np.frombuffer(self.key_bytes, dtype=I32)

    @property
    def value(self) -> Int32Array:
        """int32[num_tokens], read-only."""
        return np.frombuffer(self.value_bytes, dtype=I32)

    @property
    def num_tokens(self) -> int:
        return len(self.key_bytes) >> 2

    def add_child(self, first_page: bytes, child: TreeNode) -> None:
        if self.children is NO_CHILDREN:
            self.children = {}
        self.children[first_page] = child

    def remove_child(self, first_page: bytes) -> None:
        del self.children[first_page]
        if not self.children:
            self.children = NO_CHILDREN

    def path(self) -> list[TreeNode]:
        """Return the nodes from the root to this node, both inclusive."""
        nodes = []
        node: TreeNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def descendants(self) -> Iterator[TreeNode]:
        """Yield all descendants, parents before children. The tree must not change meanwhile."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tokens={self.num_tokens}, children={len(self.children)}, lock={self.lock_ref})"


class RootNode(TreeNode):
    """The top of one namespace's tree; holds no tokens."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(None, b"", b"", 0, 0)
        self.namespace = namespace


def path_of(node: TreeNode) -> tuple[Int32Array, str]:
    """Return the tokens from the root to the end of a node, and the name of its root."""
    root, *path = node.path()
    return np.frombuffer(b"".join([each.key_bytes for each in path]), dtype=I32), cast(RootNode, root).namespace
