"""Results of the prefix cache."""

from __future__ import annotations

from typing import NamedTuple

from radixrt.mem_cache.allocator import Int32Array
from radixrt.mem_cache.tree_node import TreeNode


class MatchResult(NamedTuple):
    """The longest cached prefix of a key.

    Attributes:
        slots: int32[matched], read-only, the cache's own slots. Valid until the next evict unless `node` is locked.
        node: node in which the prefix ends, to be locked by the user of the slots; a root if nothing matched.
        state_node: deepest node on the path with a state of recurrent layers, to be pinned by the user of the state;
            None if there is none.
        state_len: number of tokens up to the end of that node; 0 without one.
    """

    slots: Int32Array
    node: TreeNode
    state_node: TreeNode | None = None
    state_len: int = 0


class InsertResult(NamedTuple):
    """Ownership of the parts of an inserted key; see RadixCache.insert.

    Attributes:
        existing_len: number of leading tokens that were cached before, in whole pages, where the cache keeps its slots.
        node: node in which the cached part of the key ends, to be locked by a request that continues; a root if nothing
            of the key is cached.
        retained_len: number of leading tokens that the cache owns now, at least existing_len: whole pages, or 0 if the
            cache is off.
    """

    existing_len: int
    node: TreeNode
    retained_len: int
