"""Reset of the radix cache, and the invariants that every test checks."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache import RadixCache
from tests.mem_cache.radix_trees import PAGE_SIZES, make, pages, put, put_keep

# --- reset ---


@PAGE_SIZES
def test_reset_drops_everything(page_size: int) -> None:
    cache = make(page_size)
    node = put(cache, pages(cache, 1, 2, 3)).node
    put(cache, pages(cache, 1, 4), "a")
    put(cache, pages(cache, 1, 4))
    assert cache.reset()
    assert cache.total_size == 0
    assert list(cache.iter_nodes()) == []
    assert cache.allocator.available() == cache.allocator.num_slots
    cache.check_invariants([])
    with pytest.raises(InvariantError):
        cache.inc_lock_ref(node)
    assert put(cache, pages(cache, 1, 2, 3)).existing_len == 0
    assert cache.reset()
    assert cache.reset()


def test_reset_refuses_while_a_token_is_locked() -> None:
    cache = make()
    node = put(cache, pages(cache, 1)).node
    put(cache, pages(cache, 2))
    cache.inc_lock_ref(node)
    assert not cache.reset()
    assert cache.total_size == 2
    cache.check_invariants([node])
    assert cache.evict(cache.evictable_size) == 1
    cache.dec_lock_ref(node)
    assert cache.reset()


def test_reset_with_only_a_root_locked() -> None:
    cache = make()
    root = cache.match_prefix(pages(cache, 1)).node
    cache.inc_lock_ref(root)
    put_keep(cache, pages(cache, 2), "", [root])
    assert cache.reset()
    cache.check_invariants([root])
    cache.dec_lock_ref(root)
    cache.check_invariants([])


# --- invariants ---


def broken(case: str) -> RadixCache:
    """A cache in which one thing is wrong."""
    cache = make(2, num_pages=8)
    a = put(cache, pages(cache, 1, 2)).node
    b = put(cache, pages(cache, 1, 3)).node
    put(cache, pages(cache, 1), "a")
    parent = a.parent
    assert parent is not None
    if case == "lengths":
        a.value_bytes = a.value_bytes[:4]
    elif case == "partial page":
        a.key_bytes, a.value_bytes = a.key_bytes[:4], a.value_bytes[:4]
    elif case == "wrong child key":
        parent.children[b"x"] = parent.children.pop(a.key_bytes[:8])
    elif case == "wrong parent":
        a.parent = b
    elif case == "missing leaf":
        cache._leaves.discard(a)
    elif case == "locked leaf listed":
        cache._leaves.add(parent)
    elif case == "evictable size":
        cache._evictable_size += 1
    elif case == "protected size":
        cache._protected_size += 1
    elif case == "stray lock":
        a.lock_ref = 1
    elif case == "shared slot":
        a.value_bytes = b.value_bytes
    elif case == "slot 0":
        a.value_bytes = np.array([0, 1], np.int32).tobytes()
    elif case == "unknown slot":
        a.value_bytes = np.array([18, 19], np.int32).tobytes()
    elif case == "scattered page":
        a.value_bytes = a.value_bytes[4:] + a.value_bytes[:4]
    elif case == "free slot":
        cache.allocator.free(a.value)
    elif case == "empty root":
        cache._roots["b"] = cache.match_prefix(pages(cache, 1), "b").node
    elif case == "out of order":
        b.last_access = 0
    return cache


@pytest.mark.parametrize(
    "case",
    [
        "lengths",
        "partial page",
        "wrong child key",
        "wrong parent",
        "missing leaf",
        "locked leaf listed",
        "evictable size",
        "protected size",
        "stray lock",
        "shared slot",
        "slot 0",
        "unknown slot",
        "scattered page",
        "free slot",
        "empty root",
        "out of order",
    ],
)
def test_invariants_catch(case: str) -> None:
    with pytest.raises(InvariantError):
        broken(case).check_invariants([])


def test_invariants_pass_when_nothing_is_broken() -> None:
    broken("nothing").check_invariants([])
