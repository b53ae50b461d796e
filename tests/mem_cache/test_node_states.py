"""States at the nodes of a radix cache: what a match finds, what a split leaves, and which state is evicted first."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache import ChunkCache, RadixCache, StateSlotAllocator, TokenToKVPoolAllocator, TreeNode
from radixrt.mem_cache.tree_node import RETAIN_DONE, RETAIN_LEASED


def ids(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def make(num_states: int = 6, num_slots: int = 200) -> RadixCache:
    return RadixCache(TokenToKVPoolAllocator(num_slots), "lru", StateSlotAllocator(num_states))


def put(cache: RadixCache, key: np.ndarray, *, state: bool = True, uses: int = 1) -> TreeNode:
    """Insert a key, with a state at its end."""
    existing = cache.match_len(key) if cache.node_states is None else 0
    slots = cache.allocator.alloc_extend(existing, len(key), 0)
    assert slots is not None
    result = cache.insert(key, slots)
    cache.allocator.free(slots[: result.existing_len])
    if state:
        slot = cache.node_states.slots.alloc()
        assert slot is not None
        assert cache.node_states.attach(result.node, slot, uses)
    cache.check_invariants()
    return result.node


def states(cache: RadixCache) -> list[int]:
    """Lengths of the prefixes that have states, ascending."""
    return sorted(sum(n.num_tokens for n in node.path()) for node in cache.iter_nodes() if node.state is not None)


def test_a_match_ends_at_the_deepest_state_and_says_how_far_the_keys_go() -> None:
    cache = make()
    put(cache, ids(0, 10))
    put(cache, ids(0, 30), state=False)
    match = cache.match_prefix(ids(0, 25))
    assert (len(match.slots), match.state_len) == (25, 10)
    assert match.state_node.state.slot >= 2
    assert cache.match_len(ids(0, 25)) == 10
    nothing = cache.match_prefix(ids(0, 9))
    assert (len(nothing.slots), nothing.state_node, nothing.state_len) == (9, None, 0)


def test_a_split_leaves_the_upper_part_without_a_state() -> None:
    cache = make()
    node = put(cache, ids(0, 20))
    above = cache.match_prefix(np.concatenate([ids(0, 12), ids(90, 5)])).node
    assert above is node.parent
    assert above.state is None
    assert states(cache) == [20]
    cache.check_invariants()


def test_the_state_that_costs_least_to_compute_again_goes_first() -> None:
    cache = make()
    put(cache, ids(0, 40))
    put(cache, ids(0, 45))  # 5 tokens behind the one above
    put(cache, np.concatenate([ids(0, 40), ids(60, 20)]))
    assert cache.node_states.evict()
    assert states(cache) == [40, 60]
    assert cache.node_states.evict()
    assert states(cache) == [40]
    assert cache.node_states.evicted == 2
    cache.check_invariants()


def test_a_state_is_worth_more_once_the_one_above_it_is_gone() -> None:
    cache = make()
    put(cache, ids(0, 20))
    below = put(cache, ids(0, 30), uses=3)
    put(cache, ids(100, 25))
    # The value of `below` was 3 * 10 when it was attached; that of the first is 20.
    assert cache.node_states.evict()
    assert cache.node_states.rank(below)[1] == 3 * 30
    assert cache.node_states.evict()
    assert states(cache) == [30]


def test_uses_count_and_a_state_that_is_not_used_grows_old() -> None:
    cache = make(num_states=4)
    used = put(cache, ids(0, 10))
    for _ in range(4):
        cache.node_states.use(used)
    put(cache, ids(100, 20))
    survived = []
    for i in range(2, 5):
        # The newcomers are worth 20, 40 and 60, for the clock is at the value of what went; the old one stays at 50.
        assert cache.node_states.evict()
        survived.append(used.state is not None)
        if used.state is not None:
            put(cache, ids(100 * i, 20))
    assert survived == [True, True, False]


def test_a_state_that_one_request_has_passed_is_worth_little_and_a_fork_is_not() -> None:
    cache = make(num_states=8)
    turn, fork = put(cache, ids(0, 40)), put(cache, ids(100, 40))
    for node in (turn, fork):
        cache.node_states.use(node)
    put(cache, ids(0, 60))
    put(cache, ids(100, 60))
    put(cache, np.concatenate([ids(100, 40), ids(180, 20)]))
    assert cache.node_states.evict()
    assert turn.state is None
    assert cache.node_states.rank(fork)[1] == 2 * 40


def test_retention_counts_before_the_value() -> None:
    cache = make()
    leased = put(cache, ids(0, 5))
    big, done = put(cache, ids(100, 50)), put(cache, ids(200, 50), uses=9)
    cache.set_retention(leased, RETAIN_LEASED)
    cache.set_retention(done, RETAIN_DONE)
    for node in (done, big, leased):
        assert node.state is not None
        cache.node_states.evict()
        assert node.state is None


def test_a_pinned_state_stays_and_its_owner_may_take_it_back() -> None:
    cache = make()
    node = put(cache, ids(0, 5))
    slot = node.state.slot
    cache.inc_lock_ref(node)
    cache.node_states.pin(node)
    assert not cache.node_states.evict()
    assert cache.node_states.evictable == 0
    with pytest.raises(InvariantError):
        cache.node_states.drop(node)
    assert cache.node_states.take(node) == slot
    cache.node_states.slots.free(slot)
    cache.dec_lock_ref(node)
    cache.check_invariants()


def test_nothing_is_evicted_for_a_state_that_is_worth_less() -> None:
    cache = make()
    small, large = put(cache, ids(0, 5)), put(cache, ids(100, 50))
    states_ = cache.node_states
    assert not states_.evict(below=states_.rank(small))
    assert states_.evict(below=states_.rank(large))
    assert states(cache) == [50]


def test_tokens_without_a_state_behind_them_are_evicted_first() -> None:
    cache = make(num_slots=60)
    put(cache, ids(0, 20))
    put(cache, ids(100, 20), state=False)
    cache.match_prefix(ids(100, 20))  # used last
    cache.evict(1)
    assert cache.match_prefix(ids(100, 20)).slots.size == 0
    assert cache.match_len(ids(0, 20)) == 20
    cache.evict(1)
    assert len(cache.node_states) == 0
    assert cache.node_states.slots.available() == 4


def test_many_attached_and_evicted_states_leave_nothing_behind() -> None:
    cache = make(num_states=4)
    for i in range(500):
        if not cache.node_states.slots.available():
            cache.node_states.evict()
        put(cache, ids(i % 7 * 1000, 1 + i % 5), state=False)
        node = cache.match_prefix(ids(i % 7 * 1000, 1 + i % 5)).node
        if node.state is None:
            cache.node_states.attach(node, cache.node_states.slots.alloc())
        else:
            cache.node_states.use(node)
            cache.node_states.retention_changed(node)
    assert len(cache.node_states._heap) < 200
    cache.node_states.evict_all()
    assert cache.node_states.slots.available() == 2
    assert cache.reset()


def test_a_cache_that_is_off_attaches_nothing() -> None:
    cache = ChunkCache(TokenToKVPoolAllocator(8), StateSlotAllocator(4))
    assert not cache.node_states.attach(cache.match_prefix(ids(0, 3)).node, 2)


def test_states_need_pages_of_one_token() -> None:
    with pytest.raises(ValueError, match="page_size 1, got 2"):
        RadixCache(TokenToKVPoolAllocator(8, 2), "lru", StateSlotAllocator(4))


def test_slots_are_allocated_once_and_never_the_reserved_ones() -> None:
    slots = StateSlotAllocator(5)
    taken = [slots.alloc() for _ in range(4)]
    assert taken == [2, 3, 4, None]
    slots.free(3)
    for bad in (3, 0, 1, 5):
        with pytest.raises(InvariantError, match=f"state slot {bad} of 2..4"):
            slots.free(bad)
    assert slots.alloc() == 3
    with pytest.raises(ValueError, match="at least 3"):
        StateSlotAllocator(2)
