"""Prefixes that a replica gets from another one: when the router asks, what it passes on, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.messages.peers import PrefixAsk, PrefixComing, PrefixPages
from radixrt.messages.scheduler import AbortReq
from radixrt.messages.wire import pack_i32, unpack_i32
from tests.router.fake_fleet import FakeFleet

PREFIX = [1 + i * i % 37 for i in range(384)]


class Fleet(FakeFleet):
    """Replicas of which the first one has computed PREFIX.

    Attributes:
        peer_messages: messages about prefixes that the router has sent, with their targets.
    """

    def __init__(self, *, moves: bool = True, replicas: int = 2) -> None:
        self.peer_messages: list[tuple[int, Any]] = []
        super().__init__(replicas, moves=moves)
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
    return isinstance(message, PrefixAsk | PrefixComing | PrefixPages)


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
    load.pull_token_s = 2 * load.times.token
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
    assert busy.cost > idle.cost + 150
