"""Prices grow with what a request waits for, computes, and costs the others."""

from __future__ import annotations

import pytest

from radixrt.messages.images import RowImage
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import LoadStats, SchedulerStats, StepTimes, TierStats
from radixrt.messages.wire import pack_i32
from radixrt.router.prices import divide_fork, price_s, wait_s
from radixrt.router.replica_load import ReplicaInfo, ReplicaLoad, share_times
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.sampling_params import SamplingParams

TIMES = StepTimes(step=5e-3, row=2e-5, context=4e-8, extend=0.0, token=2.5e-5, pair=0.0, decode_steps=9, extend_steps=9)
INFO = ReplicaInfo(100_000, 8, 8192, times=TIMES)


def request(rid: str, work: Work) -> RoutedRequest:
    made = RoutedRequest(
        Request.generate(rid, pack_i32([1] * work.length), SamplingParams(max_tokens=100)), 1, 1, 0.0,
        max_len=100_000, timeout_s=60.0,
    )  # fmt: skip
    made.work = work
    return made


def image(start: int, count: int, digest: bytes = b"a") -> RowImage:
    return RowImage(start, count, 1, count, 32, 32 * count, digest, "")


def loaded(rows: int, work: Work, *, started: bool = True) -> ReplicaLoad:
    load = ReplicaLoad(INFO, 1, 0.0)
    for i in range(rows):
        each = request(f"r{i}", work)
        load.sent(each)
        if started:
            each.has_started = True
            load.started(each)
    return load


def test_an_idle_replica_costs_the_work_alone() -> None:
    idle = loaded(0, Work(0, 0, 0))
    assert wait_s(idle, Work(4000, 4000, 0)) == 4000 * TIMES.token
    step = TIMES.step + TIMES.row + TIMES.context * 4000
    assert abs(price_s(idle, Work(4000, 4000, 10)) - (0.1 + 10 * step)) < 1e-9


def test_a_miss_costs_every_request_that_is_open_there() -> None:
    work = Work(100, 1000, 50)
    few, many = loaded(1, work), loaded(6, work)
    hit, miss = Work(10, 2000, 20), Work(2010, 2000, 20)
    costs = [price_s(load, miss) - price_s(load, hit) for load in (few, many)]
    assert costs[1] > costs[0] + 5 * 1900 * TIMES.token


def test_prompts_ahead_rows_and_slots_are_waited_for() -> None:
    work = Work(1000, 1000, 50)
    new = Work(100, 1000, 50)
    assert wait_s(loaded(3, work, started=False), new) > wait_s(loaded(3, work), new) + 2800 * TIMES.token
    assert wait_s(loaded(8, work), new) > wait_s(loaded(7, work), new) + 3 * TIMES.step, "no row is free"
    full = loaded(7, work)
    full.reachable = 0.0
    assert wait_s(full, new) > wait_s(loaded(7, work), new)


def test_a_report_replaces_what_was_assumed() -> None:
    load = loaded(2, Work(1000, 1000, 50))
    stats = SchedulerStats(
        waiting=0, running=2, slots_total=100_000, slots_free=10, slots_evictable=500, slots_protected=2000,
        prompt_tokens=0, cached_tokens=0, generated_tokens=0, evicted_tokens=0, retractions=0, finished=0,
        extend_steps=0, decode_steps=0, schedule_s=0.0, runner_s=0.0, commit_s=0.0,
        load=LoadStats(step_times=StepTimes(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, extend_steps=3)),
    )  # fmt: skip
    load.reported(stats)
    share_times([load])
    assert (load.free, load.reachable) == (10, 510 - 2 * 50)
    assert load.times.step == 1.0


def test_a_small_fork_stays_with_its_prefix_and_a_large_one_spreads() -> None:
    loads = {i: ReplicaLoad(ReplicaInfo(900_000, 256, 8192, times=TIMES), 1, 0.0) for i in range(4)}
    hits = {2: 4096}
    assert divide_fork(loads, hits, 4096, Work(200, 4296, 96), 3) == {2: 3}
    spread = divide_fork(loads, hits, 4096, Work(800, 4896, 256), 64)
    assert sum(spread.values()) == 64
    assert len(spread) == 4
    assert max(spread.values()) == spread[2], "those with the prefix take the most"
    assert sum(divide_fork(loads, {}, 4096, Work(1, 4097, 8), 1000).values()) == 1000


def test_a_busy_replica_with_the_prefix_gives_branches_to_idle_ones() -> None:
    loads = {i: ReplicaLoad(ReplicaInfo(900_000, 256, 8192, times=TIMES), 1, 0.0) for i in range(2)}
    for i in range(100):
        loads[0].sent(request(f"r{i}", Work(8000, 8000, 200)))
    assert divide_fork(loads, {0: 4096}, 4096, Work(200, 4296, 96), 8) == {1: 8}


