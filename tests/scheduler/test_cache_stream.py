"""The stream of cache events of a scheduler: equal replicas, slow readers, events and views of requests."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from radixrt.mem_cache.granules import seed_of
from radixrt.mem_cache.replica import CacheReplica
from radixrt.messages.cache_events import (
    CacheAck,
    CacheEvents,
    FromWatched,
    NodeTokens,
    NodeTokensReq,
    PageWatch,
    PageWatched,
    RequestAdmitted,
    RequestEnded,
    RequestPublished,
    RequestViews,
    WatchCacheReq,
)
from radixrt.messages.parts import ProgramHint
from radixrt.messages.wire import unpack_i32
from radixrt.parts.watch.scheduler import CacheStream, Watch
from radixrt.router.replica_index import ReplicaIndex
from tests.mem_cache.replicas import check_equal
from tests.scheduler.fake_runner import VOCAB, Harness

WIRE = msgspec.msgpack.Decoder(FromWatched)


class Watched:
    """A harness, its stream, and a reader that applies what comes; `batches` are those not yet acknowledged."""

    def __init__(self, *, requests: bool = False, **options: object) -> None:
        self.h = Harness(**options)  # type: ignore[arg-type]
        self.stream = CacheStream(self.h.scheduler.core)
        self.replica = CacheReplica()
        self.requests = requests
        self.batches: list[CacheEvents] = []
        self.events: list[object] = []
        self.views: RequestViews | None = None
        self.snapshots = 0

    def watch(self) -> None:
        self.stream.handle(WatchCacheReq(True, self.requests))

    def turn(self) -> None:
        for message in self.stream.turn(self.h.now):
            message = WIRE.decode(msgspec.msgpack.encode(message))
            if isinstance(message, CacheEvents):
                self.batches.append(message)
                self.events += message.events
                self.snapshots += message.header is not None
                if not self.replica.apply(message):
                    self.watch()
            elif isinstance(message, RequestViews):
                self.views = message

    def acknowledge(self) -> None:
        if self.batches:
            self.stream.handle(CacheAck(self.batches[-1].seq))
            self.batches.clear()

    def catch_up(self) -> None:
        """Let the reader read everything."""
        for _ in range(100):
            self.acknowledge()
            self.turn()
            if self.replica.is_complete and not self.stream.is_busy and not self.batches:
                return
        raise AssertionError("the reader never caught up")


@pytest.mark.parametrize("num_states", [0, 12])
def test_the_replica_equals_the_tree_of_a_busy_scheduler(num_states: int) -> None:
    """Through admissions, forks, aborts, evictions, flushes, failed steps, dead runners and a reader that pauses."""
    rng = random.Random(5 + num_states)
    w = Watched(requests=True, num_slots=96, num_states=num_states, min_gap=2, max_context=64)
    w.stream.window = 40
    prefixes = [[], [1] * 9, [1, 2, 3, 4] * 5, [9] * 17, [7, 8, 9] * 8]
    hints = [None, ProgramHint("p", "0", 4, 2, True), ProgramHint("q", "1", 8, 3)]
    slow, equal = False, 0
    for number in range(900):
        what = rng.random()
        if what < 0.25:
            suffix = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 10))]
            w.h.add(
                f"r{number}", rng.choice(prefixes) + suffix, max_tokens=rng.choice([1, 4, 12]), ignore_eos=True,
                cache_salt=rng.choice(["", "", "a"]), program=rng.choice(hints),
            )  # fmt: skip
        elif what < 0.27:
            w.h.scheduler.abort(f"r{rng.randrange(number + 1)}", w.h.now)
            w.h.take()
        elif what < 0.28:
            w.h.scheduler.flush_cache()
        elif what < 0.285 and w.h.inflight:
            w.h.fail()
        elif what < 0.29:
            w.h.kill()
            w.h.restart()
        else:
            w.h.turn()
        w.h.now += 0.05
        if number == 30:
            w.watch()
        w.turn()
        if w.replica.is_complete and w.h.cache.observers:
            check_equal(w.replica, w.h.cache)
            equal += 1
        slow ^= rng.random() < 0.1
        if not slow:
            w.acknowledge()
    w.catch_up()
    check_equal(w.replica, w.h.cache)
    assert equal > 300
    assert w.snapshots > 2, "the slow reader never lost an event"
    w.stream.handle(WatchCacheReq(False))
    assert not w.h.cache.observers
    assert not w.stream.is_on


def test_a_reader_that_reads_nothing_costs_a_window() -> None:
    w = Watched(num_slots=256)
    w.watch()
    w.stream.window = 20
    for number in range(60):
        w.h.add(f"r{number}", [number % 40 + 1] * 8, ignore_eos=True)
        w.h.drain()
        w.turn()
    assert sum(len(batch.events) + 1 for batch in w.batches) <= 20 + max(len(batch.events) + 1 for batch in w.batches)
    assert not w.h.cache.observers, "the cache is not observed any more"
    assert w.stream.is_on
    assert not w.replica.is_complete or w.replica.num_tokens != w.h.cache.total_size
    w.catch_up()
    assert w.snapshots == 2
    check_equal(w.replica, w.h.cache)


def test_a_snapshot_goes_as_it_is_acknowledged() -> None:
    w = Watched(num_slots=2048, max_running_requests=64)
    for number in range(200):
        w.h.add(f"r{number}", [number % 49 + 1, number // 49 + 1] * 2, max_tokens=1)
    w.h.drain()
    w.stream.window = 100
    w.watch()
    for _ in range(5):
        w.turn()
    assert not w.stream.is_busy, "it waits for the reader"
    w.catch_up()
    assert w.snapshots == 1, "a large tree does not overflow its own window"
    check_equal(w.replica, w.h.cache)


def test_events_and_views_of_requests() -> None:
    w = Watched(requests=True, num_slots=256, max_running_requests=1)
    w.watch()
    w.turn()
    w.h.add("first", [5] * 20, max_tokens=3, ignore_eos=True)
    w.h.drain()
    w.h.add("second", [5] * 20 + [6] * 10, max_tokens=3, ignore_eos=True, program=ProgramHint("p", "b"))
    w.h.add("third", [5] * 20 + [7], max_tokens=3, ignore_eos=True, cache_salt="x")
    w.h.turn()
    w.h.now += 1.0
    w.turn()
    assert w.views is not None
    assert (w.views.running, w.views.waiting) == (1, 1)
    running, waiting = w.views.views
    assert (running.rid, running.program, running.branch) == ("second", "p", "b")
    assert (running.prompt_tokens, running.cached_tokens, running.max_tokens) == (30, 20, 3)
    assert w.replica.nodes[running.node].end == 30
    assert (waiting.rid, waiting.state, waiting.cached_tokens, waiting.node) == ("third", "waiting", 0, 0)
    assert waiting.seed == seed_of("x")
    w.h.drain()
    w.turn()
    admitted = {e.rid: e for e in w.events if isinstance(e, RequestAdmitted)}
    assert (admitted["first"].cached_tokens, admitted["second"].cached_tokens) == (0, 20)
    assert (admitted["second"].prompt_tokens, admitted["second"].reusable_tokens) == (30, 29)
    published = [e for e in w.events if isinstance(e, RequestPublished) and e.rid == "second"]
    assert [(e.start, e.existing, e.end) for e in published] == [(20, 20, 30), (30, 30, 32)]
    assert [e.rid for e in w.events if isinstance(e, RequestEnded)] == ["first", "second", "third"]


def test_views_are_sent_only_where_requests_are_watched() -> None:
    w = Watched(num_slots=64)
    w.watch()
    w.h.add("r", [5] * 20)
    w.h.drain()
    w.h.now += 10.0
    w.turn()
    assert w.views is None
    assert not any(isinstance(e, RequestAdmitted | RequestPublished | RequestEnded) for e in w.events)


def test_tokens_of_a_node_are_given_on_request() -> None:
    w = Watched(num_slots=64)
    w.h.add("r", [5] * 10 + [6] * 10, max_tokens=1)
    w.h.drain()
    w.watch()
    w.turn()
    (node,) = [node for node in w.replica.nodes.values() if node.tokens]
    (answer,) = w.stream.handle(NodeTokensReq("1", node.number, 12))
    assert isinstance(answer, NodeTokens)
    assert unpack_i32(answer.token_ids).tolist() == [5] * 10 + [6] * 2
    for number in (0, -1, 10**9):
        assert w.stream.handle(NodeTokensReq("2", number, 12)) in ([NodeTokens("2", None)], [NodeTokens("2", b"")])
    assert w.stream.handle(NodeTokensReq("3", node.number, -5)) == [NodeTokens("3", b"")]


def test_a_cache_that_is_off_has_an_empty_tree() -> None:
    w = Watched(cache=False)
    w.watch()
    w.h.add("r", [5] * 10)
    w.h.drain()
    w.turn()
    assert w.replica.is_complete
    assert not w.replica.nodes
    assert w.replica.header is not None
    assert (w.replica.header.enabled, w.replica.header.policy) == (False, "none")


def test_a_router_and_a_page_read_the_same_tree_side_by_side() -> None:
    """Each has a snapshot, numbers of nodes and a window of its own, and one leaves without a trace at the other."""
    rng = random.Random(3)
    harness = Harness(num_slots=200, max_context=128)
    watch, index, page = harness.scheduler.part(Watch), ReplicaIndex(), CacheReplica()

    def handle(message: Any) -> None:
        watch.handles()[type(message)](message, harness.now)

    index.add(7)
    handle(WatchCacheReq(usage=False))
    published = 0
    for number in range(300):
        prompt = [number % 3 + 1] * 64 + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 20))]
        harness.add(f"r{number}", prompt, max_tokens=2, ignore_eos=True)
        harness.drain()
        if number == 100:
            handle(PageWatch(7, WatchCacheReq(requests=True)))
        if number == 200:
            handle(PageWatch(7, WatchCacheReq(watch=False)))
            check_page = page.num_tokens
        for message in watch.turn(harness.now):
            if isinstance(message, PageWatched):
                assert message.replica == 7
                if isinstance(message.message, CacheEvents):
                    assert page.apply(message.message)
                    published += sum(isinstance(event, RequestPublished) for event in message.message.events)
                    handle(PageWatch(7, CacheAck(message.message.seq)))
                continue
            assert isinstance(message, CacheEvents)
            assert not any(isinstance(event, RequestPublished) for event in message.events)
            assert index.apply(7, message), "the page's stream tore a gap into the router's"
            handle(CacheAck(message.seq))
        if 100 < number < 200 and page.is_complete:
            assert page.num_tokens == harness.cache.total_size
    assert published
    assert page.num_tokens == check_page
    assert len(harness.cache.observers) == 1, "the router's"
    fresh = ReplicaIndex()
    fresh.add(7)
    handle(WatchCacheReq(usage=False))
    for message in watch.turn(harness.now):
        assert isinstance(message, CacheEvents)
        fresh.apply(7, message)
    assert index.held(7) == fresh.held(7) != set()
