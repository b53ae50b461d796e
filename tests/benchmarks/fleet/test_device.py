"""A step-time model is fitted to a step trace, and its error is that of steps that it has not seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from benchmarks.fleet.device import TracedStep, fit_steps, read_step_trace
from radixrt.messages.runner import ForwardStep
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import StepShape, step_shape
from radixrt.messages.wire import pack_i32
from radixrt.runner.step_trace import StepTrace

TRUE = StepTimes(step=4e-3, row=1e-4, context=2e-7, extend=1e-3, token=5e-5, pair=1e-9)


def random_steps(count: int, noise: float) -> list[TracedStep]:
    rng = random.Random(1)
    steps = []
    for i in range(count):
        rows = rng.randint(1, 64)
        tokens = rng.randint(2, 2000) if i % 3 == 0 else 0
        shape = StepShape(rows, rows * rng.randint(10, 3000), tokens, tokens * rng.randint(10, 4000))
        steps.append(TracedStep(shape, TRUE.seconds(*shape) * rng.lognormvariate(0, noise)))
    return steps


def test_the_fit_finds_the_coefficients_of_exact_times() -> None:
    fit = fit_steps(random_steps(200, 0.0))
    for name in ("step", "row", "context", "extend", "token", "pair"):
        assert getattr(fit.times, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)
    assert fit.p90 < 1e-6
    assert fit.held_out == 100


def test_the_error_is_that_of_the_noise_and_outliers_do_not_count() -> None:
    steps = random_steps(400, 0.1)
    for i in range(0, 400, 50):
        steps[i] = TracedStep(steps[i].shape, steps[i].seconds * 200)
    fit = fit_steps(steps)
    assert 0.03 < fit.median < 0.12
    assert abs(fit.bias) < 0.1
    assert fit.times.context == pytest.approx(TRUE.context, rel=0.3)


def test_no_coefficient_is_negative() -> None:
    steps = [TracedStep(StepShape(rows, 100 * rows), 1e-2 - 1e-5 * rows) for rows in range(1, 60)]
    assert min(fit_steps(steps).times.seconds(0, 0), fit_steps(steps).times.row, fit_steps(steps).times.context) >= 0


def prompt_step(step_id: int) -> ForwardStep:
    return ForwardStep(
        step_id=step_id, mode=1, req_pool_idx=pack_i32([1, 2]), seq_lens=pack_i32([5, 6]),
        out_cache_loc=pack_i32([3, 4, 5, 6]), extend_lens=pack_i32([3, 1]), input_ids=pack_i32([1, 2, 3, -1]),
        samples=b"\1\1",
    )  # fmt: skip


def test_a_trace_of_the_runner_is_read_with_the_shapes_of_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    trace = StepTrace(str(path), torch.device("cpu"))
    for step_id in range(16):
        times = trace.begin(prompt_step(step_id))
        trace.forward(times)
        trace.forwarded(times)
        trace.sampling(times)
        trace.sampled(times)
        trace.answered(times)
    steps = read_step_trace(path)  # a runner that was killed leaves the array open
    trace.close()
    assert len(steps) == len(read_step_trace(path)) == 16
    assert {step.shape for step in steps} == {step_shape(prompt_step(0))} == {StepShape(1, 6, 3, 12.0)}
    assert all(step.seconds > 0 for step in steps)


def test_what_is_no_step_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    old = '[{"name": "answer decode", "ts": 1, "args": {"step": 0, "rows": 1, "tokens": 1}}]'
    for text, named in (("{", "is not a step trace"), ("[]", "has 0 steps"), (old, "no shapes of steps")):
        path.write_text(text)
        with pytest.raises(ValueError, match=named):
            read_step_trace(path)
