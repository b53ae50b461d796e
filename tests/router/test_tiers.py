"""Prefixes in the tiers of replicas: requests go where they are, and prices count what fetching them costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from radixrt.messages.kv_moves import KVIn, KVLoad, KVPull
from radixrt.messages.parts import ProgramHint
from radixrt.messages.peers import PrefixComing
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.parts.tiers.policy import DISK, HOST, PEER
from radixrt.router.replica_index import Prefix
from radixrt.router.routed_request import RoutedRequest
from radixrt.sampling_params import SamplingParams
from tests.parts.tiers.harness import Sizes
from tests.router.fake_fleet import MAX_CONTEXT
from tests.router.tiered_fleet import TieredFleet

PREFIX = [1 + i * i % 37 for i in range(320)]
OTHER = [1 + i * i % 31 for i in range(330)]


@pytest.fixture
def fleets() -> Iterator[list[TieredFleet]]:
    made: list[TieredFleet] = []
    yield made
    for fleet in made:
        fleet.close()


@pytest.fixture
def fleet(fleets: list[TieredFleet]) -> TieredFleet:
    """Two replicas; the second one has PREFIX in its host tier alone."""
    return kept(fleets)


def kept(fleets: list[TieredFleet], *tiers: str, **options: Any) -> TieredFleet:
    """Return a fleet whose second replica has PREFIX in all tiers but its pool, and but `tiers`."""
    fleet = TieredFleet(**options)
    fleets.append(fleet)
    fleet.router.drain(0, fleet.now)
    fleet.ask("first", [*PREFIX, 3])
    assert fleet.where("first") == 1
    fleet.idle()
    fleet.evict(1)
    if tiers:
        fleet.evict(1, *tiers)
    fleet.router.resume(0, fleet.now)
    fleet.peer_messages.clear()
    return fleet


def index_len(fleet: TieredFleet, replica: int, tier: str, tokens: list[int]) -> int:
    """Number of tokens that a tier of a replica has, as the router knows."""
    return fleet.router.placement.tiers[tier].match(Prefix(pack_i32(tokens), "", len(tokens))).get(replica, 0)


def routed(prompt: list[int]) -> RoutedRequest:
    message = Request.generate("again", pack_i32(prompt), SamplingParams(max_tokens=4))
    return RoutedRequest(message, 1, 1, 0.0, max_len=MAX_CONTEXT, timeout_s=60.0)


def test_a_request_goes_to_the_replica_whose_host_tier_has_its_prefix(fleet: TieredFleet) -> None:
    assert index_len(fleet, 1, HOST, PREFIX) == len(PREFIX)
    assert fleet.router.placement.index.num_booked == len(fleet.router.placement.index) == 0
    assert fleet.ask("again", [*PREFIX, 5]) == {"host": 320}
    assert fleet.where("again") == 1
    assert fleet.peer_messages == [], "a replica fetches from its own tiers without being told"
    assert fleet.moved(1, KVIn)
    fleet.check()


def test_without_its_tier_in_the_index_the_first_replica_gets_it(fleet: TieredFleet) -> None:
    fleet.router.placement.tiers[HOST].drop(1)
    fleet.router.placement.tiers[HOST].add(1)
    assert fleet.ask("again", [*PREFIX, 5]) == {}
    assert fleet.where("again") == 0


def test_what_is_fetched_is_no_prompt_to_compute(fleet: TieredFleet) -> None:
    fleet.submit("again", [*PREFIX, 5])
    assert fleet.router.placement.loads[1].unstarted_tokens == 1
    fleet.drain()
    fleet.check()


def test_a_prefix_on_disk_alone_counts_too(fleets: list[TieredFleet]) -> None:
    fleet = kept(fleets, HOST, sizes=Sizes(host_pages=40, file_pages=40))
    assert (index_len(fleet, 1, HOST, PREFIX), index_len(fleet, 1, DISK, PREFIX)) == (0, 320)
    assert fleet.ask("again", [*PREFIX, 5]) == {"disk": 320}
    assert fleet.where("again") == 1
    assert fleet.moved(1, KVLoad)
    fleet.check()


def test_a_disk_that_is_slower_than_computing_does_not_draw_a_request(fleets: list[TieredFleet]) -> None:
    fleet = kept(fleets, HOST, sizes=Sizes(host_pages=40, file_pages=40))
    load = fleet.router.placement.loads[1]
    load.fetch_token_s = {HOST: 0.0, DISK: 1.5 * load.times.token, PEER: 0.0}
    request = routed([*PREFIX, 5])
    assert fleet.router.placement.transfers.find(request, 1, 0) is None
    load.open["beside"] = request  # a computation would delay this request, but a disk is no help against a queue
    assert fleet.router.placement.transfers.find(request, 1, 0) is None
    load.fetch_token_s = {HOST: 0.0, DISK: 0.5 * load.times.token, PEER: 0.0}
    found = fleet.router.placement.transfers.find(request, 1, 0)
    assert found is not None
    assert (found.source, found.end, found.tokens) == (1, 320, 320)
    assert found.seconds == pytest.approx(160 * load.times.token)


def test_the_host_tier_is_priced_by_its_rate_and_with_the_requests_beside_it(fleet: TieredFleet) -> None:
    load, transfers = fleet.router.placement.loads[1], fleet.router.placement.transfers
    request = routed([*PREFIX, 5])
    load.fetch_token_s = {HOST: 1.5 * load.times.token, DISK: 0.0, PEER: 0.0}
    assert transfers.find(request, 1, 0) is None
    load.open["beside"] = request
    found = transfers.find(request, 1, 0)
    assert found is not None
    assert (found.source, found.tokens, found.saved) == (1, 320, 0)
    assert transfers.find(request, 1, 256).tokens == 64  # type: ignore[union-attr]
    assert transfers.find(request, 1, 320) is None


def test_another_replica_copies_from_a_host_tier(fleet: TieredFleet) -> None:
    fleet.router.drain(1, fleet.now)
    assert fleet.ask("again", [*PREFIX, 5]) == {"peer": 320}
    assert fleet.where("again") == 0
    assert (0, PrefixComing("again", 320)) in fleet.peer_messages
    assert fleet.moved(0, KVPull)
    fleet.check()


def test_no_replica_is_asked_for_what_it_has_on_disk_alone(fleets: list[TieredFleet]) -> None:
    fleet = kept(fleets, HOST, sizes=Sizes(host_pages=40, file_pages=40))
    fleet.router.drain(1, fleet.now)
    assert fleet.ask("again", [*PREFIX, 5]) == {}
    assert fleet.peer_messages == []


def test_of_two_sources_the_own_tier_wins_at_equal_prices(fleet: TieredFleet) -> None:
    fleet.router.drain(1, fleet.now)
    fleet.ask("copy", [*PREFIX, 5])
    fleet.router.resume(1, fleet.now)
    fleet.evict(0)
    fleet.peer_messages.clear()
    assert fleet.in_tier(0, HOST, PREFIX) == fleet.in_tier(1, HOST, PREFIX) == 320
    assert fleet.ask("again", [*PREFIX, 6]) == {"host": 320}
    assert fleet.where("again") == 0
    assert fleet.peer_messages == []


def test_a_slow_own_tier_loses_against_a_fast_peer(fleet: TieredFleet) -> None:
    fleet.router.drain(1, fleet.now)
    fleet.ask("copy", [*PREFIX, 5])
    fleet.evict(0)
    fleet.router.resume(1, fleet.now)
    load, transfers = fleet.router.placement.loads[0], fleet.router.placement.transfers
    request = routed([*PREFIX, 6])
    for own, peer, source in ((1e-6, 2e-6, 0), (2e-6, 1e-6, 1)):
        load.fetch_token_s = {HOST: own, DISK: 0.0, PEER: peer}
        found = transfers.find(request, 0, 0)
        assert found is not None
        assert found.source == source


def test_a_pool_wins_against_a_tier_at_equal_prices(fleet: TieredFleet) -> None:
    fleet.router.drain(1, fleet.now)
    fleet.ask("copy", [*PREFIX, 5])
    fleet.evict(0)
    fleet.router.resume(1, fleet.now)
    fleet.router.drain(0, fleet.now)
    fleet.ask("pool of 1", [*PREFIX, 5])
    fleet.router.resume(0, fleet.now)
    assert fleet.ask("again", [*PREFIX, 6]) == {}
    assert fleet.where("again") == 1


def test_the_index_follows_evictions_of_the_host_tier(fleet: TieredFleet) -> None:
    fleet.evict(1, HOST)
    assert index_len(fleet, 1, HOST, PREFIX) == 0
    assert fleet.ask("again", [*PREFIX, 5]) == {}
    assert fleet.where("again") == 0


def test_a_new_router_learns_the_tiers_from_snapshots(fleet: TieredFleet) -> None:
    fleet.restart_router()
    fleet.drain()
    assert index_len(fleet, 1, HOST, PREFIX) == 320
    assert fleet.ask("again", [*PREFIX, 5]) == {"host": 320}
    assert fleet.where("again") == 1
    fleet.check()


def test_a_dead_replica_has_no_tiers(fleet: TieredFleet) -> None:
    fleet.replica(1).close()
    fleet.kill(1)
    assert all(not len(index) for index in fleet.router.placement.tiers.values())
    assert fleet.ask("again", [*PREFIX, 5]) == {}
    assert fleet.where("again") == 0


def test_a_gap_in_the_events_of_a_tier_brings_snapshots(fleet: TieredFleet) -> None:
    engine = fleet.replica(1)
    engine.tiers.host.cache.evict(engine.tiers.host.cache.total_size)
    engine.turn()
    assert [batch.tier for _, batch in engine.events] == [HOST]
    engine.events.clear()
    assert index_len(fleet, 1, HOST, PREFIX) == 320, "the router has not heard of it"
    fleet.router.drain(0, fleet.now)
    fleet.ask("more", [*OTHER, 5])
    fleet.idle()
    assert index_len(fleet, 1, HOST, PREFIX) == 0
    assert index_len(fleet, 1, HOST, OTHER) == fleet.in_tier(1, HOST, OTHER) // 64 * 64 == 320
    fleet.check()


@pytest.mark.parametrize("shared", [0, 30])
def test_a_hybrid_model_counts_up_to_the_state_that_a_tier_has(fleets: list[TieredFleet], shared: int) -> None:
    fleet = kept(fleets, num_states=24)
    prompt = [*PREFIX, *[3] * shared, 5]
    request = routed(prompt)
    assert fleet.router.placement.transfers.kept(request, HOST, (0, 1)) == {1: 320}
    assert fleet.ask("again", prompt) == {"host": 320}
    assert fleet.where("again") == 1
    fleet.check()


def test_branches_of_a_fork_go_where_a_tier_has_the_prefix(fleet: TieredFleet) -> None:
    for load in fleet.router.placement.loads.values():
        load.fetch_token_s = {HOST: 0.0, DISK: 0.0, PEER: 2 * load.times.token}
    for number in range(2):
        hint = ProgramHint("p", f"0/{number}", fork_len=320, siblings=2)
        fleet.submit(f"branch {number}", [*PREFIX, number], program=hint)
    fleet.drain()
    assert {fleet.where(f"branch {number}") for number in range(2)} == {1}
    for number in range(2):
        fleet.assert_answer(f"branch {number}")
    fleet.check()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("states", [0, 24])
def test_random_requests_get_right_answers_and_the_index_equals_the_tiers(
    fleets: list[TieredFleet], seed: int, states: int
) -> None:
    fleet = TieredFleet(2, seed=seed, num_states=states, sizes=Sizes(host_pages=12, file_pages=20), num_slots=700)
    fleets.append(fleet)
    rng = fleet.rng
    for number in range(40):
        prefix = rng.choice((PREFIX, OTHER, [7] * 200))
        prompt = [*prefix[: rng.choice((64, 150, len(prefix)))], rng.randrange(9), number]
        fleet.submit(f"r{number}", prompt, cache_salt=rng.choice(("", "", "b")))
        fleet.play(rng.randrange(60))
        if rng.random() < 0.2:
            engine = fleet.replica(rng.randrange(2))
            engine.cache.evict(rng.choice((100, 10_000)))
        if rng.random() < 0.2:
            fleet.idle(2.0)
    fleet.idle()
    for rid in fleet.messages:
        fleet.assert_answer(rid)
    fleet.check()
    for number in fleet.replicas:
        for tier, index in fleet.router.placement.tiers.items():
            tokens = getattr(fleet.replica(number).tiers, tier).num_tokens
            held = len(index.held(number))
            assert held * 64 == tokens if not states else held * 64 <= tokens
