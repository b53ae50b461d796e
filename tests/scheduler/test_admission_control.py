"""Refusals of requests at arrival, in simulated time."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from benchmarks.common.simulated_engine import SimulatedEngine, SimulatedRequest
from radixrt.messages.parts import FinishError
from radixrt.messages.reads import LogprobRead
from radixrt.messages.request import Request, Row
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.overload.scheduler import Overload
from radixrt.sampling_params import SamplingParams
from tests.requests import score_request
from tests.scheduler.fake_runner import Harness
from tests.scheduler.simulated_load import CPU

IDS = np.random.default_rng(0)
NUMBERS = itertools.count()


def request(at: float, tokens: int = 100, output: int = 30, **fields: object) -> SimulatedRequest:
    prompt = IDS.integers(2, 900, tokens).astype(np.int32)
    return SimulatedRequest(at, prompt, output, output, **fields)  # type: ignore[arg-type]


def engine(*, train: bool = True, **options: object) -> SimulatedEngine:
    """An engine of four rows that has served a few requests; its clock is before 100 s."""
    at = SimulatedEngine(CPU, **{"max_running_requests": 4, **options})
    if train:
        at.run([request(float(i)) for i in range(30)])
        assert at.scheduler.part(Overload).load.stats(at.now, 0).step_times is not None
    return at


def error(at: SimulatedEngine, compiling: int = 0, *, priority: int = 0, timeout_s: float | None = None) -> FinishError:
    """The refusal of one more request; fails if there is none."""
    message = Request.generate(
        "one more", pack_i32([5] * 50), SamplingParams(max_tokens=8), priority, timeout_s=timeout_s
    )
    found = at.scheduler.part(Overload).refuse(message, at.now, compiling=compiling)
    assert found is not None
    return found


def queue(at: SimulatedEngine, count: int, output: int = 30, **fields: object) -> None:
    """Let `count` requests arrive at once, without running them; they end after the test."""
    for _ in range(count):
        made = request(at.now, output=output)
        at.scheduler.intake.add(
            Request.generate(f"q{next(NUMBERS)}", pack_i32(made.prompt), SamplingParams(max_tokens=output), **fields),
            at.now,
        )
    at.scheduler.next_batch(at.now)
    at.now += 0.2  # forecasts are made anew


def test_an_idle_engine_refuses_nothing() -> None:
    at = engine(max_queue_wait_s=0.0)
    lives = at.run([request(100 + 30.0 * i, tokens=5000, timeout_s=20.0) for i in range(5)])
    assert all(life.is_served for life in lives)


def test_without_data_nothing_is_refused() -> None:
    at = engine(train=False, max_queue_wait_s=0.0)
    assert all(life.is_served for life in at.run([request(0.0) for _ in range(40)]))


def test_a_request_that_would_wait_too_long_is_refused_and_told_when_to_come_back() -> None:
    at = engine(max_queue_wait_s=1.0)
    lives = at.run([request(100.0) for _ in range(100)])
    refused = [life for life in lives if life.is_refused]
    assert 10 < len(refused) < 96
    assert all(life.is_served and life.queue_s < 2.0 for life in lives if not life.is_refused)
    finish = refused[0].finish
    assert finish is not None
    assert finish.error is not None
    assert finish.error.code == "queue_full"
    delay = finish.error.retry_after_s
    assert delay is not None
    assert 0 < delay < 2.0
    later = SimulatedEngine(CPU, max_running_requests=4, max_queue_wait_s=1.0)
    later.run([request(float(i)) for i in range(30)])
    comes_back = request(100.0 + math.ceil(delay))  # as the header says it
    assert later.run([*(request(100.0) for _ in range(100)), comes_back])[-1].is_served


def test_the_requests_own_timeout_bounds_its_wait() -> None:
    at = engine()
    patient, hurried = [request(100.0) for _ in range(60)], [request(100.1, timeout_s=3.0) for _ in range(60)]
    lives = at.run(patient + hurried)
    assert all(life.is_served for life in lives[:60])
    assert all(life.is_refused for life in lives[60:])


def test_an_infinite_wait_is_no_reason_to_refuse() -> None:
    at = engine(max_queue_wait_s=math.inf)
    lives = at.run([request(100.0, timeout_s=3.0) for _ in range(120)])
    assert not any(life.is_refused for life in lives)
    assert any(not life.is_served for life in lives), "their timeouts end them in the queue"


def test_what_its_own_work_will_take_is_left_of_a_timeout() -> None:
    at = engine()
    queue(at, 30)
    long = Request.generate("l", pack_i32([5] * 50), SamplingParams(max_tokens=2000), timeout_s=6.0)
    short = Request.generate("s", pack_i32([5] * 50), SamplingParams(max_tokens=2), timeout_s=6.0)
    assert at.scheduler.intake.refusal(long, at.now) is not None
    assert at.scheduler.intake.refusal(short, at.now) is None


def test_a_higher_priority_waits_only_for_its_equals() -> None:
    at = engine(max_queue_wait_s=1.0)
    queue(at, 60)
    assert error(at).retry_after_s is not None
    message = Request.generate("urgent", pack_i32([5] * 50), SamplingParams(max_tokens=8), priority=1)
    assert at.scheduler.intake.refusal(message, at.now) is None
    error(at, priority=-1)


def test_requests_whose_grammar_is_compiled_stand_before() -> None:
    at = engine(max_queue_wait_s=1.0)
    queue(at, 6)
    message = Request.generate("r", pack_i32([5] * 50), SamplingParams(max_tokens=8))
    assert at.scheduler.intake.refusal(message, at.now) is None
    at.now += 0.2
    error(at, compiling=60)


def test_scoring_requests_count_and_are_refused() -> None:
    def score(rid: str) -> Request:
        path = pack_i32(IDS.integers(2, 900, 1000))
        return score_request(rid, [pack_i32([7] * 20)], [Row(path, 0, LogprobRead(pack_i32([25]), pack_i32([3])))])

    at = engine(max_queue_wait_s=1.0)
    for i in range(20):
        at.scheduler.intake.add(score(f"s{i}"), at.now)
    assert 2 < len(at.scheduler.waiting) < 19
    assert at.scheduler.intake.refusal(score("one more"), at.now) is not None
    assert error(at).code == "queue_full"
    assert at.scheduler.part(Overload).stats(0.0)["refused"] > 0


def test_a_prefix_that_many_share_is_computed_once() -> None:
    """64 branches of one long prompt take as long as one prompt and 64 short ones."""
    at = engine(max_queue_wait_s=3.0, max_running_requests=64)
    prefix = IDS.integers(2, 900, 4000)
    lives = at.run(
        [
            SimulatedRequest(100.0 + 0.001 * i, np.append(prefix, [i] * 10).astype(np.int32), 8, 8)
            for i in range(2, 66)
        ]
    )  # fmt: skip
    assert all(life.is_served for life in lives)
    other = engine(max_queue_wait_s=3.0, max_running_requests=64)
    assert any(life.is_refused for life in other.run([request(100.0, tokens=4000, output=8) for _ in range(64)]))


def test_a_full_queue_tells_when_it_will_move() -> None:
    at = engine(max_queued_requests=10)
    queue(at, 4, output=200)
    queue(at, 10)
    found = error(at)
    assert "the queue is full (10 requests wait)" in found.message
    assert found.retry_after_s is not None
    assert found.retry_after_s > 0.2
    assert (
        engine(train=False, max_queued_requests=1).scheduler.part(Overload).load.stats(0.0, 0).predicted_wait_s == 0.0
    )


def test_the_load_in_numbers() -> None:
    at = engine()
    quiet = at.scheduler.part(Overload).load.stats(at.now, 0)
    assert (quiet.predicted_wait_s, quiet.queued_tokens, quiet.queued_output_tokens) == (0.0, 0, 0)
    queue(at, 24)
    load = at.scheduler.part(Overload).load.stats(at.now, 0)
    assert len(at.scheduler.waiting) == 20
    assert load.queued_tokens == pytest.approx(20 * 100, rel=0.02)
    assert load.queued_output_tokens == pytest.approx(20 * 30, rel=0.05)
    assert 0.5 < load.predicted_wait_s < 10
    times = CPU.times
    assert load.prefill_tokens_per_s == pytest.approx(1024 / times.seconds(0, 0, 1024, 1024**2 / 2), rel=0.5)
    assert load.decode_tokens_per_s == pytest.approx(4 / times.seconds(4, 500), rel=0.3)


def test_a_request_past_its_deadline_costs_no_step() -> None:
    h = Harness(num_slots=400, max_running_requests=1)
    h.add("running", [1] * 5, max_tokens=8, ignore_eos=True)
    h.turn()
    h.add("late", [2] * 5, timeout_s=1.0)
    h.now = 0.99
    h.turn()
    while h.scheduler.active:  # deadlines are looked at every 50 ms, and the row is free before that
        h.now = 1.001
        h.turn()
    h.now = 2.0
    h.drain()
    assert h.finishes["late"].error.code == "timeout"
    assert all(2 not in unpack_i32(step.input_ids) for step in h.steps)


def test_predictions_leave_the_answers_alone() -> None:
    """Random requests of all kinds on a small pool, with aborts: nothing raises, and each ends once."""
    rng = random.Random(1)
    h = Harness(num_slots=96, max_running_requests=3, max_queue_wait_s=0.5, request_timeout_s=30.0, depth=2)
    for i in range(300):
        h.now += rng.expovariate(4.0)
        prompt = [rng.randint(1, 3)] * rng.randint(1, 20) + [rng.randint(4, 9)]
        if rng.random() < 0.15:
            h.add_score(f"r{i}", {tuple(prompt): [[1, 2], [3]]})
        else:
            h.add(f"r{i}", prompt, max_tokens=rng.randint(1, 12), priority=rng.randint(-1, 1))
        if rng.random() < 0.05:
            h.scheduler.abort(f"r{rng.randint(0, i)}", h.now)
        for _ in range(rng.randint(0, 3)):
            h.now += 0.05
            h.turn()
    h.drain()
    assert len(h.finishes) == 300
    refused = [f for f in h.finishes.values() if f.error is not None and f.error.code == "queue_full"]
    assert 0 < len(refused) < 250
    assert h.scheduler.part(Overload).stats(0.0)["refused"] == len(refused)
