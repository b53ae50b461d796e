"""Forecasts of requests with many rows, such as the texts of one request for embeddings, in simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.common.simulated_engine import Life, SimulatedEngine, SimulatedRequest
from radixrt.messages.parts import FinishError
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import EXTRAPOLATION, StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.parts.overload.group_rows import GroupRows
from radixrt.parts.overload.scheduler import Overload
from radixrt.sampling_params import SamplingParams
from tests.requests import embed_request
from tests.scheduler.simulated_load import CPU

IDS = np.random.default_rng(0)


def ids(tokens: int) -> np.ndarray:
    return IDS.integers(2, 900, tokens).astype(np.int32)


def texts(count: int, tokens: int, shared: int = 0) -> list[np.ndarray]:
    prefix = ids(shared)
    return [np.append(prefix, ids(tokens - shared)).astype(np.int32) for _ in range(count)]


def embed(rid: str, rows: list[np.ndarray], **envelope: object) -> Request:
    return embed_request(rid, [pack_i32(row) for row in rows], "last", **envelope)


def generate(rid: str, tokens: int = 3) -> Request:
    return Request.generate(rid, pack_i32(ids(tokens)), SamplingParams(max_tokens=8))


def engine(*, prompts: int = 3, **options: object) -> SimulatedEngine:
    """An engine that has served prompts of one length only."""
    at = SimulatedEngine(CPU, **{"max_running_requests": 16, **options})
    at.run([SimulatedRequest(float(i), ids(prompts), 8, 8) for i in range(30)])
    return at


def add(at: SimulatedEngine, message: Request) -> None:
    at.lives[message.rid] = Life(SimulatedRequest(at.now, ids(1), 1000, 1000), 0.0)
    at.scheduler.intake.add(message, at.now)
    at.take()


def refusal(at: SimulatedEngine, message: Request) -> FinishError | None:
    return at.scheduler.intake.refusal(message, at.now)


@pytest.mark.parametrize(
    ("rows", "factor"),
    [
        (texts(2048, 5), 1.5),
        (texts(2048, 50), 2.5),
        (texts(300, 900), 4.0),
        ([ids(200)] * 2048, 2.0),
        (texts(2048, 200, shared=150), 2.0),
    ],
    ids=["short", "medium", "long", "equal", "a common beginning"],
)
def test_the_forecast_of_many_rows_comes_true(rows: list[np.ndarray], factor: float) -> None:
    """The rows are sequences of their own, and what they have in common counts once."""
    at = engine()
    begin = at.now
    add(at, embed("many", rows))
    assert at.scheduler.waiting, "refused"
    assert refusal(at, generate("neighbour")) is None
    while at.now < begin + 0.5:  # the first steps with long chunks
        at.advance(at.now)
    forecast = at.scheduler.part(Overload).load.stats(at.now, 0).predicted_wait_s + at.now - begin
    assert refusal(at, generate("neighbour")) is None
    while not at.scheduler.is_idle:
        at.advance(at.now)
        at.take()
    took = at.lives["many"].ended_at - begin
    assert took / factor < forecast < took * factor


def test_rows_that_the_cache_holds_take_no_time() -> None:
    rows = texts(40, 100)
    held = GroupRows(embed("r", rows), lambda row: len(row))
    new = GroupRows(embed("r", rows), lambda row: 0)
    assert held.rest(0).tokens == pytest.approx(40)
    assert new.rest(0) == pytest.approx((4000, 40 * 100**2 / 2, 40))
    assert new.rest(39) == pytest.approx((100, 100**2 / 2, 1))
    assert new.rest(40) == (0, 0, 0)
    assert new.longest == 100


def test_a_chunk_beyond_the_measured_ones_is_bounded() -> None:
    small = StepTimes(step=0.0, row=0.0, context=0.0, extend=0.01, token=0.01, pair=0.0, most_tokens=3, most_pairs=6)
    assert small.bounded_chunk_seconds(3, 6) == pytest.approx(0.04)
    assert small.bounded_chunk_seconds(1000, 500_000) == pytest.approx(EXTRAPOLATION * 0.04)
    unknown = StepTimes(step=0.0, row=0.0, context=0.0, extend=0.01, token=0.01, pair=0.0)
    assert unknown.bounded_chunk_seconds(1000, 0) == pytest.approx(10.01)


def test_the_fit_knows_its_largest_chunk() -> None:
    times = engine(prompts=4).scheduler.step_time.times
    assert (times.most_tokens, times.most_pairs) == (4, 10)


def test_rows_that_would_make_the_queue_long_are_refused_and_not_the_neighbours() -> None:
    at = engine(max_queue_wait_s=2.0)
    for i in range(60):
        add(at, generate(f"w{i}", tokens=100))
        at.advance(at.now)
    while at.scheduler.waiting:
        at.advance(at.now)
        at.take()
    assert at.scheduler.active
    found = refusal(at, embed("many", texts(2048, 50)))
    assert found is not None
    assert (found.code, found.status) == ("queue_full", 429)
    assert "2048 rows" in found.message
    assert "max_queue_wait_s" in found.message
    most = int(found.message.split("send at most ")[1].split()[0])
    assert 10 < most < 1000
    assert refusal(at, embed("fewer", texts(most // 2, 50))) is None
    assert refusal(at, generate("neighbour")) is None


def test_an_idle_engine_computes_rows_however_many() -> None:
    at = engine(max_queue_wait_s=2.0)
    assert refusal(at, embed("many", texts(2048, 50))) is None


def test_rows_that_their_timeout_leaves_no_time_for_are_refused_at_once() -> None:
    at = engine(prompts=100)
    found = refusal(at, embed("many", texts(2048, 50), timeout_s=5.0))
    assert found is not None
    assert "(its timeout)" in found.message
    assert refusal(at, embed("few", texts(40, 50), timeout_s=5.0)) is None
