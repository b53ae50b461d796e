"""Steps of a model in pipeline stages: their rows, the ids that they carry, and chunks of equal time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import step_shape
from radixrt.messages.wire import unpack_i32
from radixrt.parts.overload.scheduler import Overload
from radixrt.parts.stages.scheduler import StagePacing
from radixrt.scheduler.pacing import MIN_CHUNK_TOKENS, Pacing, TimedBudget
from radixrt.scheduler.schedule_batch import DECODE
from radixrt.scheduler.step_time import StepTimeFit
from tests.scheduler.fake_runner import Harness
from tests.scheduler.scripted_grammar import ScriptedGrammar, expected_constrained

TIMES = StepTimes(step=5e-3, row=0.0, context=0.0, extend=1e-3, token=1e-4, pair=1e-8, extend_steps=100)
FITTED = SimpleNamespace(times=TIMES)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_row_is_in_one_step_in_flight_and_brings_its_id(stages: int) -> None:
    h = Harness(num_slots=256, stages=stages, depth=stages, max_running_requests=7, max_context=64)
    prompts = {f"r{i}": [i + 1] * (3 + i) for i in range(7)}
    for rid, prompt in prompts.items():
        h.add(rid, prompt, max_tokens=20, ignore_eos=True)
    while h.turn():
        in_flight = [req.rid for batch in h.inflight for req in batch.sampled]
        assert len(set(in_flight)) == len(in_flight)
    for rid in prompts:
        h.assert_output(rid)
    decode = [(batch, step) for batch, step in zip(h.batches, h.steps, strict=True) if step.mode == DECODE]
    assert decode
    for batch, step in decode:
        assert len(step.input_ids) == len(step.req_pool_idx)
        rows = zip(batch.sampled, unpack_i32(step.input_ids), unpack_i32(step.seq_lens), strict=True)
        for req, token, length in rows:
            assert req.ids[length - 1] == token


def test_rows_are_divided_equally_and_none_is_overtaken() -> None:
    h = Harness(num_slots=512, stages=2, depth=2, max_running_requests=9, max_context=64)
    for i in range(9):
        h.add(f"r{i}", [i + 1, 2], max_tokens=12, ignore_eos=True)
    h.drain()
    served = [[req.rid for req in batch.sampled] for batch in h.batches if batch.step.mode == DECODE]
    assert {len(rows) for rows in served[:10]} <= {4, 5}
    for first, second in zip(served[:10:2], served[1:10:2], strict=True):
        assert len(set(first + second)) == 9, "within two steps every row gets a token"


def test_of_more_free_rows_than_a_share_the_longest_unserved_are_served() -> None:
    """Other rows are free beyond a step's share once many rows of one step end."""
    rows: list[Any] = [
        SimpleNamespace(last_step=step, num_pending=pending)
        for step, pending in ((7, 0), (3, 0), (8, 1), (-1, 0), (5, 0))
    ]
    assert [row.last_step for row in StagePacing(2).rows(rows)] == [-1, 3, 5]
    assert Pacing().rows(rows) == rows


def test_chunks_of_a_prompt_follow_each_other_without_an_answer() -> None:
    h = Harness(num_slots=256, stages=3, depth=3, chunked_prefill_size=10, max_context=64)
    h.add("long", list(range(1, 41)), max_tokens=3, ignore_eos=True)
    assert [h.submit() for _ in range(3)] == [True] * 3
    assert [unpack_i32(step.seq_lens).tolist() for step in h.steps] == [[10], [20], [30]]
    h.drain()
    h.assert_output("long")


@pytest.mark.parametrize("seed", range(4))
def test_masks_of_all_steps_in_flight(seed: int) -> None:
    h = Harness(num_slots=512, stages=2, depth=2, max_running_requests=6, max_context=96)
    for i in range(6):
        h.add(f"r{i}", [i + 1, 5], grammar=ScriptedGrammar(seed + i), max_tokens=30)
    h.submit()
    h.commit()
    assert h.submit()
    assert h.submit()
    assert all(batch.step_id in h.runner.masks for batch in h.inflight), "a step waits for no answer but its rows' own"
    h.drain()
    for i in range(6):
        tokens, *_ = expected_constrained([i + 1, 5], h.requests[f"r{i}"].sampling, h.max_len, seed + i)
        assert h.outputs[f"r{i}"] == tokens


# --- times ---


def seconds(start: int, tokens: int) -> float:
    return tokens * (TIMES.token + TIMES.pair * (start + tokens / 2))