def test_replicas_have_one_model_of_step_times() -> None:
    loads = [ReplicaLoad(INFO, epoch, 0.0) for epoch in (1, 2, 3)]
    before = loads[2].times
    share_times(loads)
    assert loads[2].times is before
    loads[0].fitted = StepTimes(0.01, 0.0, 0.0, 0.0, 2e-5, 0.0, decode_steps=3, extend_steps=1)
    loads[1].fitted = StepTimes(0.03, 0.0, 0.0, 0.0, 4e-5, 0.0, decode_steps=5, extend_steps=1)
    share_times(loads)
    times = loads[2].times
    assert (round(times.step, 9), round(times.token, 9), times.decode_steps) == (0.02, 3e-5, 8)
    assert all(load.times is times for load in loads), "a replica without a model is as fast as the others"


def test_replicas_have_one_time_for_a_fetched_token() -> None:
    loads = [ReplicaLoad(INFO, epoch, 0.0) for epoch in (1, 2, 3)]
    share_times(loads)
    assert not loads[2].fetch_token_s
    loads[0].tiers = TierStats(fetch_token_s={"host": 1e-6, "disk": 3e-6, "peer": 2e-6})
    loads[1].tiers = TierStats(fetch_token_s={"host": 3e-6, "disk": 5e-6, "peer": 6e-6}, state_tokens=10)
    share_times(loads)
    for load in loads:
        assert load.fetch_token_s == pytest.approx({"host": 2e-6, "disk": 4e-6, "peer": 4e-6})
    assert loads[1].move_s("disk", 90) == pytest.approx(4e-4)
    assert loads[2].move_s("disk", 100) == pytest.approx(4e-4)


def test_an_image_costs_its_encoding_where_its_positions_are_missed() -> None:
    """64 tokens behind an image of 1,000: a replica that has all but the last 64 tokens, and others."""
    text, shown = Work(1064, 1064, 10), Work(1064, 1064, 10, (image(0, 1000),))
    cached, half = shown._replace(miss=64), shown._replace(miss=500)
    assert [work.encode for work in (text, shown, half, cached)] == [0, 1000, 1000, 0]
    for rows in (0, 3):
        load = loaded(rows, Work(100, 1000, 50))
        load.position_s = 1e-4
        assert wait_s(load, shown) >= wait_s(load, text) + 0.1
        assert price_s(load, shown) - price_s(load, text) >= 0.1 * (1 + rows)
        assert price_s(load, cached) == price_s(load, text._replace(miss=64))
        assert price_s(load, half) - price_s(load, text._replace(miss=500)) >= 0.1 * (1 + rows)


def test_a_picture_goes_to_its_prefix_although_that_replica_is_busier() -> None:
    """The prefix alone would not be worth the wait."""
    busy, idle = loaded(7, Work(3000, 6000, 500)), loaded(0, Work(0, 0, 0))
    shown = Work(1064, 1064, 10, (image(0, 1000),))
    for position_s, is_cheaper in ((0.0, False), (2e-3, True)):
        busy.position_s = idle.position_s = position_s
        assert (price_s(busy, shown._replace(miss=64)) < price_s(idle, shown)) == is_cheaper


def test_encodings_ahead_are_waited_for_until_the_first_output() -> None:
    load = loaded(3, Work(1000, 1000, 50, (image(0, 900),)), started=False)
    load.position_s = 1e-3
    assert load.unstarted_encode == 2700
    assert wait_s(load, Work(100, 1000, 50)) > 2.7
    for each in list(load.open.values())[:2]:
        each.has_started = True
        load.started(each)
    load.ended(each)
    assert load.unstarted_encode == 900
    load.ended(next(iter(each for each in load.open.values() if not each.has_started)))
    assert load.unstarted_encode == 0


def test_encodings_count_as_prompts_ahead() -> None:
    load = loaded(2, Work(1000, 1000, 50, (image(0, 900),)), started=False)
    assert load.shortage == ""
    load.position_s = 20 * TIMES.token
    assert load.shortage == "prompts"


def test_a_fork_stays_with_an_image_that_others_would_encode() -> None:
    """Images of the branches themselves are encoded wherever a branch goes."""
    loads = {i: ReplicaLoad(ReplicaInfo(900_000, 256, 8192, times=TIMES), 1, 0.0) for i in range(4)}
    shared, own = (Work(200, 4296, 96, (image(*span),)) for span in ((0, 4000), (4100, 150)))
    assert len(divide_fork(loads, {2: 4096}, 4096, shared, 8)) == 4
    for load in loads.values():
        load.position_s = 1e-4
    assert divide_fork(loads, {2: 4096}, 4096, shared, 8) == {2: 8}
    assert len(divide_fork(loads, {2: 4096}, 4096, own, 8)) == 4


def test_replicas_have_one_time_of_encoding() -> None:
    loads = [ReplicaLoad(INFO, epoch, 0.0) for epoch in (1, 2, 3)]
    loads[0].encoding_s, loads[1].encoding_s = 1e-3, 3e-3
    share_times(loads)
    assert [load.position_s for load in loads] == [2e-3] * 3
