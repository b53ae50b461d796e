"""Prompts that an operator drops do not come back: not by a move in flight, nor by a replica that was not up."""

from __future__ import annotations

from collections import Counter

import pytest

from radixrt.messages.kv_moves import KVIn, KVLoad, KVPull
from radixrt.messages.parts import FINISH_ABORT
from radixrt.messages.peers import HandedOver
from radixrt.messages.scheduler import ControlReply, ControlReq
from radixrt.router.forgets import Forgets
from tests.parts.tiers.harness import Sizes
from tests.router.tiered_fleet import TieredFleet

ALICE, BOB = "k5:alice", "k3:bob"
PREFIXES = [[1 + i * i % 37 for i in range(320)], [1 + i * i % 31 for i in range(200)]]


def busy(seed: int, states: int) -> TieredFleet:
    """Return a fleet whose tiers have prompts of both keys, and that serves more, with moves of all kinds."""
    sizes = Sizes(host_pages=16, file_pages=30)
    fleet = TieredFleet(2, seed=seed, sizes=sizes, num_slots=700, num_states=states)
    rng = fleet.rng
    for number in range(12):
        if number == 6:
            fleet.idle()
            for replica in fleet.replicas:
                fleet.evict(replica)
            if rng.random() < 0.5:
                fleet.evict(rng.randrange(2), "host")
        if rng.random() < 0.5:
            away = rng.randrange(2)
            fleet.router.drain(away, fleet.now)
            fleet.router.resume(1 - away, fleet.now)
        owner = rng.choice((ALICE, ALICE, BOB))
        prompt = [*rng.choice(PREFIXES), number % 3]
        fleet.submit(f"{owner} {number}", prompt, cache_salt=owner + rng.choice(("", "salt")))
        fleet.play(rng.randrange(40))
    return fleet


@pytest.mark.parametrize("states", [0, 24])
@pytest.mark.parametrize("first", range(0, 24, 6))
def test_nothing_in_flight_brings_a_key_back(first: int, states: int) -> None:
    moves, others = Counter[str](), 0
    for seed in range(first, first + 6):
        fleet = busy(seed, states)
        for engine in fleet.replicas:
            moves.update(move.link for _, move in fleet.replica(engine).moves)
        for rid in [rid for rid in fleet.messages if rid.startswith(ALICE) and rid not in fleet.finishes]:
            fleet.abort(rid)
        fleet.forget(ALICE)
        for replica in fleet.replicas:
            fleet.router.resume(replica, fleet.now)
        fleet.idle()
        assert [fleet.replica(number).left for number in fleet.replicas] == [[(0, 0)]] * 2, f"seed {seed}"
        assert fleet.cached_of(ALICE) == 0, f"seed {seed}"
        others += fleet.cached_of(BOB)
        for rid, finish in fleet.finishes.items():
            if finish.reason != FINISH_ABORT:
                fleet.assert_answer(rid)
        fleet.check()
        for kind in (KVIn, KVLoad, KVPull):
            moves[kind.__name__] += sum(fleet.moved(number, kind) for number in fleet.replicas)
        fleet.close()
    assert others, "prompts of the other key are gone too"
    assert sum(moves.values()) > 10, "hardly anything was moved"


@pytest.mark.parametrize("late", [False, True], ids=["answers before the command", "answers behind the command"])
def test_a_replica_that_leaves_hands_nothing_of_the_key_over(late: bool) -> None:
    fleet = TieredFleet(2, sizes=Sizes(host_pages=40, receiving=1))
    fleet.router.drain(1, fleet.now)
    for number, prefix in enumerate(PREFIXES):
        fleet.ask(f"{number}", prefix, cache_salt=ALICE)
    fleet.idle()
    fleet.router.resume(1, fleet.now)
    fleet.router.drain(0, fleet.now)
    fleet.router.hand_over(0)
    fleet.route()
    leaving, taker = fleet.replica(0), fleet.replica(1)
    fleet.arrive(0)
    while not any(isinstance(message, HandedOver) for _, message in leaving.tokens):
        fleet.now += 0.01
        leaving.now = fleet.now
        leaving.turn()

    def pass_on() -> None:
        """Let the prefixes come to the other replica, by way of the router."""
        while leaving.tokens:
            epoch, message = leaving.tokens.popleft()
            fleet.router.receive(0, epoch, message, fleet.now)
        fleet.route()
        fleet.arrive(1)

    if not late:
        pass_on()
        taker.eager = 0.0
        taker.turn()
        assert taker.sent_orders(KVPull)
    fleet.forget(ALICE)
    fleet.arrive(1)
    pass_on()
    taker.eager = 0.9
    for _ in range(50):  # the replica that leaves executes the command last
        taker.now += 0.01
        taker.turn()
    fleet.idle()
    assert fleet.cached_of(ALICE) == 0
    assert leaving.left == taker.left == [(0, 0)]
    fleet.close()


def test_open_requests_are_counted_and_forgotten_when_they_have_ended() -> None:
    fleet = busy(1, 0)
    fleet.submit("last", [*PREFIXES[0], 8], cache_salt=ALICE, max_tokens=30)
    fleet.forget(ALICE)
    fleet.drain()
    assert sum(left.requests for number in fleet.replicas for left in fleet.replica(number).left) > 0
    assert fleet.cached_of(ALICE) > 0
    fleet.forget(ALICE)
    fleet.idle()
    assert [fleet.replica(number).left[-1] for number in fleet.replicas] == [(0, 0)] * 2
    assert fleet.cached_of(ALICE) == 0
    fleet.close()


def test_replicas_that_have_not_executed_a_command_owe_it() -> None:
    forgets = Forgets()
    first, second = ControlReq("1", "forget_owner", ALICE), ControlReq("2", "forget", BOB)
    forgets.ask(ControlReq("0", "flush_cache"))
    assert forgets.owed(0) == []
    forgets.ask(first)
    forgets.ask(second)
    assert forgets.owed(0) == [first, second]
    forgets.answered(0, ControlReply("1", ok=True))
    forgets.answered(0, ControlReply("2", ok=False, message="64 tokens are in use and stay"))
    assert forgets.owed(0) == [second]
    assert forgets.owed(1) == [first, second]
    again = ControlReq("3", "forget_owner", ALICE)
    forgets.ask(again)
    assert forgets.owed(0) == [second, again]


def test_the_oldest_commands_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.router.forgets.MAX_FORGETS", 2)
    forgets = Forgets()
    commands = [ControlReq(str(number), "forget", f"salt {number}") for number in range(3)]
    for command in commands:
        forgets.ask(command)
    assert forgets.owed(0) == commands[1:]
