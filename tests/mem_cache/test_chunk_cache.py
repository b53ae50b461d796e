from __future__ import annotations

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache import ChunkCache, TokenToKVPoolAllocator


def test_finds_nothing_and_keeps_nothing() -> None:
    allocator = TokenToKVPoolAllocator(32, 4)
    cache = ChunkCache(allocator)
    assert cache.page_size == 4
    key = np.arange(10, dtype=np.int32)
    slots = allocator.alloc_extend(0, 10, 0)
    result = cache.insert(key, slots, namespace="x", priority=3)
    assert (result.existing_len, result.retained_len) == (0, 0)
    match = cache.match_prefix(key, "x")
    assert match.slots.dtype == np.int32
    assert len(match.slots) == 0
    assert match.node is result.node
    assert cache.match_len(key, "x") == 0
    assert (cache.evictable_size, cache.protected_size, cache.total_size) == (0, 0, 0)
    assert cache.evict(8) == 0
    assert allocator.available() == 20
    assert len(cache.path_slots(match.node)) == 0
    assert list(cache.iter_nodes()) == []
    assert cache.reset()


def test_locks_are_counted() -> None:
    cache = ChunkCache(TokenToKVPoolAllocator(4))
    node = cache.match_prefix(np.arange(3, dtype=np.int32)).node
    cache.inc_lock_ref(node)
    cache.check_invariants()
    cache.check_invariants([node])
    with pytest.raises(InvariantError):
        cache.check_invariants([])
    cache.dec_lock_ref(node)
    cache.check_invariants([])
    with pytest.raises(InvariantError):
        cache.dec_lock_ref(node)


def test_key_and_slots_must_be_as_long() -> None:
    with pytest.raises(ValueError, match="3 tokens but 2 slots"):
        ChunkCache(TokenToKVPoolAllocator(4)).insert(np.zeros(3, np.int32), np.zeros(2, np.int32))
