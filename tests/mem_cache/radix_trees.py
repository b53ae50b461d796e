"""Small radix trees, keys of whole pages, and requests that insert them."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.mem_cache import InsertResult, RadixCache, TokenToKVPoolAllocator, TreeNode

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 4, 16])


def make(page_size: int = 1, num_pages: int = 64, policy: str = "lru") -> RadixCache:
    return RadixCache(TokenToKVPoolAllocator(num_pages * page_size, page_size), policy)


def pages(cache: RadixCache, *firsts: int, tail: int = 0) -> np.ndarray:
    """One page of tokens for each argument, which is its first token; then `tail` tokens of a page begun."""
    size = cache.page_size
    full = [first * 1000 + i for first in firsts for i in range(size)]
    return np.array(full + [-7] * tail, dtype=np.int32)


def put(cache: RadixCache, key: np.ndarray, namespace: str = "", priority: int = 0) -> InsertResult:
    """A request that runs to its end with no lock held, the way the scheduler does it."""
    slots, node, *_ = cache.match_prefix(key, namespace)
    cache.inc_lock_ref(node)
    matched = len(slots)
    new = cache.allocator.alloc_extend(matched, len(key) - matched, int(slots[-1]) if matched else 0)
    assert new is not None
    row = np.concatenate([slots, new])
    result = cache.insert(key, row, namespace, priority)
    cache.allocator.free(row[matched : result.existing_len])
    cache.allocator.free(row[result.retained_len :])
    cache.dec_lock_ref(node)
    cache.check_invariants([])
    assert cache.total_size + cache.allocator.available() == cache.allocator.num_slots
    return result


def tokens_on_path(node: TreeNode) -> list[int]:
    return [int(token) for above in node.path() for token in above.key]


def put_keep(cache: RadixCache, key: np.ndarray, namespace: str, live: list[TreeNode]) -> TreeNode:
    slots = cache.allocator.alloc_extend(0, len(key), 0)
    assert slots is not None
    node = cache.insert(key, slots, namespace).node
    cache.check_invariants(live)
    return node
