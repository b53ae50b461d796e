from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache import EVICTION_POLICIES, InsertResult, RadixCache, TokenToKVPoolAllocator, TreeNode

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


# --- match and insert ---


@PAGE_SIZES
def test_what_is_inserted_is_matched_by_whole_pages(page_size: int) -> None:
    cache = make(page_size)
    key = pages(cache, 1, 2, 3, tail=page_size - 1)
    slots = cache.allocator.alloc_extend(0, len(key), 0)
    existing, node, retained = cache.insert(key, slots)
    assert (existing, retained) == (0, 3 * page_size)
    assert cache.total_size == cache.evictable_size == retained
    found, end, *_ = cache.match_prefix(key)
    assert end is node
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, slots[:retained])
    np.testing.assert_array_equal(cache.path_slots(node), slots[:retained])
    np.testing.assert_array_equal(node.key, key[:retained])
    np.testing.assert_array_equal(node.value, slots[:retained])
    cache.check_invariants([])


@PAGE_SIZES
def test_empty_matches_return_the_root_of_the_namespace(page_size: int) -> None:
    cache = make(page_size)
    put(cache, pages(cache, 1, 2))
    for key in (pages(cache), pages(cache, 9), pages(cache, tail=page_size - 1)):
        slots, node, *_ = cache.match_prefix(key)
        assert len(slots) == 0
        assert slots.dtype == np.int32
        assert node.parent is None
        assert node.num_tokens == 0
        assert node is cache.match_prefix(pages(cache)).node
    result = cache.insert(pages(cache, tail=page_size - 1), np.zeros(page_size - 1, np.int32))
    assert (result.existing_len, result.node, result.retained_len) == (0, node, 0)


def test_a_page_matches_as_a_whole_or_not_at_all() -> None:
    cache = make(4)
    put(cache, pages(cache, 1, 2))
    key = pages(cache, 1, 2)
    key[6] = -1
    assert len(cache.match_prefix(key).slots) == 4
    key[3] = -1
    assert len(cache.match_prefix(key).slots) == 0
    assert len(cache.match_prefix(pages(cache, 1, 2)[:7]).slots) == 4
    assert len(cache.match_prefix(pages(cache, 1, 2)[:3]).slots) == 0


@PAGE_SIZES
def test_a_match_that_ends_inside_a_node_splits_it(page_size: int) -> None:
    cache = make(page_size)
    node = put(cache, pages(cache, 1, 2, 3)).node
    whole = cache.path_slots(node).copy()
    slots, prefix, *_ = cache.match_prefix(pages(cache, 1, 8))
    np.testing.assert_array_equal(slots, whole[:page_size])
    assert prefix is not node
    assert node.parent is prefix
    assert tokens_on_path(prefix) == pages(cache, 1).tolist()
    assert tokens_on_path(node) == pages(cache, 1, 2, 3).tolist()
    np.testing.assert_array_equal(cache.path_slots(node), whole)
    assert cache.total_size == 3 * page_size
    cache.check_invariants([])


@PAGE_SIZES
def test_a_split_keeps_the_suffix_as_the_same_object_with_the_same_locks(page_size: int) -> None:
    cache = make(page_size)
    node = put(cache, pages(cache, 1, 2, 3)).node
    cache.inc_lock_ref(node)
    cache.inc_lock_ref(node)
    prefix = cache.match_prefix(pages(cache, 1, 2, 7)).node
    assert node.parent is prefix
    assert prefix.lock_ref == node.lock_ref == 2
    assert cache.protected_size == 3 * page_size
    assert cache.evictable_size == 0
    cache.check_invariants([node, node])
    cache.dec_lock_ref(node)
    cache.dec_lock_ref(node)
    assert cache.evictable_size == 3 * page_size
    cache.check_invariants([])


