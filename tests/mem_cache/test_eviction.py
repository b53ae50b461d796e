"""Eviction from the radix cache: locks, leaves first, and the order of each policy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache import EVICTION_POLICIES, RadixCache
from tests.mem_cache.radix_trees import PAGE_SIZES, make, pages, put, tokens_on_path

# --- locks ---


@PAGE_SIZES
def test_locks_move_the_whole_path_between_the_sizes(page_size: int) -> None:
    cache = make(page_size)
    a = put(cache, pages(cache, 1, 2, 3)).node
    b = put(cache, pages(cache, 1, 2, 4, 5)).node
    assert (cache.evictable_size, cache.protected_size) == (5 * page_size, 0)
    cache.inc_lock_ref(a)
    assert (cache.evictable_size, cache.protected_size) == (2 * page_size, 3 * page_size)
    cache.inc_lock_ref(b)
    assert (cache.evictable_size, cache.protected_size) == (0, 5 * page_size)
    cache.check_invariants([a, b])
    with pytest.raises(InvariantError, match="live nodes"):
        cache.check_invariants([a])
    cache.dec_lock_ref(a)
    assert (cache.evictable_size, cache.protected_size) == (page_size, 4 * page_size)
    cache.dec_lock_ref(b)
    assert (cache.evictable_size, cache.protected_size) == (5 * page_size, 0)
    cache.check_invariants([])


def test_unlocking_without_a_lock_is_an_error() -> None:
    cache = make()
    node = put(cache, pages(cache, 1)).node
    for unlocked in (node, cache.match_prefix(pages(cache)).node):
        with pytest.raises(InvariantError, match="unlocked more often"):
            cache.dec_lock_ref(unlocked)
    cache.check_invariants([])


def test_locking_an_evicted_node_is_an_error() -> None:
    cache = make()
    node = put(cache, pages(cache, 1)).node
    cache.evict(1)
    with pytest.raises(InvariantError, match="after it was evicted"):
        cache.inc_lock_ref(node)
    with pytest.raises(InvariantError, match="was evicted"):
        cache.check_invariants([node])


def test_root_locks_protect_nothing() -> None:
    cache = make()
    root = cache.match_prefix(pages(cache, 1)).node
    cache.inc_lock_ref(root)
    put_node = cache.insert(pages(cache, 1), cache.allocator.alloc_extend(0, 1, 0)).node
    assert (cache.evictable_size, cache.protected_size) == (1, 0)
    cache.check_invariants([root])
    assert cache.evict(1) == 1
    assert put_node.parent is None
    cache.dec_lock_ref(root)
    cache.check_invariants([])


# --- eviction ---


@PAGE_SIZES
def test_evict_frees_whole_leaves_through_the_allocator(page_size: int) -> None:
    cache = make(page_size)
    put(cache, pages(cache, 1, 2, 3))
    put(cache, pages(cache, 4))
    before = cache.allocator.available()
    assert cache.evict(0) == cache.evict(-1) == 0
    assert cache.evict(page_size) == 3 * page_size
    assert cache.allocator.available() == before + 3 * page_size
    assert cache.match_len(pages(cache, 1)) == 0
    assert cache.match_len(pages(cache, 4)) == page_size
    assert cache.evict(100 * page_size) == page_size
    assert cache.evict(1) == 0
    assert cache.allocator.available() == cache.allocator.num_slots
    cache.check_invariants([])


def test_parents_become_evictable_as_their_leaves_go() -> None:
    cache = make()
    put(cache, pages(cache, 1, 2, 3))
    put(cache, pages(cache, 1, 2, 4))
    put(cache, pages(cache, 1, 5))
    assert len(list(cache.iter_nodes())) == 5
    assert cache.evict(4) == 4  # 3, 4, their parent 2, and 5
    assert [tokens_on_path(node) for node in cache.iter_nodes()] == [[1000]]
    assert cache.evict(1) == 1


def test_locked_paths_stay() -> None:
    cache = make()
    node = put(cache, pages(cache, 1, 2, 3)).node
    put(cache, pages(cache, 1, 2, 4))
    cache.inc_lock_ref(node)
    assert cache.evict(10) == 1
    assert cache.match_len(pages(cache, 1, 2, 3)) == 3
    cache.check_invariants([node])
    cache.dec_lock_ref(node)
    assert cache.evict(10) == 3


def test_a_parent_unlocked_after_its_children_went_is_evictable() -> None:
    cache = make()
    put(cache, pages(cache, 1, 2))
    parent = cache.match_prefix(pages(cache, 1)).node
    cache.inc_lock_ref(parent)
    assert cache.evict(5) == 1
    cache.check_invariants([parent])
    cache.dec_lock_ref(parent)
    cache.check_invariants([])
    assert cache.evict(5) == 1


def evict_order(cache: RadixCache) -> list[int]:
    """First tokens (in thousands) of one-page entries, in the order in which they are evicted."""
    order = []
    left = {int(node.key[0]) for node in cache.iter_nodes()}
    while cache.evict(1):
        now = {int(node.key[0]) for node in cache.iter_nodes()}
        order += [token // 1000 for token in left - now]
        left = now
    return order


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("lru", [4, 1, 2, 3]), ("lfu", [4, 2, 3, 1]), ("fifo", [1, 2, 3, 4]), ("priority", [4, 1, 3, 2])],
)
def test_policies_order_eviction(policy: str, expected: Sequence[int]) -> None:
    cache = make(policy=policy)
    for token in (1, 2, 3, 4):
        put(cache, pages(cache, token), priority=5 if token == 2 else 0)
    for token in (1, 1, 1, 2, 3, 3):
        cache.match_prefix(pages(cache, token))
    assert evict_order(cache) == list(expected)


def test_an_insert_refreshes_but_is_no_hit() -> None:
    cache = make()
    node = put(cache, pages(cache, 1)).node
    put(cache, pages(cache, 2))
    cache.insert(pages(cache, 1), node.value)
    assert node.hits == 0
    assert evict_order(cache) == [2, 1]


def test_priority_rises_on_the_whole_path_and_never_falls() -> None:
    cache = make(policy="priority")
    low = put(cache, pages(cache, 1, 2), priority=1).node
    put(cache, pages(cache, 1, 3), priority=7)
    put(cache, pages(cache, 1, 3), priority=2)
    other = put(cache, pages(cache, 4), priority=3).node
    assert low.parent is not None
    assert (low.priority, low.parent.priority) == (1, 7)
    assert cache.evict(1) == 1
    assert low.parent is None
    assert cache.evict(1) == 1
    assert other.parent is None
    assert cache.match_len(pages(cache, 1, 3)) == 2


def test_lfu_counts_matches_through_split_nodes() -> None:
    cache = make(policy="lfu")
    node = put(cache, pages(cache, 1, 2)).node
    for _ in range(3):
        cache.match_prefix(pages(cache, 1, 2))
    prefix = cache.match_prefix(pages(cache, 1)).node
    assert (prefix.hits, node.hits) == (4, 3)


def test_unknown_policy_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="'random', choose one of lru, lfu, fifo, priority"):
        make(policy="random")
    assert EVICTION_POLICIES == ("lru", "lfu", "fifo", "priority")
