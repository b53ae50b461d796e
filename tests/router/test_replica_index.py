"""The index finds the longest prefix that each replica holds, by events, bookings, and states of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixrt.mem_cache.granules import GRANULE_TOKENS, seed_of
from radixrt.messages.cache_events import (
    CacheCleared,
    CacheEvent,
    CacheEvents,
    NodeEvicted,
    NodeInserted,
    NodeSplit,
    RootOpened,
    SnapshotHeader,
    StateSet,
)
from radixrt.router.replica_index import Prefix, ReplicaIndex

HEADER = SnapshotHeader(10_000, 1, GRANULE_TOKENS, "lru")
TOKENS = np.arange(1000, dtype=np.int32)


def prefix(length: int, namespace: str = "", tokens: np.ndarray = TOKENS) -> Prefix:
    return Prefix(tokens.tobytes(), namespace, length)


def inserted(node: int, parent: int, begin: int, end: int, *, has_state: bool = False) -> NodeInserted:
    """The node of tokens [begin, end) of TOKENS."""
    hashes = prefix(end).hashes[begin // GRANULE_TOKENS :]
    packed = b"".join(each.to_bytes(8, "little") for each in hashes)
    return NodeInserted(node, parent, end - begin, packed, 1, 1, has_state=has_state)


def batch(seq: int, *events: CacheEvent, begins: bool = False) -> CacheEvents:
    root = [RootOpened(1, seed_of(""))] if begins else []
    return CacheEvents(seq, 0, True, [*root, *events], HEADER if begins else None)


def make(*replicas: int) -> ReplicaIndex:
    index = ReplicaIndex()
    for replica in replicas:
        index.add(replica)
    return index


def test_each_replica_has_its_own_longest_prefix() -> None:
    index = make(0, 1, 2, 5)
    for replica, length in ((0, 700), (1, 200), (5, 640)):
        assert index.apply(replica, batch(1, inserted(2, 1, 0, length), begins=True))
    assert index.match(prefix(999)) == {0: 640, 1: 192, 5: 640}
    assert index.match(prefix(300)) == {0: 256, 1: 192, 5: 256}
    assert index.match(prefix(63)) == {}
    assert index.match(prefix(999, "salt")) == {}
    assert index.match(prefix(999, tokens=TOKENS + 1)) == {}
    index.drop(0)
    assert index.match(prefix(999)) == {1: 192, 5: 640}
    assert len(index) == 10


def test_granules_stay_where_they_end_through_splits_and_evictions() -> None:
    index = make(0)
    index.apply(0, batch(1, inserted(2, 1, 0, 100), inserted(3, 2, 100, 500), begins=True))
    index.apply(0, batch(2, NodeSplit(3, 4, 60)))  # at 160
    assert index.match(prefix(999)) == {0: 448}
    index.apply(0, batch(3, NodeEvicted(3)))
    assert index.match(prefix(999)) == {0: 128}
    index.apply(0, batch(4, inserted(5, 4, 160, 330)))
    assert index.match(prefix(999)) == {0: 320}
    index.apply(0, batch(5, NodeEvicted(5), NodeEvicted(4)))
    assert index.match(prefix(999)) == {0: 64}
    index.apply(0, batch(6, CacheCleared()))
    assert index.match(prefix(999)) == {}
    assert len(index) == 0


def test_after_a_gap_nothing_is_known_until_the_snapshot() -> None:
    index = make(0)
    assert not index.apply(0, batch(3, inserted(2, 1, 0, 200))), "no snapshot yet"
    assert index.apply(0, batch(4, inserted(2, 1, 0, 200), begins=True))
    assert not index.apply(0, batch(6, NodeEvicted(2)))
    assert index.match(prefix(999)) == {}
    assert not index.apply(0, batch(7))
    assert index.apply(0, batch(9, inserted(2, 1, 0, 400), begins=True))
    assert index.match(prefix(999)) == {0: 384}


def test_bookings_count_until_the_last_is_released() -> None:
    index = make(0, 1)
    one = index.book(0, prefix(400), 0)
    two = index.book(0, prefix(999), 384)
    assert index.match(prefix(999)) == {0: 960}
    index.release(0, one)
    assert index.match(prefix(300)) == {}
    index.release(0, two)
    assert index.match(prefix(999)) == {}
    assert index.num_booked == 0
    again = index.book(1, prefix(400), 0)
    index.drop(1)
    index.release(1, again)  # of a replica that is gone
    assert index.num_booked == 0


def test_a_prefix_without_a_state_is_no_hit() -> None:
    index = make(0)
    index.apply(0, batch(1, inserted(2, 1, 0, 500), begins=True))
    assert index.match(prefix(999)) == {0: 448}
    assert index.state_len(0, prefix(999), 448) == 0
    index.apply(0, batch(2, NodeSplit(2, 3, 150), StateSet(3, True)))
    assert index.state_len(0, prefix(999), 448) == 150
    assert index.state_len(0, prefix(140), 128) == 0, "the state is behind the prompt"
    index.apply(0, batch(3, StateSet(2, True)))
    assert index.state_len(0, prefix(999), 448) == 500, "it is within the granule behind the match"
    assert index.state_len(0, prefix(460), 448) == 150
    index.apply(0, batch(4, StateSet(2, False)))
    assert index.state_len(0, prefix(999), 448) == 150
    index.apply(0, batch(5, NodeEvicted(2), NodeEvicted(3)))
    assert index.state_len(0, prefix(999), 448) == 0


def test_a_state_before_the_first_granule_is_known_by_the_namespace() -> None:
    index = make(0)
    index.apply(0, batch(1, inserted(2, 1, 0, 40, has_state=True), begins=True))
    assert index.state_len(0, prefix(999), 0) == 40
    assert index.state_len(0, prefix(999, "salt"), 0) == 0


def test_booked_granules_are_not_searched_for_states() -> None:
    class Counting(dict[int, list[int]]):
        def get(self, key: int, default: Any = None) -> Any:
            searched.append(key)
            return super().get(key, default)

    searched: list[int] = []
    index, asked = make(0, 1), prefix(999)
    index.apply(0, batch(1, inserted(2, 1, 0, 100, has_state=True), begins=True))
    for replica in (0, 1):
        index.book(replica, asked, 0)
        index._trees[replica].states = Counting(index._trees[replica].states)
    assert index.longest_state(asked) == (100, [0])
    assert searched == [asked.hashes[0], asked.seed]
