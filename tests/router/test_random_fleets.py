"""Random requests, evictions, late and lost events, stalls, and deaths of replicas and of the router.

Each request has exactly one finish, each answer is that of a single replica, and the index equals the trees once events
are drained.
"""

from __future__ import annotations

import random

import pytest

from radixrt.messages.parts import ProgramHint
from radixrt.messages.scheduler import ReleaseReq
from radixrt.messages.wire import pack_i32
from radixrt.tokenizer.reads import ChoiceTree
from tests.requests import score_request
from tests.router.fake_fleet import FakeFleet


class Chaos:
    """Random events for a fleet."""

    def __init__(self, seed: int, num_states: int = 0) -> None:
        self.rng = random.Random(seed)
        replicas = self.rng.randint(2, 4)
        self.fleet = FakeFleet(
            replicas, num_slots=900, seed=seed, stall_s=1.0, num_states=num_states, moves=seed % 2 > 0
        )
        self.prefixes = [[self.rng.randint(1, 49) for _ in range(self.rng.randint(60, 300))] for _ in range(4)]
        self.aborted: set[str] = set()
        self.num_requests = 0
        self.next_replica = replicas

    def request(self) -> None:
        fleet, rng = self.fleet, self.rng
        rid = f"r{self.num_requests}"
        self.num_requests += 1
        prefix = rng.choice(self.prefixes)
        prompt = prefix[: rng.randint(1, len(prefix))] if rng.random() < 0.3 else list(prefix)
        prompt += [rng.randint(1, 49) for _ in range(rng.randint(1, 80))]
        kind = rng.random()
        if kind < 0.15:
            choices = [[rng.randint(1, 49) for _ in range(2)], [rng.randint(1, 49) for _ in range(3)]]
            rows = ChoiceTree(len(prompt), choices).rows(0)
            fleet.send(score_request(rid, [pack_i32(prompt)], rows))
            return
        hint = ProgramHint(f"p{rng.randint(0, 3)}", f"{rng.randint(0, 3)}", len(prefix), rng.randint(1, 6))
        fleet.submit(
            rid, prompt, max_tokens=rng.randint(1, 40), ignore_eos=rng.random() < 0.5, priority=rng.randint(0, 1),
            cache_salt=rng.choice(["", "", "b"]), program=hint if kind < 0.5 else None,
        )  # fmt: skip
        if rng.random() < 0.3:
            self.prefixes[rng.randrange(4)] = prompt[:300]

    def event(self) -> None:
        fleet, rng = self.fleet, self.rng
        kind = rng.random()
        if kind < 0.7:
            self.request()
        elif kind < 0.75 and fleet.router.open:
            rid = rng.choice(list(fleet.router.open))
            self.aborted.add(rid)
            fleet.abort(rid)
        elif kind < 0.78:
            fleet.router.release(ReleaseReq(f"p{rng.randint(0, 3)}"))
            fleet.route()
        elif kind < 0.83 and len(fleet.replicas) > 1:
            fleet.kill(rng.choice(list(fleet.replicas)))
        elif kind < 0.88 and len(fleet.replicas) < 4:
            fleet.add_replica(self.next_replica)
            self.next_replica += 1
        elif kind < 0.92:
            fleet.stopped.add(rng.choice(list(fleet.replicas)))
        elif kind < 0.96:
            fleet.stopped.clear()
        elif kind < 0.98:
            if engine := [each for each in fleet.replicas.values() if each.events]:
                rng.choice(engine).events.popleft()  # a batch of events is lost
        else:
            fleet.restart_router()

    def run(self, events: int) -> None:
        for _ in range(events):
            self.event()
            self.fleet.play(self.rng.randint(0, 25))
            for load in self.fleet.router.placement.loads.values():
                assert len(list(load.queue)) == load.queue.size
        self.fleet.drain()

    def check(self) -> None:
        fleet = self.fleet
        fleet.check()
        assert set(fleet.finishes) == set(fleet.messages)
        for rid, finish in fleet.finishes.items():
            if rid in self.aborted and finish.reason == "abort":
                continue
            if rid in fleet.cut_off:
                continue
            if finish.error is not None:
                assert finish.error.code == "replica_lost"
                assert len(fleet.sent[rid]) == 2, "it was sent to a third replica, or given up too early"
                continue
            fleet.assert_answer(rid)


@pytest.mark.parametrize("seed", range(24))
def test_random_fleets(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.run(70)
    chaos.check()


@pytest.mark.parametrize("seed", range(6))
def test_random_fleets_of_hybrid_models(seed: int) -> None:
    chaos = Chaos(1000 + seed, num_states=24)
    chaos.run(50)
    chaos.check()