@PAGE_SIZES
def test_insert_reports_what_existed_and_keeps_its_own_slots_there(page_size: int) -> None:
    cache = make(page_size)
    allocator = cache.allocator
    first = allocator.alloc_extend(0, 3 * page_size, 0)
    second = allocator.alloc_extend(0, 3 * page_size, 0)
    cache.insert(pages(cache, 1, 2, 3), first)
    result = cache.insert(pages(cache, 1, 2, 4), second)
    assert (result.existing_len, result.retained_len) == (2 * page_size, 3 * page_size)
    np.testing.assert_array_equal(
        cache.path_slots(result.node), np.concatenate([first[: 2 * page_size], second[2 * page_size :]])
    )
    allocator.free(second[: result.existing_len])
    cache.check_invariants([])
    assert cache.total_size + allocator.available() == allocator.num_slots


@PAGE_SIZES
def test_an_insert_that_ends_inside_a_node_returns_a_node_that_ends_there(page_size: int) -> None:
    cache = make(page_size)
    node = put(cache, pages(cache, 1, 2, 3)).node
    result = put(cache, pages(cache, 1, 2, tail=page_size - 1))
    assert (result.existing_len, result.retained_len) == (2 * page_size, 2 * page_size)
    assert tokens_on_path(result.node) == pages(cache, 1, 2).tolist()
    assert node.parent is result.node


@PAGE_SIZES
def test_inserting_the_same_again_adds_nothing(page_size: int) -> None:
    cache = make(page_size)
    node = put(cache, pages(cache, 1, 2)).node
    again = put(cache, pages(cache, 1, 2))
    assert again == (2 * page_size, node, 2 * page_size)
    assert cache.stats.inserted_tokens == cache.total_size == 2 * page_size


