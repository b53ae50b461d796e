"""Prefixes that a replica gets from another one: when the router asks, what it passes on, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.messages.peers import HandedOver, HandOver, PrefixAsk, PrefixComing, PrefixPages, PrefixTaken
from radixrt.messages.scheduler import AbortReq
from radixrt.messages.scheduler_stats import TierStats
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.tiers.policy import PEER
from tests.router.fake_fleet import FakeFleet

PREFIX = [1 + i * i % 37 for i in range(384)]


class Fleet(FakeFleet):
    """Replicas of which the first one has computed PREFIX.

    Attributes:
        peer_messages: messages about prefixes that the router has sent, with their targets.
    """

    def __init__(self, *, moves: bool = True, replicas: int = 2, num_states: int = 0) -> None:
        self.peer_messages: list[tuple[int, Any]] = []
        super().__init__(replicas, moves=moves, num_states=num_states)
        self.submit("first", PREFIX)
        self.drain()
        assert self.where("first") == 0

    def route(self) -> None:
        messages = self.router.take()
        self.peer_messages += [(m.target, m.message) for m in messages if _is_peer(m.message)]
        self.router._outgoing = [m for m in messages if not _is_peer(m.message)]
        super().route()

    def ask(self, rid: str = "a", prompt: list[int] = PREFIX, **fields: Any) -> None:
        """Send a request when only the last replica takes any."""
        for replica in list(self.replicas)[:-1]:
            self.router.drain(replica, self.now)
        self.submit(rid, [*prompt, 5], **fields)

    def answer(self, rid: str = "a", source: int = 0) -> list[tuple[int, Any]]:
        """Let a replica answer; return what the router sends."""
        self.peer_messages.clear()
        message = PrefixPages(rid, pack_i32(PREFIX))
        self.router.receive(source, self.replicas[source].epoch, message, self.now)
        self.route()
        return self.peer_messages


def _is_peer(message: Any) -> bool:
    return isinstance(message, PrefixAsk | PrefixComing | PrefixPages | HandOver)


def test_the_replica_that_has_the_prefix_is_asked_and_its_answer_passed_on() -> None:
    fleet = Fleet()
    fleet.ask(cache_salt="")
    coming, ask = fleet.peer_messages
    assert coming == (1, PrefixComing("a", 384))
    assert ask[0] == 0
    assert unpack_i32(ask[1].token_ids).tolist() == PREFIX
    assert fleet.router.placement.loads[1].unstarted_tokens < 64  # the rest is moved, not computed
    assert fleet.answer() == [(1, PrefixPages("a", pack_i32(PREFIX)))]
    assert fleet.answer() == []  # once
    fleet.drain()
    fleet.assert_answer("a")
    fleet.check()


def test_a_hybrid_model_gets_the_prefix_up_to_a_state() -> None:
    fleet = Fleet(num_states=24)
    longer = [*PREFIX, *range(1, 21)]
    fleet.submit("longer", longer)  # leaves a state one token before its end, and one at the end of its output
    fleet.drain()
    fleet.ask(prompt=[*longer[:-1], 8, 8])
    coming, ask = fleet.peer_messages
    assert coming == (1, PrefixComing("a", len(longer) - 1))
    assert unpack_i32(ask[1].token_ids).tolist() == longer[:-1]
    assert fleet.router.placement.loads[1].unstarted_tokens < 64
    fleet.drain()
    fleet.assert_answer("a")
    fleet.check()


def test_keys_and_values_without_a_state_are_not_asked_for() -> None:
    fleet = Fleet(num_states=24)
    fleet.ask(prompt=[*PREFIX[:350], 3])
    assert not fleet.peer_messages
    fleet.drain()
    fleet.assert_answer("a")


@pytest.mark.parametrize(("state_tokens", "moves"), [(300, True), (500, False)])
def test_a_state_takes_the_time_of_its_tokens(state_tokens: int, moves: bool) -> None:
    fleet = Fleet(num_states=24)
    load = fleet.router.placement.loads[1]
    load.fetch_token_s = {PEER: 0.5 * load.times.token}
    load.tiers = TierStats(state_tokens=state_tokens)  # 384 tokens take as long to compute as 768 tokens to move
    fleet.ask()
    assert bool(fleet.peer_messages) == moves
    fleet.drain()
    fleet.assert_answer("a")


@pytest.mark.parametrize("event", ["abort", "finish", "forget", "death of the target", "another source"])
def test_an_answer_that_nobody_waits_for_goes_nowhere(event: str) -> None:
    fleet = Fleet()
    fleet.ask(max_tokens=1)
    assert len(fleet.peer_messages) == 2
    source = 0
    if event == "abort":
        fleet.router.abort(AbortReq("a"))
        fleet.drain()
    elif event == "finish":
        fleet.drain()
    elif event == "forget":
        fleet.router.placement.transfers.clear()
    elif event == "another source":
        source = 1
    else:
        fleet.router.resume(0, fleet.now)
        fleet.kill(1)
    assert fleet.answer(source=source) == []
    fleet.drain()
    fleet.check()


def test_nothing_is_asked_without_host_tiers() -> None:
    fleet = Fleet(moves=False)
    fleet.ask()
    assert fleet.peer_messages == []


def test_what_computing_does_sooner_is_computed() -> None:
    fleet = Fleet()
    load = fleet.router.placement.loads[1]
    load.fetch_token_s = {PEER: 2 * load.times.token}
    fleet.ask()
    assert fleet.peer_messages == []
    fleet.drain()
    fleet.assert_answer("a")


def test_short_prefixes_scores_and_other_namespaces_are_computed() -> None:
    fleet = Fleet()
    fleet.ask("short", PREFIX[:200])
    fleet.ask("other", PREFIX, cache_salt="other")
    assert fleet.peer_messages == []


def test_a_dead_replica_is_not_asked() -> None:
    fleet = Fleet()
    fleet.kill(0)
    fleet.submit("a", PREFIX)
    assert fleet.peer_messages == []
    fleet.drain()
    fleet.assert_answer("a")


def test_a_busy_replica_answers_late_and_that_has_its_price() -> None:
    fleet = Fleet()
    transfers = fleet.router.placement.transfers
    fleet.ask()
    routed = fleet.router.open["a"]
    idle = transfers.find(routed, 1, 0)
    assert idle is not None
    fleet.router.placement.loads[0].open["b"] = routed
    fleet.router.placement.loads[0].unstarted_tokens = 200
    busy = transfers.find(routed, 1, 0)
    assert busy is not None
    assert busy.seconds > idle.seconds + 150 * fleet.router.placement.loads[1].times.token


@pytest.mark.parametrize("others", [0, 1])
def test_a_slow_transfer_pays_where_a_computation_would_delay_others(others: int) -> None:
    fleet = Fleet()
    load = fleet.router.placement.loads[1]
    load.fetch_token_s = {PEER: 1.5 * load.times.token}
    for number in range(others):
        fleet.ask(f"other {number}", [number] * 40)
    fleet.ask("a")
    assert [target for target, _ in fleet.peer_messages] == [1, 0] * others
    fleet.drain()
    fleet.assert_answer("a")


def test_the_target_is_told_that_nothing_comes_from_a_dead_replica() -> None:
    fleet = Fleet()
    fleet.ask()
    fleet.peer_messages.clear()
    fleet.kill(0)
    assert fleet.peer_messages == [(1, PrefixPages("a"))]
    fleet.drain()
    fleet.assert_answer("a")


def leaving(replicas: int = 3) -> Fleet:
    """A fleet whose first replica is about to be stopped."""
    fleet = Fleet(replicas=replicas)
    fleet.router.drain(0, fleet.now)
    fleet.peer_messages.clear()
    fleet.router.hand_over(0)
    fleet.route()
    return fleet


def hears(fleet: Fleet, replica: int, message: Any) -> list[tuple[int, Any]]:
    """Let the router receive a message; return what it sends."""
    fleet.peer_messages.clear()
    fleet.router.receive(replica, fleet.replicas[replica].epoch, message, fleet.now)
    fleet.route()
    return fleet.peer_messages


def pages(token: int, tokens: int = 128) -> PrefixPages:
    return PrefixPages("", pack_i32([token] * tokens), pages=pack_i32([1] * (tokens // 64)))


def test_prefixes_of_a_replica_that_leaves_are_divided_among_the_others() -> None:
    fleet = leaving()
    transfers = fleet.router.placement.transfers
    assert [(target, type(message)) for target, message in fleet.peer_messages] == [(0, HandOver)]
    targets = []
    for message in (pages(1), pages(2), pages(1, 192)):
        ((target, sent),) = hears(fleet, 0, message)
        targets.append(target)
        assert (sent.source, sent.token_ids) == (0, message.token_ids)
    assert sorted(targets[:2]) == [1, 2]
    assert targets[2] == targets[0]
    assert hears(fleet, 0, PrefixPages("")) == []
    assert not transfers.has_handed_over(0)
    hears(fleet, 0, HandedOver(1))
    for target in targets:
        assert not transfers.has_handed_over(0)
        hears(fleet, target, PrefixTaken(0))
    assert transfers.has_handed_over(0)
    fleet.kill(0)
    assert not transfers.has_handed_over(0)


@pytest.mark.parametrize("event", ["forget", "death of the taker", "no other replica", "no host tiers"])
def test_a_hand_over_ends(event: str) -> None:
    if event == "no host tiers":
        fleet = Fleet(moves=False)
        fleet.router.hand_over(0)
        fleet.route()
        assert fleet.peer_messages == []
    else:
        fleet = leaving(2)
    transfers = fleet.router.placement.transfers
    if event != "no host tiers":
        hears(fleet, 0, pages(1))
        assert not transfers.has_handed_over(0)
    if event == "forget":
        transfers.clear()
        assert hears(fleet, 0, pages(1)) == []
    elif event == "death of the taker":
        fleet.kill(1)
    elif event == "no other replica":
        fleet.router.drain(1, fleet.now)
        assert hears(fleet, 0, pages(2)) == []
        hears(fleet, 0, HandedOver(1))
        hears(fleet, 1, PrefixTaken(0))
    assert transfers.has_handed_over(0)
