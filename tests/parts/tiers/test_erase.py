"""Keys and values of a namespace that is forgotten are overwritten, wherever a tier may still hold them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radixrt.mem_cache.copies import Arrival
from radixrt.parts.tiers.records import PageRecords
from radixrt.parts.tiers.tier import Tier, root_name

PAGE, PAGES = 64, 6
ALICE, BOB = "k5:alice", "k3:bob"


@pytest.fixture
def erased() -> list[int]:
    """Pages that were overwritten."""
    return []


@pytest.fixture
def make(tmp_path: Path, erased: list[int]) -> Callable[[], Tier]:
    def make() -> Tier:
        records = PageRecords(str(tmp_path / "table"), PAGES, PAGE)
        return Tier("host", PAGES * PAGE, PAGE, records, lambda pages: erased.extend(pages.tolist()))

    return make


def begin(tier: Tier, owner: str, first: int, pages: int = 2) -> Arrival:
    tokens = np.arange(first, first + pages * PAGE, dtype=np.int32)
    arrival = tier.copies.begin(tokens, root_name(owner))
    assert arrival is not None
    return arrival


def put(tier: Tier, owner: str, first: int, pages: int = 2) -> set[int]:
    """Put a prefix into the tier; return its pages."""
    arrival = begin(tier, owner, first, pages)
    tier.copies.end(arrival, copied=True)
    return pages_of(arrival)


def pages_of(arrival: Arrival) -> set[int]:
    return {*(arrival.slots // PAGE).tolist()}


def test_pages_of_the_tree_and_evicted_pages_are_overwritten(make: Callable[[], Tier], erased: list[int]) -> None:
    tier = make()
    evicted = put(tier, ALICE, 0)
    tier.cache.evict(2 * PAGE)
    assert tier.num_tokens == 0
    kept, others = put(tier, BOB, 0, pages=1), put(tier, ALICE, 1000)
    tier.forget_namespace(ALICE, whole_owner=True)
    assert {*erased} == (evicted | others) - kept
    tier.check()


def test_pages_that_another_namespace_has_got_are_not_overwritten(make: Callable[[], Tier], erased: list[int]) -> None:
    tier = make()
    put(tier, ALICE, 0)
    tier.cache.evict(2 * PAGE)
    put(tier, BOB, 0, pages=PAGES)
    tier.forget_namespace(ALICE, whole_owner=True)
    assert erased == []


def test_targets_of_dropped_moves_are_overwritten(make: Callable[[], Tier], erased: list[int]) -> None:
    tier = make()
    arrival = begin(tier, ALICE, 0)
    tier.copies.end(arrival, copied=False)
    tier.forget_namespace(ALICE, whole_owner=True)
    assert {*erased} == pages_of(arrival)


def test_the_next_scheduler_knows_what_evicted_pages_hold(make: Callable[[], Tier], erased: list[int]) -> None:
    tier = make()
    evicted, dropped = put(tier, ALICE, 0), begin(tier, ALICE, 1000)
    tier.cache.evict(2 * PAGE)
    kept = put(tier, BOB, 0)
    tier = make()
    assert tier.num_tokens == 2 * PAGE
    tier.forget_namespace(ALICE, whole_owner=True)
    assert {*erased} == (evicted | pages_of(dropped)) - kept
    assert tier.num_tokens == 2 * PAGE
