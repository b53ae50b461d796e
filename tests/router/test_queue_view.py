"""View of the requests that the router holds, as a page gets it: their possible hits and the reasons of their waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from radixrt.messages.fleet import ROUTER_OBSTACLES, HeldRequest, RouterQueue
from radixrt.messages.parts import ProgramHint
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.router.queue_view import MAX_HELD, router_queue
from radixrt.router.replica_load import ReplicaInfo, ReplicaLoad
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.queue_order import PATIENCE_S
from radixrt.scheduler.step_time import PRIOR
from tests.router.fake_fleet import FakeFleet

PREFIX = [1 + i % 49 for i in range(200)]
OTHER = [1 + (i * 7) % 43 for i in range(200)]


def view(fleet: FakeFleet) -> RouterQueue:
    router = fleet.router
    return router_queue(router.placement, router.unbound.values(), fleet.now)


def by_rid(fleet: FakeFleet) -> dict[str, HeldRequest]:
    return {each.rid: each for each in view(fleet).requests}


def test_held_requests_have_their_numbers_and_the_replica_that_has_most_of_them() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX)
    fleet.submit("b", OTHER)
    fleet.drain()
    there = fleet.where("a")
    assert view(fleet) == RouterQueue(0)
    for i in range(9):
        fleet.submit(f"x{i}", [100 + i] * 130, max_tokens=200, ignore_eos=True)
    hint = ProgramHint("tree", "0/1", will_continue=True)
    fleet.submit("late", [*PREFIX, 3, 4], priority=-1, program=hint, max_tokens=30)
    fleet.now += 2.5
    found = view(fleet)
    held = by_rid(fleet)
    assert (found.waiting, len(held)) == (2, 2), "four rows on each replica"
    late = held["late"]
    assert (late.program, late.branch, late.kind, late.priority) == ("tree", "0/1", "generate", -1)
    assert (late.prompt_tokens, late.output_tokens, late.max_tokens, late.constrained) == (202, 0, 30, False)
    assert (late.best_replica, late.best_tokens) == (there, 192)
    assert late.cached_tokens == (192 if late.replica == there else 0)
    assert late.age_s == pytest.approx(2.5)
    assert late.obstacle == "requests"
    assert late.needed_slots >= 202 - late.cached_tokens
    plain = next(each for rid, each in held.items() if rid != "late")
    assert (plain.best_replica, plain.best_tokens, plain.program) == (None, 0, "")
    fleet.drain()
    fleet.check()
    assert view(fleet).waiting == 0


def test_requests_without_a_replica_and_those_of_a_dead_one() -> None:
    fleet = FakeFleet(1)
    fleet.submit("a", PREFIX, max_tokens=60, ignore_eos=True)
    while not fleet.outputs.get("a"):
        fleet.step(0)
    fleet.kill(0)
    fleet.submit("b", OTHER)
    held = by_rid(fleet)
    assert {(each.replica, each.obstacle, each.best_replica) for each in held.values()} == {(None, "replicas", None)}
    assert (held["a"].prompt_tokens, held["b"].output_tokens) == (200, 0)
    assert held["a"].output_tokens == len(fleet.outputs["a"]) > 0
    fleet.add_replica(1)
    fleet.drain()
    fleet.assert_answer("a")


def test_of_a_long_queue_the_first_requests_are_shown() -> None:
    fleet = FakeFleet(2)
    for i in range(300):
        fleet.submit(f"x{i}", [1 + i % 50] * 70, max_tokens=5)
    found = view(fleet)
    assert (found.waiting, len(found.requests)) == (300 - 8, MAX_HELD)
    assert {each.replica for each in found.requests} == {0, 1}
    assert {each.obstacle for each in found.requests} == {"requests"}
    for i in range(300):
        fleet.abort(f"x{i}")
    assert view(fleet).waiting == 0


def test_each_reason_for_which_a_replica_gets_no_request() -> None:
    def request(rid: str, *, begins: bool = False) -> RoutedRequest:
        hint = ProgramHint("p", will_continue=True) if begins else None
        made = RoutedRequest(
            Request.generate(rid, pack_i32(range(100)), SamplingParams(max_tokens=50), program=hint), 7, 7, 0.0,
            max_len=1000, timeout_s=60.0,
        )  # fmt: skip
        made.work = Work(100, 100, 50.0)
        return made

    def load(count: int, **sizes: Any) -> ReplicaLoad:
        info = {"num_slots": 10**6, "max_running_requests": 64, "chunked_prefill_size": 100, **sizes}
        made = ReplicaLoad(ReplicaInfo(**info), 1, 0.0)
        for i in range(count):
            made.sent(each := request(f"x{i}"))
            if count != 2:
                made.started(each)
        return made

    slow_rows = msgspec.structs.replace(PRIOR, row=PRIOR.step)
    plain, program = request("plain"), request("program", begins=True)
    found = [
        load(0, num_slots=120).obstacle(program, 0.0), load(2).obstacle(plain, 0.0),
        load(3, max_running_requests=3).obstacle(plain, 0.0), load(3, num_slots=450).obstacle(plain, 0.0),
        load(3, num_slots=1000).obstacle(program, 0.0), load(9, times=slow_rows).obstacle(program, 0.0),
    ]  # fmt: skip
    assert found == ["", "prompts", "requests", "slots", "program_slots", "programs"]
    assert set(found) <= set(ROUTER_OBSTACLES)
    crowded = load(9, times=slow_rows)
    assert crowded.obstacle(plain, 0.0) == crowded.obstacle(program, PATIENCE_S + 1.0) == ""
