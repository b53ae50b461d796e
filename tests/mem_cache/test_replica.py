"""A replica built from cache events equals the tree, through slices of snapshots, gaps, splits, evictions, resets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.mem_cache import EVICTION_POLICIES, RadixCache, TokenToKVPoolAllocator
from radixrt.mem_cache.granules import GRANULE_TOKENS, chain_hashes, prompt_hashes, seed_of
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.wire import pack_i32
from tests.mem_cache.replicas import Reader, check_equal


class Traffic:
    """Random calls of a cache: keys of a few long blocks, so that they share prefixes and split each other's runs."""

    def __init__(self, seed: int, page_size: int, policy: str, *, states: bool) -> None:
        self.random = random.Random(seed)
        self.allocator = TokenToKVPoolAllocator(4096, page_size)
        slots = StateSlotAllocator(24) if states else None
        self.cache = RadixCache(self.allocator, policy, slots)
        self.slots = slots
        self.locked: list[TreeNode] = []

    def key(self) -> np.ndarray:
        blocks = [
            np.full(self.random.choice([3, 40, 64, 100]), self.random.randrange(3), np.int32)
            for _ in range(self.random.randrange(1, 5))
        ]
        return np.concatenate(blocks)

    def namespace(self) -> str:
        return self.random.choice(["", "", "a", "b"])

    def step(self) -> None:
        calls = [self.insert] * 6 + [self.match] * 3 + [self.unlock] * 3 + [self.evict] * 2 + [self.retain] * 2
        calls += [self.state, self.state, self.reset]
        self.random.choice(calls)()

    def insert(self) -> None:
        cache, namespace = self.cache, self.namespace()
        key = self.key()
        whole = len(key) - len(key) % cache.page_size
        match = cache.match_prefix(key, namespace)
        cache.inc_lock_ref(match.node)
        need = whole - len(match.slots)
        if need > self.allocator.available():
            cache.evict(need - self.allocator.available())
        slots = self.allocator.alloc_extend(len(match.slots), need, 0) if need <= self.allocator.available() else None
        node = match.node
        if slots is not None and whole:
            result = cache.insert(
                key[:whole], np.concatenate([match.slots, slots]), namespace, self.random.choice([0, 0, 5])
            )
            assert result.existing_len == len(match.slots)
            node = result.node
            cache.inc_lock_ref(node)
            cache.dec_lock_ref(match.node)
        if self.random.random() < 0.3 and node.parent is not None:
            self.locked.append(node)
        else:
            cache.dec_lock_ref(node)

    def match(self) -> None:
        self.cache.match_prefix(self.key(), self.namespace())

    def unlock(self) -> None:
        if self.locked:
            self.cache.dec_lock_ref(self.locked.pop(self.random.randrange(len(self.locked))))

    def evict(self) -> None:
        self.cache.evict(self.random.choice([1, 50, 400]))

    def retain(self) -> None:
        nodes = list(self.cache.iter_nodes())
        if nodes:
            self.cache.set_retention(self.random.choice(nodes), self.random.randrange(4))

    def state(self) -> None:
        nodes = [node for node in self.cache.iter_nodes() if node.state is None]
        if self.slots is None or self.cache.node_states is None or not nodes:
            return
        slot = self.slots.alloc()
        if slot is None:
            self.cache.node_states.evict()
        else:
            self.cache.node_states.attach(self.random.choice(nodes), slot)

    def reset(self) -> None:
        if self.random.random() < 0.1:
            self.cache.reset()


CASES = [(policy, 1, False) for policy in EVICTION_POLICIES] + [("lru", 16, False), ("lru", 1, True), ("lfu", 1, True)]


@pytest.mark.parametrize(("policy", "page_size", "states"), CASES)
def test_the_replica_equals_the_tree(policy: str, page_size: int, states: bool) -> None:
    traffic = Traffic(len(policy) + page_size, page_size, policy, states=states)
    reader = Reader(traffic.cache)
    for _ in range(60):
        traffic.step()
    reader.snapshot()
    equal = 0
    for number in range(700):
        traffic.step()
        what = traffic.random.random()
        if what < 0.02:
            reader.take(200, lost=True)
        elif what < 0.5 and not reader.take(200):
            reader.snapshot()
        if number % 250 == 249:
            traffic.cache.check_invariants()
        if reader.replica.is_complete and not reader.journal.events and reader.take(200):
            check_equal(reader.replica, traffic.cache)
            equal += 1
    assert equal > 100
    while not reader.take(10**6) or not reader.replica.is_complete:
        reader.snapshot()
    check_equal(reader.replica, traffic.cache)


def test_a_snapshot_in_slices_covers_what_happens_between_them() -> None:
    """A split of a node that was not announced yet, whose old end is evicted before the snapshot comes there."""
    traffic = Traffic(0, 1, "lru", states=False)
    cache, allocator = traffic.cache, traffic.allocator
    for key in ([1] * 100, [2] * 100, [3] * 100):
        cache.insert(np.array(key, np.int32), allocator.alloc_extend(0, 100, 0))
    reader = Reader(cache)
    reader.snapshot()
    assert reader.take(1)  # the root alone
    assert not reader.replica.is_complete
    for first in (1, 2, 3):
        cache.match_prefix(np.full(70, first, np.int32))  # splits
    cache.evict(1)
    assert reader.take(10**6)
    check_equal(reader.replica, cache)
    assert sorted(node.tokens for node in reader.replica.nodes.values()) == [0, 30, 30, 70, 70, 70]


def test_a_batch_that_is_missing_is_noticed() -> None:
    traffic = Traffic(0, 1, "lru", states=False)
    reader = Reader(traffic.cache)
    assert not reader.take(100)  # no snapshot yet
    reader.snapshot()
    assert reader.take(100)
    traffic.insert()
    assert reader.take(100, lost=True)
    traffic.insert()
    assert not reader.take(100)
    assert not reader.replica.is_complete
    assert not reader.take(100)  # nothing but a snapshot helps
    reader.snapshot()
    assert reader.take(10**6)
    check_equal(reader.replica, traffic.cache)


def test_a_cache_that_nobody_watches_records_nothing() -> None:
    traffic = Traffic(0, 1, "lru", states=False)
    for _ in range(50):
        traffic.step()
    assert not traffic.cache.observers
    reader = Reader(traffic.cache)
    reader.snapshot()
    reader.take(10**6)
    assert reader.journal.node(1) is not None
    traffic.cache.unwatch(reader.journal)
    traffic.cache.match_prefix(traffic.key())
    assert not reader.journal.events


def test_granules_are_known_by_their_chain() -> None:
    tokens = pack_i32(range(200))
    hashes = prompt_hashes(tokens, "ns")
    assert len(hashes) == 8 * (200 // GRANULE_TOKENS)
    assert chain_hashes(seed_of("ns"), tokens) == hashes
    first = 4 * GRANULE_TOKENS
    assert chain_hashes(hashes[:8], tokens[first:]) == hashes[8:]  # goes on where it stopped
    assert prompt_hashes(tokens, "other")[:8] != hashes[:8]
    assert prompt_hashes(pack_i32([1, *range(1, 200)]), "ns")[16:] != hashes[16:]  # all tokens before count
    # Routers of other versions must compute the same.
    assert prompt_hashes(pack_i32(range(64))).hex() == "6a7f1ec3697450d5"