def test_chunks_take_equal_time_not_equal_tokens() -> None:
    chunks = StagePacing(2)
    start, total, taken = 0, 30_000, []
    while start < total:
        budget = chunks.budget(4096, FITTED, [(start, total - start)])
        tokens = min(total - start, budget.tokens_behind(start))
        taken.append((tokens, seconds(start, tokens)))
        start += tokens
    first, last = taken[0], taken[-2]
    assert last[0] < 0.5 * first[0]
    assert last[1] == pytest.approx(first[1], rel=0.1)
    assert all(tokens <= 4096 for tokens, _ in taken)


def test_a_burst_has_the_number_of_steps_that_ends_it_first() -> None:
    work, stages = 8192, 4
    tokens = StagePacing(stages).budget(1 << 20, FITTED, [(0, work)]).tokens_behind(0)

    def until_done(steps: int) -> float:
        return (steps + stages - 1) * (seconds(0, work) / steps + TIMES.step + TIMES.extend)

    best = min(until_done(steps) for steps in range(1, 200))
    assert until_done(round(seconds(0, work) / seconds(0, tokens))) < 1.05 * best


def test_steps_stay_as_long_during_a_burst_and_shrink_for_the_next_one() -> None:
    chunks = StagePacing(2)
    long = chunks.budget(1 << 20, FITTED, [(0, 50_000)]).tokens_behind(0)
    assert chunks.budget(1 << 20, FITTED, [(0, 100)]).tokens_behind(0) == long
    chunks.no_prompts()
    assert chunks.budget(1 << 20, FITTED, [(0, 100)]).tokens_behind(0) < long


def test_one_stage_and_unknown_times_leave_the_budget_in_tokens() -> None:
    assert Pacing().budget(999, FITTED, [(0, 50)]).tokens_behind(10**6) == 999
    unknown = StepTimes(step=5e-3, row=0.0, context=0.0, extend=1e-3, token=1e-4, pair=1e-7)
    assert StagePacing(2).budget(999, SimpleNamespace(times=unknown), [(0, 50)]).tokens_behind(10**6) == 999


def test_a_budget_of_seconds_ends_with_them() -> None:
    budget = TimedBudget(10_000, 0.5, TIMES)
    tokens = budget.tokens_behind(0)
    assert tokens % MIN_CHUNK_TOKENS == 0
    assert seconds(0, tokens) <= 0.5 < seconds(0, tokens + MIN_CHUNK_TOKENS)
    budget.spend(0, tokens)
    assert budget.tokens_behind(tokens) == 0
    slow = TimedBudget(10_000, 1e-9, TIMES)
    assert slow.tokens_behind(10**7) == MIN_CHUNK_TOKENS, "there is always a first chunk"


def test_a_pair_that_costs_nothing() -> None:
    times = StepTimes(step=5e-3, row=0.0, context=0.0, extend=1e-3, token=1e-3, pair=0.0, extend_steps=100)
    assert TimedBudget(10_000, 1.0, times).tokens_behind(5000) == 1000 - 1000 % MIN_CHUNK_TOKENS


def test_the_model_of_times_is_of_one_stage() -> None:
    """Three stages of 10 ms each: alone, a step ends after 30 ms; in a full pipeline, 10 ms after the one before."""
    h = Harness(num_slots=512, max_running_requests=8)
    for i in range(8):
        h.add(f"r{i}", [i + 1, 2, 3], max_tokens=30, ignore_eos=True)
    h.drain()
    shapes = [step_shape(step) for step in h.steps if step.mode == DECODE]
    full, alone = StepTimeFit(stages=3), StepTimeFit(stages=3)
    for i, shape in enumerate(shapes):
        full.answered(shape, decided_at=1.0 + 0.01 * (i - 2), forward_s=9.0, now=1.0 + 0.01 * (i + 1))
        alone.answered(shape, decided_at=1.0 + 0.05 * i, forward_s=9.0, now=1.03 + 0.05 * i)
    for fit in (full, alone):
        assert fit.times.seconds(*shapes[-1]) == pytest.approx(0.01, rel=0.1)
        assert fit.recent_turn_s == pytest.approx(0.03, rel=0.15)
        assert fit.turn_times.step == pytest.approx(3 * fit.times.step)
    assert math.isclose(StepTimeFit().recent_turn_s, 0.0)


def test_the_load_of_stages_is_that_of_all_rows() -> None:
    """Whoever plays a queue forward gives each row a token in a step, which is one step of each stage here."""
    scheduler = Harness(stages=3).scheduler
    times = scheduler.part(Overload).load.stats(0.0, 0).step_times
    assert times is not None
    assert times.step == 3 * scheduler.step_time.times.step
    assert times.row == scheduler.step_time.times.row
