"""Requests of several API keys take turns; see `radixrt.parts.tenants.scheduler`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.common.simulated_engine import Life, SimulatedEngine, SimulatedRequest
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.parts.overload.scheduler import Overload
from radixrt.parts.tenants.scheduler import Tenants
from radixrt.sampling_params import SamplingParams
from tests.requests import embed_request
from tests.scheduler.fake_runner import Harness
from tests.scheduler.simulated_load import CPU

IDS = np.random.default_rng(0)


def harness(**options: object) -> Harness:
    return Harness(**{"num_slots": 512, "max_running_requests": 1, **options})  # type: ignore[arg-type]


def admitted(h: Harness) -> list[str]:
    """Ids of requests in the order of their first admission."""
    return list(dict.fromkeys(req.rid for batch in h.batches for req in batch.requests))


def turns_until_end(h: Harness, rid: str) -> int:
    """Turn until a request has ended; return the number of turns."""
    turns = 0
    while rid not in h.finishes:
        h.turn()
        turns += 1
    return turns


def listens(h: Harness) -> bool:
    parts, part = h.scheduler.parts, h.scheduler.part(Tenants)
    return part in [method.__self__ for method in (*parts.turns, *parts.gives_way)]


# --- turns ---


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
def test_tenants_take_turns_in_the_queue(policy: str) -> None:
    h = harness(schedule_policy=policy)
    for i in range(6):
        h.add(f"big{i}", [10 + i] * 8, tenant="big", ignore_eos=True)
    for i in range(3):
        h.add(f"small{i}", [20 + i] * 8, tenant="small", ignore_eos=True)
    h.drain()
    assert [rid[:-1] for rid in admitted(h)] == ["big", "small"] * 3 + ["big"] * 3
    for rid in h.requests:
        h.assert_output(rid)


def test_turns_are_weighted() -> None:
    h = harness()
    for i in range(40):
        h.add(f"a{i}", [10, i + 1] * 4, tenant="a", weight=3.0, ignore_eos=True)
        h.add(f"b{i}", [20, i + 1] * 4, tenant="b", weight=1.0, ignore_eos=True)
    h.drain()
    first = Counter(rid[0] for rid in admitted(h)[:40])
    assert 28 <= first["a"] <= 32


def test_within_a_tenant_the_order_is_as_without_others() -> None:
    h = harness()
    h.add("a0", [1] * 8, tenant="a")
    h.add("a1", [2] * 8, tenant="a")
    h.add("a2", [3] * 8, tenant="a", priority=1)
    h.add("b0", [4] * 8, tenant="b", priority=-1)
    h.drain()
    assert [rid for rid in admitted(h) if rid[0] == "a"] == ["a2", "a0", "a1"]
    assert admitted(h).index("b0") == 1, "no priority overtakes another tenant's turn"


def test_a_tenant_that_was_away_has_saved_nothing() -> None:
    h = harness()
    h.add("b", [9] * 8, tenant="b")
    h.drain()
    for i in range(8):
        h.add(f"a{i}", [10 + i] * 8, tenant="a")
    h.drain()
    for i in range(8):
        h.add(f"c{i}", [30 + i] * 8, tenant="a", ignore_eos=True)
        h.add(f"d{i}", [40 + i] * 8, tenant="b", ignore_eos=True)
    first = len(admitted(h))
    h.drain()
    counts = Counter(rid[0] for rid in admitted(h)[first : first + 8])
    assert counts["c"] == counts["d"] == 4


def test_the_rows_of_a_group_wait_for_the_turns_of_others() -> None:
    h = harness(max_running_requests=2, num_slots=4096)
    h.add_embed("many", [[1 + i % 40, 2 + i // 40] * 3 for i in range(600)], "last", tenant="big")
    for _ in range(4):
        h.turn()
    h.add("one", [5, 6, 7], max_tokens=1, tenant="small", ignore_eos=True)
    assert turns_until_end(h, "one") < 10
    h.drain()
    h.assert_embeddings("many")


def test_requests_of_the_server_itself_come_first() -> None:
    h = harness()
    for i in range(4):
        h.add(f"a{i}", [10 + i] * 8, tenant="a")
        h.add(f"b{i}", [20 + i] * 8, tenant="b")
    h.add("check", [1, 2], max_tokens=1)
    h.drain()
    assert admitted(h).index("check") <= 1


# --- rows ---


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_states", [0, 24])
def test_a_tenant_without_a_row_gets_one(depth: int, num_states: int) -> None:
    h = harness(max_running_requests=4, depth=depth, num_states=num_states)
    for i in range(4):
        h.add(f"big{i}", [10 + i] * 4, max_tokens=40, tenant="big", ignore_eos=True)
    for _ in range(6):
        h.turn()
    h.add("small", [7, 8, 9], max_tokens=2, tenant="small", ignore_eos=True)
    assert turns_until_end(h, "small") <= 8
    assert not {rid for rid in h.finishes if rid.startswith("big")}
    h.drain()
    assert h.scheduler.counters.retractions == 0, "no slots were missing"
    for rid in h.requests:
        h.assert_output(rid)


def test_rows_are_shared_by_weight_and_stay_where_they_are() -> None:
    h = harness(max_running_requests=4, num_slots=2048)
    for i in range(8):
        h.add(f"a{i}", [10 + i] * 4, max_tokens=50, tenant="a", ignore_eos=True)
    for _ in range(4):
        h.turn()
    for i in range(8):
        h.add(f"b{i}", [20 + i] * 4, max_tokens=50, tenant="b", ignore_eos=True)
    seen = []
    for _ in range(30):
        h.turn()
        seen.append(Counter(req.tenant for req in h.scheduler.active))
    assert seen[-1] == {"a": 2, "b": 2}
    rows = [{req.rid for req in batch.requests} for batch in h.batches[-20:]]
    assert all(rids == rows[0] for rids in rows), "no row goes back and forth"
    h.drain()
    for rid in h.requests:
        h.assert_output(rid)


# --- nothing to share ---


def test_one_tenant_or_none_pays_nothing() -> None:
    h = harness()
    h.add("plain", [1, 2, 3])
    h.add("a", [4, 5, 6], tenant="a")
    assert not listens(h)
    h.add("b", [7, 8, 9], tenant="b")
    assert listens(h)
    h.drain()
    assert not listens(h)
    h.add("c", [7, 8, 9], tenant="b")
    h.scheduler.abort("c", h.now)
    assert not listens(h)


# --- refusals, and how long a small tenant waits ---


def engine(**options: object) -> SimulatedEngine:
    at = SimulatedEngine(CPU, **{"max_running_requests": 4, **options})
    at.run([SimulatedRequest(float(i), IDS.integers(2, 900, 100).astype(np.int32), 30, 30) for i in range(30)])
    return at


def message(rid: str, tenant: str, tokens: int = 100) -> Request:
    ids = pack_i32(IDS.integers(2, 900, tokens))
    return Request.generate(rid, ids, SamplingParams(max_tokens=30), tenant=tenant)


def flood(at: SimulatedEngine, count: int, tenant: str) -> None:
    for i in range(count):
        at.lives[f"{tenant}{i}"] = Life(SimulatedRequest(at.now, IDS.integers(2, 900, 100), 30, 30), 0.0)
        at.scheduler.intake.add(message(f"{tenant}{i}", tenant), at.now)
    at.take()


def test_the_forecast_of_a_tenant_follows_its_turns() -> None:
    at = engine(max_queue_wait_s=1.0)
    flood(at, 100, "big")
    refused = [life for life in at.lives.values() if life.is_refused]
    assert refused
    assert at.scheduler.intake.refusal(message("x", "big"), at.now) is not None
    at.advance(at.now)
    at.now += 0.2
    load = at.scheduler.part(Overload).load
    assert load.stats(at.now, 0).predicted_wait_s < 0.5, "a tenant that has no request open"
    for i in range(4):
        assert at.scheduler.intake.refusal(message(f"small{i}", "small"), at.now) is None
    assert at.scheduler.intake.refusal(message("y", "big"), at.now) is not None


def test_a_tenant_that_fills_the_queue_is_refused_and_not_the_others() -> None:
    at = engine(max_queued_requests=20)
    flood(at, 40, "big")
    full = at.scheduler.intake.refusal(message("x", "big"), at.now)
    assert full is not None
    assert "the queue is full" in full.message
    assert at.scheduler.intake.refusal(message("small", "small"), at.now) is None
    flood(at, 40, "small")
    assert Counter(req.tenant for req in at.scheduler.waiting)["small"] <= 10


def test_a_tenant_is_not_refused_rows_for_the_requests_of_others() -> None:
    at = engine(max_queue_wait_s=0.5)
    flood(at, 4, "big")
    rows = [pack_i32(IDS.integers(2, 900, 50)) for _ in range(600)]
    assert at.scheduler.intake.refusal(embed_request("e", rows, "last", tenant="small"), at.now) is None
    assert at.scheduler.intake.refusal(embed_request("e", rows, "last", tenant="big"), at.now) is not None
