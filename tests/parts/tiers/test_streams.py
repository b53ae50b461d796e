"""Streams of the tiers' trees, from which a router learns what the tiers of a replica have."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from radixrt.mem_cache.granules import chain_hashes, seed_of
from radixrt.mem_cache.replica import CacheReplica
from radixrt.mem_cache.tree_node import path_of
from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.messages.kv_moves import STATE_TOKEN
from radixrt.parts.tiers.tier import Tier
from radixrt.parts.watch.scheduler import WINDOW, Watch
from radixrt.router.replica_index import Prefix, ReplicaIndex
from tests.parts.tiers.events import CHOICES, PREFIXES, SALTS, Events
from tests.parts.tiers.harness import TieredHarness


class Reader:
    """A reader of all streams of a scheduler, which begins again with each new scheduler.

    Attributes:
        replicas, indexes: copy of each tree, and index of its prefixes, by tier; "" for the KV pool.
    """

    def __init__(self, h: TieredHarness) -> None:
        self.h = h
        self.read()

    def read(self) -> None:
        h = self.h
        if getattr(self, "scheduler", None) is not h.scheduler:
            self.scheduler, self.watch = h.scheduler, h.scheduler.part(Watch)
            h.messages.clear()
            self.replicas: dict[str, CacheReplica] = {}
            self.indexes: dict[str, ReplicaIndex] = {}
            self.send(WatchCacheReq(usage=False, tiers=True))
        messages, h.messages = [*h.messages, *self.watch.turn(h.now)], []
        while messages:
            for message in messages:
                if isinstance(message, CacheEvents):
                    self.take(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=CacheEvents))
            messages = [*self.watch.turn(h.now)]

    def send(self, message: Any) -> None:
        assert not self.watch.handles()[type(message)](message, self.h.now)

    def take(self, batch: CacheEvents) -> None:
        if batch.tier not in self.replicas:
            self.replicas[batch.tier], self.indexes[batch.tier] = CacheReplica(), ReplicaIndex()
            self.indexes[batch.tier].add(0)
        assert self.replicas[batch.tier].apply(batch)
        assert self.indexes[batch.tier].apply(0, batch)
        self.send(CacheAck(batch.seq, batch.tier))

    def check(self) -> None:
        """Each copy has exactly the prefixes of its tier, and the states behind them."""
        for tier in (self.h.tiers.host, self.h.tiers.disk):
            if tier is not None:
                self._check(tier, self.replicas[tier.name], self.indexes[tier.name])

    def _check(self, tier: Tier, replica: CacheReplica, index: ReplicaIndex) -> None:
        assert replica.is_complete
        expected = []
        for node in tier.cache.iter_nodes():
            key, root = path_of(node)
            tokens = key[key != STATE_TOKEN]
            has_state = len(tokens) < len(key)
            expected.append((len(tokens), chain_hashes(bytes.fromhex(root)[:8], tokens.tobytes()), has_state))
        found = [(n.end, b"".join(n.granules()), n.has_state) for n in replica.nodes.values() if n.parent is not None]
        assert sorted(found) == sorted(expected)
        for salt in set(SALTS):
            for prompt in PREFIXES:
                tokens = np.array(prompt, np.int32)
                kept = self.h.tiers.kept(tokens, salt)[tier.name]
                prefix = Prefix(tokens.tobytes(), salt, len(tokens))
                matched = index.match(prefix).get(0, 0)
                if not self.h.sizes.state_rows:
                    assert matched == kept // 64 * 64
                elif kept % 64 == 0 or not matched:  # otherwise the index does not know the tokens before the state
                    assert index.state_len(0, prefix, matched) >= kept


@pytest.mark.parametrize("states", [0, 8])
@pytest.mark.parametrize("seed", range(6))
def test_readers_know_what_the_tiers_have_through_all_events(seed: int, states: int) -> None:
    draw = Random(seed).choice
    fixed = {"states": states, "state_rows": 70 if seed % 2 else 5, "file_pages": 40, "page_size": 1, "pages": 8}
    events = Events(**{key: draw(values) for key, values in CHOICES.items()} | fixed, check=False)
    reader, seen = Reader(events.h), 0
    try:
        for _ in range(120):
            events.happens(draw)
            reader.read()
            reader.check()
            seen = max(seen, *(len(index) for index in reader.indexes.values()))
    finally:
        events.h.close()
    assert seen, "no tier ever had anything"


def test_a_reader_that_wants_the_pool_alone_hears_of_no_tier() -> None:
    events = Events(**{key: values[0] for key, values in CHOICES.items()} | {"file_pages": 3}, check=False)
    reader = Reader(events.h)
    assert sorted(reader.replicas) == ["", "disk", "host"]
    reader.send(WatchCacheReq(usage=False))
    reader.replicas.clear()
    events.h.add("a", PREFIXES[3], max_tokens=1)
    events.h.rest(2.0)
    reader.read()
    assert list(reader.replicas) == [""]
    assert events.h.tiers.host.num_tokens
    assert len(events.h.tiers.host.cache.observers) == 1, "nothing is recorded"
    reader.send(WatchCacheReq(watch=False))
    assert not reader.watch.turn(0.0)
    events.h.close()


def test_a_window_and_its_acknowledgements_belong_to_one_tree() -> None:
    events = Events(**{key: values[0] for key, values in CHOICES.items()} | {"host_pages": 30}, check=False)
    reader = Reader(events.h)
    host = reader.watch._own["host"]
    host.window = 2
    events.h.add("a", PREFIXES[3], max_tokens=1)
    events.h.rest(2.0)  # the harness acknowledges nothing
    assert not host._records
    last = max(message.seq for message in events.h.messages if message.tier == "host")
    reader.send(CacheAck(last))
    assert not host._records, "the acknowledgement was for the pool"
    reader.send(CacheAck(last, "host"))
    assert host._records
    del reader.replicas["host"]
    host.window = WINDOW
    events.h.messages = [message for message in events.h.messages if message.tier != "host"]
    reader.read()
    reader.check()
    events.h.close()


def test_the_seed_of_a_namespace_is_the_beginning_of_its_name_in_tiers() -> None:
    events = Events(**{key: values[0] for key, values in CHOICES.items()}, check=False)
    reader = Reader(events.h)
    events.h.add("a", PREFIXES[3], max_tokens=1, cache_salt="b")
    events.h.rest(2.0)
    reader.read()
    roots = [
        node.hashes for node in reader.replicas["host"].nodes.values() if node.parent is None and node.num_children
    ]
    assert roots == [seed_of("b")]
    events.h.close()
