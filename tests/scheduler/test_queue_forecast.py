"""Forecasts of a queue against what a scheduler would do, counted by hand."""

from __future__ import annotations

import random

import pytest

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.parts.overload.forecast import QueueForecast, Work

SECOND = StepTimes(step=1.0, row=0.0, context=0.0, extend=0.0, token=0.0, pair=0.0)
"""Each step takes a second, whatever is in it."""


def forecast(times: StepTimes = SECOND, **sizes: float) -> QueueForecast:
    sizes = {"max_rows": 2, "chunk_tokens": 100, "free_slots": 1e6, **sizes}
    return QueueForecast(times, **sizes)  # type: ignore[arg-type]


def decoding(output: float, slots: float = 0.0) -> Work:
    return Work(prefill=0, length=10, output=output, slots=slots)


def prompt(tokens: float, output: float = 1.0, slots: float = 0.0) -> Work:
    return Work(prefill=tokens, length=tokens, output=output, slots=slots)


def test_an_idle_engine_admits_at_once() -> None:
    assert forecast().admit(prompt(10)) == 0.0
    assert forecast().admit(prompt(10_000)) == 0.0


def test_with_all_rows_taken_the_next_to_end_makes_room() -> None:
    at = forecast()
    at.run(decoding(30))
    at.run(decoding(10))
    assert at.admit(prompt(1, output=5)) == 10.0
    assert at.admit(prompt(1, output=5)) == 16.0  # one step for the prompt, five for the output
    assert at.admit(prompt(1, output=50)) == 22.0
    assert at.admit(prompt(1)) == 30.0


def test_a_request_waits_for_slots_as_well() -> None:
    at = forecast(max_rows=8, free_slots=10)
    at.run(decoding(5, slots=40))
    at.run(decoding(9, slots=40))
    assert at.admit(prompt(1, slots=10)) == 0.0
    assert at.admit(prompt(1, slots=40)) == 5.0
    assert at.admit(prompt(1, slots=40)) == 7.0  # what the second request of the queue gives back


def test_a_request_that_fits_nowhere_follows_when_all_others_have_ended() -> None:
    at = forecast(free_slots=10)
    at.run(decoding(7, slots=40))
    assert at.admit(prompt(1, slots=1000)) == 7.0


def test_prompts_wait_for_the_budget_of_prompts_before_them() -> None:
    at = forecast(max_rows=64)
    assert [at.admit(prompt(50)) for _ in range(5)] == [0.0, 0.0, 1.0, 1.0, 2.0]


def test_time_is_what_the_model_says_for_the_rows_of_the_moment() -> None:
    times = StepTimes(step=1.0, row=0.5, context=0.01, extend=0.0, token=0.0, pair=0.0)
    at = forecast(times)
    at.run(Work(prefill=0, length=100, output=4, slots=0))
    at.run(Work(prefill=0, length=100, output=2, slots=0))
    both, one = times.seconds(2, 203), times.seconds(1, 102)  # lengths count with half of the output
    assert at.admit(prompt(1, output=1)) == pytest.approx(2 * both)
    rest = times.seconds(2, 102 + 1.5)
    assert at.admit(prompt(1, output=1)) == pytest.approx(2 * both + 2 * rest)
    assert one < rest


def test_the_time_of_prompts_is_part_of_the_wait_behind_them() -> None:
    times = StepTimes(step=0.0, row=0.0, context=0.0, extend=1.0, token=0.01, pair=0.0)
    at = forecast(times, max_rows=64)
    at.admit(prompt(1000))
    # ten chunks: their fixed time, the first of them begins the run of steps with prompts, and 1000 tokens
    assert at.admit(prompt(1)) == pytest.approx(10 + 1 + 10)


def test_what_is_cached_costs_nothing_but_attention() -> None:
    times = StepTimes(step=0.0, row=0.0, context=0.0, extend=0.0, token=0.01, pair=1e-4)
    at = forecast(times, max_rows=64)
    at.admit(Work(prefill=200, length=1200, output=1, slots=0))
    assert at.admit(prompt(1)) == pytest.approx(200 * 0.01 + 1e-4 * 200 * (1000 + 100))


def test_asking_for_one_more_changes_nothing() -> None:
    at = forecast()
    for output in (3, 8):
        at.run(decoding(output))
    first = [at.with_next(prompt(1)).clock for _ in range(3)]
    assert first == [3.0] * 3
    assert at.with_next(prompt(1)).with_next(prompt(1)).clock > 3.0
    assert at.admit(prompt(1)) == 3.0


def test_waits_never_fall_along_the_queue() -> None:
    rng = random.Random(0)
    times = StepTimes(step=8e-3, row=4e-4, context=2e-7, extend=2e-3, token=2.5e-4, pair=6e-8)
    for _ in range(50):
        at = forecast(times, max_rows=rng.randint(1, 8), free_slots=rng.randint(0, 3000))
        for _ in range(rng.randint(0, 8)):
            at.run(decoding(rng.randint(0, 50), slots=rng.randint(1, 500)))
        waits = [at.admit(prompt(rng.randint(0, 400), rng.randint(0, 50), rng.randint(0, 900))) for _ in range(40)]
        assert waits == sorted(waits)
        assert waits[0] >= 0.0


def test_other_inputs_take_their_seconds() -> None:
    """The image of a request takes as long as four steps, which the next prompt waits for."""
    times = StepTimes(step=1.0, row=0.0, context=0.0, extend=0.0, token=0.01, pair=0.0)
    at = forecast(times, max_rows=64)
    shown = prompt(100, output=50)._replace(inputs_s=8.0)
    assert at.prompt_seconds(shown) == at.prompt_seconds(prompt(100)) + 8.0
    at.admit(shown)
    beside = forecast(times, max_rows=64)
    beside.admit(prompt(100, output=50))
    assert at.admit(prompt(1)) == pytest.approx(beside.admit(prompt(1)) + 8.0 + 4.0)
