"""`TreeObserver`: what a radix tree calls after each of its changes."""

from __future__ import annotations

from radixrt.mem_cache.tree_node import TreeNode


class TreeObserver:
    """Base class of observers (`RadixCache.watch`). The methods of the base class do nothing."""

    def inserted(self, leaf: TreeNode) -> None:
        """Note a leaf that was just added."""

    def split(self, node: TreeNode, prefix: TreeNode) -> None:
        """Note that the first part of a node's run has moved to its new parent `prefix`."""

    def evicted(self, node: TreeNode) -> None:
        """Note that a leaf, or the root of a namespace, was dropped. The leaf still has its run and no parent."""

    def evicting(self, leaf: TreeNode) -> None:
        """Note a leaf that is about to be dropped, while it still has its parent."""

    def used(self, node: TreeNode, clock: int, hits: int, priority: int | None = None) -> None:
        """Note a match or an insert through the path to a node."""

    def locked(self, node: TreeNode, change: int) -> None:
        """Note a change of the locks on the path to a node."""

    def retained(self, node: TreeNode) -> None:
        """Note the new retention level of a node."""

    def state_changed(self, node: TreeNode) -> None:
        """Note that a node has got or lost a state of the recurrent layers."""

    def cleared(self) -> None:
        """Note that nothing is left: no nodes, and no roots."""
