"""Matching and inserting in the radix cache, and its namespaces."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.mem_cache.radix_trees import PAGE_SIZES, make, pages, put, put_keep, tokens_on_path

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
    assert cache.total_size == 2 * page_size


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
    hits, access = node.hits, node.last_access
    key = pages(cache, 1, 2, 9, tail=page_size - 1)
    assert cache.match_len(key) == 2 * page_size
    assert cache.match_len(pages(cache, 1, 2, 3, 4)) == 3 * page_size
    assert cache.match_len(pages(cache, 6)) == cache.match_len(pages(cache)) == 0
    assert cache.match_len(key, "nobody") == 0
    assert len(list(cache.iter_nodes())) == 2
    assert (node.hits, node.last_access) == (hits, access)
    assert len(cache.match_prefix(key).slots) == 2 * page_size


def test_evicted_tokens_are_counted() -> None:
    cache = make(4, num_pages=8)
    put(cache, pages(cache, 1, 2, tail=3))
    put(cache, pages(cache, 1, 3))
    assert cache.evicted_tokens == 0
    cache.evict(1)
    assert cache.evicted_tokens == 4
    assert cache.reset()
    assert cache.evicted_tokens == 12


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