def test_insert_copies_and_results_cannot_be_written() -> None:
    cache = make()
    key, slots = pages(cache, 1, 2), cache.allocator.alloc_extend(0, 2, 0)
    node = cache.insert(key, slots).node
    slots[:], key[:] = 0, 0
    found = cache.match_prefix(pages(cache, 1, 2)).slots
    np.testing.assert_array_equal(found, [1, 2])
    for array in (found, node.key, node.value, cache.path_slots(node)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_keys_of_other_integer_types_and_strides_are_the_same_key() -> None:
    cache = make()
    key = np.arange(12, dtype=np.int32)
    cache.insert(key[::2], cache.allocator.alloc_extend(0, 6, 0).astype(np.int64))
    assert cache.match_len(np.arange(0, 12, 2)) == cache.match_len(key[::2].copy()) == 6
    cache.check_invariants()


def test_key_and_slots_must_be_as_long() -> None:
    with pytest.raises(ValueError, match="3 tokens but 2 slots"):
        make().insert(np.zeros(3, np.int32), np.zeros(2, np.int32))


@PAGE_SIZES
def test_match_len_neither_splits_nor_touches_nor_counts(page_size: int) -> None:
    cache = make(page_size)
    node = put(cache, pages(cache, 1, 2, 3)).node
    put(cache, pages(cache, 5))
    stats, hits, access = repr(cache.stats), node.hits, node.last_access
    key = pages(cache, 1, 2, 9, tail=page_size - 1)
    assert cache.match_len(key) == 2 * page_size
    assert cache.match_len(pages(cache, 1, 2, 3, 4)) == 3 * page_size
    assert cache.match_len(pages(cache, 6)) == cache.match_len(pages(cache)) == 0
    assert cache.match_len(key, "nobody") == 0
    assert len(list(cache.iter_nodes())) == 2
    assert (repr(cache.stats), node.hits, node.last_access) == (stats, hits, access)
    assert len(cache.match_prefix(key).slots) == 2 * page_size


def test_stats_count_tokens() -> None:
    cache = make(4, num_pages=8)
    put(cache, pages(cache, 1, 2, tail=3))
    put(cache, pages(cache, 1, 3))
    stats = cache.stats
    assert (stats.queries, stats.hit_tokens, stats.miss_tokens, stats.inserted_tokens) == (2, 4, 15, 12)
    assert stats.evicted_tokens == 0
    cache.evict(1)
    assert stats.evicted_tokens == 4
    assert cache.reset()
    assert stats.evicted_tokens == 12


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


# --- namespaces ---


@PAGE_SIZES
def test_namespaces_share_nothing_and_see_nothing_of_each_other(page_size: int) -> None:
    cache = make(page_size)
    key = pages(cache, 1, 2)
    nodes = {name: put(cache, key, name).node for name in ("", "a", "b")}
    assert cache.total_size == 6 * page_size
    assert len({id(node) for node in nodes.values()}) == 3
    found = [cache.match_prefix(key, name).slots.tolist() for name in ("", "a", "b")]
    assert len({slot for slots in found for slot in slots}) == 6 * page_size
    assert cache.match_len(key, "ab") == cache.match_len(key, "c") == 0
    assert cache.match_prefix(key, "c").node not in {node.parent for node in nodes.values()}
    cache.check_invariants([])


def test_namespace_and_key_are_not_concatenated() -> None:
    cache = make()
    put(cache, np.array([ord("a"), 5, 6], np.int32), "")
    put(cache, np.array([5, 6], np.int32), "a")
    put(cache, np.array([6], np.int32), "a\x05\x00\x00\x00")
    assert cache.match_len(np.array([ord("a"), 5, 6], np.int32), "a") == 0
    assert cache.match_len(np.array([5, 6], np.int32), "") == 0
    assert cache.total_size == 6


def test_namespaces_compete_in_one_order() -> None:
    cache = make()
    put(cache, pages(cache, 1), "a")
    put(cache, pages(cache, 1), "b")
    put(cache, pages(cache, 2), "a")
    cache.match_prefix(pages(cache, 1), "a")
    assert cache.evict(1) == 1
    assert cache.match_len(pages(cache, 1), "b") == 0
    assert cache.evict(1) == 1
    assert cache.match_len(pages(cache, 2), "a") == 0
    assert cache.match_len(pages(cache, 1), "a") == 1


def test_empty_namespaces_cost_no_memory() -> None:
    cache = make()
    for i in range(100):
        node = cache.match_prefix(pages(cache, 1), f"asked-{i}").node
        cache.inc_lock_ref(node)
        cache.check_invariants([node])
        cache.dec_lock_ref(node)
        cache.insert(pages(cache), pages(cache), f"nothing-{i}")
        put(cache, pages(cache, 1), f"used-{i}")
        cache.evict(1)
    assert list(cache._roots) == [""]
    put(cache, pages(cache, 1), "kept")
    assert list(cache._roots) == ["", "kept"]
    assert cache.reset()
    assert list(cache._roots) == [""]


def test_a_lock_on_a_namespace_without_entries_survives_its_tree_coming_and_going() -> None:
    cache = make()
    early = cache.match_prefix(pages(cache, 1), "a").node
    cache.inc_lock_ref(early)
    node = put_keep(cache, pages(cache, 1), "a", [early])
    late = cache.match_prefix(pages(cache, 2), "a").node
    assert late is node.parent
    cache.inc_lock_ref(late)
    cache.check_invariants([early, late])
    cache.evict(1)
    cache.check_invariants([early, late])
    put_keep(cache, pages(cache, 3), "a", [early, late])
    cache.dec_lock_ref(late)
    cache.dec_lock_ref(early)
    cache.check_invariants([])
    assert cache.match_len(pages(cache, 3), "a") == 1


def put_keep(cache: RadixCache, key: np.ndarray, namespace: str, live: list[TreeNode]) -> TreeNode:
    node = cache.insert(key, cache.allocator.alloc_extend(0, len(key), 0), namespace).node
    cache.check_invariants(live)
    return node


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


# --- the package ---


def test_imports_neither_torch_nor_pickle_itself() -> None:
    code = (
        "import sys; import numpy, sortedcontainers; before = set(sys.modules); import radixrt.mem_cache;"
        "new = set(sys.modules) - before; assert not {'torch', 'pickle', 'msgspec'} & new, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_nodes_are_small() -> None:
    cache = make()
    leaf = put(cache, pages(cache, 1)).node
    assert not hasattr(leaf, "__dict__")
    assert sys.getsizeof(leaf) <= 120
    assert leaf.children is cache.match_prefix(pages(cache, 1)).node.children
