"""What the core does for parts that copy keys and values into the pool: held nodes, reserved slots, orders to ranks."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.messages.runner import PartReport
from radixrt.parts.watch.scheduler import Watch
from radixrt.scheduler.invariants import check_scheduler
from radixrt.scheduler.part import Core, Part
from radixrt.scheduler.req import Req, ReqStats
from tests.scheduler.fake_runner import Harness, digest


class Copier(Part):
    """Fetches the prefix of each request from nowhere: it knows the digests of all tokens."""

    name = "copier"

    def __init__(self) -> None:
        self.fetching: dict[str, tuple[object, ...]] = {}
        self.done: set[str] = set()

    def attach(self, core: Core) -> None:
        self.core = core

    def fetches(self, req: Req, now: float) -> bool:
        if req.rid in self.done:
            return False
        if req.rid not in self.fetching:
            kv, tokens = self.core.kv, req.reusable_ids
            match = kv.cache.match_prefix(tokens, req.namespace)
            slots = kv.copies.reserve(len(tokens) - len(match.slots))
            assert slots is not None
            kv.copies.hold(match.node)
            self.fetching[req.rid] = (match.node, tokens, slots, req.namespace)
            self.core.order(self, req.rid.encode())
        return True

    def reported(self, rank: int, data: bytes, now: float) -> None:
        node, tokens, slots, namespace = self.fetching.pop(data.decode())
        self.core.kv.copies.adopt(node, tokens, slots, namespace)  # type: ignore[arg-type]
        self.core.kv.copies.let_go(node)  # type: ignore[arg-type]
        self.core.requests.by_rid[data.decode()].stats.note_fetched("host", len(tokens) - len(slots), len(tokens))  # type: ignore[arg-type]
        self.done.add(data.decode())

    def emptying(self) -> None:
        for node, _, slots, _ in self.fetching.values():
            self.core.kv.copies.let_go(node)  # type: ignore[arg-type]
            self.core.kv.copies.cancel(slots)  # type: ignore[arg-type]
        self.fetching.clear()


@pytest.fixture
def harness() -> Harness:
    return Harness(num_slots=64)


@pytest.fixture
def copier(harness: Harness) -> Copier:
    parts, core = harness.scheduler.parts, harness.scheduler.part(Watch)  # any part of this scheduler
    copier = Copier()
    copier.attach(harness.scheduler.core)
    assert core in parts.all
    parts.__init__((*parts.all, copier))  # type: ignore[misc]
    return copier


def copy(harness: Harness, copier: Copier, rid: str) -> None:
    """Do what the ranks do for an order, and report it."""
    _, tokens, slots, _ = copier.fetching[rid]
    state = 0
    for i, token in enumerate(np.asarray(tokens).tolist()):
        state = digest(state, token)
        at = i - (len(tokens) - len(slots))  # type: ignore[arg-type]
        if at >= 0:
            harness.runner.content[int(slots[at])] = state  # type: ignore[index]
    harness.scheduler.orders.clear()
    harness.scheduler.reported(PartReport(0, "copier", rid.encode()), harness.now)


def test_a_request_waits_for_its_prefix_and_computes_the_rest(harness: Harness, copier: Copier) -> None:
    harness.add("a", [3, 4, 5, 6, 7], max_tokens=2)
    assert not harness.submit(), "its prefix is on its way, though nothing else runs"
    (order,) = harness.scheduler.orders
    assert (order.part, order.data) == ("copier", b"a")
    check_scheduler(harness.scheduler)
    assert harness.scheduler.kv.copies.reserved == 4
    copy(harness, copier, "a")
    harness.drain()
    assert harness.usages["a"].cached_tokens == 4
    assert harness.usages["a"].fetched_tokens == {"host": 4}
    assert harness.scheduler.counters.fetched_tokens == {"host": 4}
    assert harness.runner.tokens_computed == 2, "the last token of the prompt, and one of the output"
    assert harness.scheduler.kv.copies.reserved == 0


def test_slots_of_tokens_that_the_tree_has_meanwhile_are_freed(harness: Harness, copier: Copier) -> None:
    copier.done.add("b")
    harness.add("a", [3, 4, 5, 6, 7], max_tokens=1)
    assert not harness.submit()
    harness.add("b", [3, 4, 5, 6, 9], max_tokens=1)
    harness.drain()  # computes what the copy of the other one brings
    copy(harness, copier, "a")
    harness.drain()
    check_scheduler(harness.scheduler)
    assert harness.finishes.keys() == {"a", "b"}


def test_holds_and_reserved_slots_end_before_the_tree_is_emptied(harness: Harness, copier: Copier) -> None:
    copier.done.add("b")
    harness.add("b", [8, 4, 5, 6, 9], max_tokens=8)
    harness.submit()
    harness.add("a", [8, 4, 5, 6, 7], max_tokens=1)
    harness.submit()
    assert copier.fetching
    harness.fail()
    while harness.commit():
        pass
    assert not copier.fetching
    assert harness.scheduler.kv.cache.total_size == 0
    check_scheduler(harness.scheduler)


def test_usage_counts_copied_tokens_once_and_by_tier(harness: Harness, copier: Copier) -> None:
    copier.done |= {"warm", "b"}
    harness.add("warm", [3, 4, 9], max_tokens=1)
    harness.drain()
    harness.add("a", [3, 4, 5, 6, 7, 8], max_tokens=1)
    harness.submit()
    copy(harness, copier, "a")
    harness.drain()
    harness.add("b", [3, 4, 5, 6, 7, 9], max_tokens=1)
    harness.drain()
    usage = harness.usages["a"]
    assert (usage.cached_tokens, usage.fetched_tokens) == (5, {"host": 3}), "two tokens were in the pool"
    usage = harness.usages["b"]
    assert (usage.cached_tokens, usage.fetched_tokens) == (5, {}), "the pool has the tokens that were copied for a"


def stats_of(*spans: tuple[str, int, int], cached: int) -> ReqStats:
    stats = ReqStats(0.0, 1.0, 0.0)
    for span in spans:
        stats.note_fetched(*span)
    stats.cached_tokens = cached
    return stats


def test_a_copy_counts_as_far_as_its_tokens_were_cached_at_admission() -> None:
    assert stats_of(("host", 64, 128), cached=127).fetched_tokens() == {"host": 63}
    assert stats_of(("host", 64, 128), cached=64).fetched_tokens() == {}, "the tokens were evicted meanwhile"
    assert stats_of(("host", 64, 128), ("disk", 128, 256), cached=255).fetched_tokens() == {"host": 64, "disk": 127}
    assert stats_of(("host", 0, 128), ("disk", 64, 256), cached=255).fetched_tokens() == {"host": 64, "disk": 191}
    assert stats_of(("disk", 0, 256), cached=255).fetched_tokens(100) == {"disk": 155}


def test_a_copy_after_the_first_admission_does_not_count() -> None:
    stats = stats_of(cached=0)
    stats.note_fetched("host", 0, 64)
    assert stats.fetched_tokens() == {}


def test_the_rows_of_a_group_add_up(harness: Harness, copier: Copier) -> None:
    copier.done.add("a\x001")
    harness.add_score("a", {(5, 6, 7, 8, 9): [[1, 2], [3, 4]]})
    harness.submit()
    (rid,) = copier.fetching
    copy(harness, copier, rid)
    harness.drain()
    usage = harness.usages["a"]
    assert usage.cached_tokens > 0
    assert usage.fetched_tokens == {"host": usage.cached_tokens}
