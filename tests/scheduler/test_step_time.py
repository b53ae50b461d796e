"""The step-time model: it finds known coefficients, and is not led astray."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import StepShape, step_shape
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.schedule_batch import DECODE
from radixrt.scheduler.step_time import CLIP, MEMORY, StepTimeFit
from tests.scheduler.fake_runner import Harness
from tests.scheduler.recorded_steps import RECORDED

TRUTH = StepTimes(step=8e-3, row=4e-4, context=2e-7, extend=2e-3, token=2.5e-4, pair=6e-8)


def slower(times: StepTimes, factor: float) -> StepTimes:
    """The same machine, slower in everything."""
    return StepTimes(*(factor * value for value in msgspec.structs.astuple(times)[:6]))


class Steps:
    """Random steps of a mixed load."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)

    def decode(self, rows: int | None = None) -> StepShape:
        rows = self.rng.randint(1, 64) if rows is None else rows
        return StepShape(rows, sum(self.rng.randint(50, 1500) for _ in range(rows)))

    def extend(self) -> StepShape:
        rest = self.decode(self.rng.randint(0, 64))
        new, start = self.rng.randint(20, 1024), self.rng.randint(0, 2000)
        return StepShape(rest.rows, rest.context, new, new * start + new * (new + 1) / 2)

    def mixed(self) -> StepShape:
        return self.extend() if self.rng.random() < 0.2 else self.decode()

    def noise(self) -> float:
        return self.rng.lognormvariate(0, 0.15)


def worst_error(fit: StepTimeFit, truth: StepTimes, shapes: list[StepShape]) -> float:
    return max(abs(fit.times.seconds(*s) / truth.seconds(*s) - 1) for s in shapes)


def trained(steps: Steps, count: int, truth: StepTimes = TRUTH) -> StepTimeFit:
    fit = StepTimeFit()
    for _ in range(count):
        shape = steps.mixed()
        fit.add(shape, truth.seconds(*shape) * steps.noise())
    return fit


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_exact_times_give_the_coefficients(scale: float) -> None:
    steps, fit, truth = Steps(), StepTimeFit(), slower(TRUTH, scale)
    for _ in range(6000):
        shape = steps.mixed()
        fit.add(shape, truth.seconds(*shape))
    assert worst_error(fit, truth, [steps.mixed() for _ in range(200)]) < 0.02
    assert fit.times.error < 0.02
    assert fit.times.token == pytest.approx(truth.token, rel=0.05)
    assert fit.times.row == pytest.approx(truth.row, rel=0.05)


def test_noise_is_averaged_and_reported() -> None:
    steps = Steps(1)
    fit = trained(steps, 2000)
    assert worst_error(fit, TRUTH, [steps.mixed() for _ in range(200)]) < 0.25
    assert 0.05 < fit.times.error < 0.2  # the noise's own mean is 0.12


def test_recorded_steps_are_predicted_from_those_before() -> None:
    fit = StepTimeFit()
    predicted = []
    for *shape, milliseconds in RECORDED:
        predicted.append(fit.times.seconds(*shape))
        fit.add(StepShape(*shape), milliseconds / 1e3)
    rest = slice(len(RECORDED) // 3, None)
    measured = [milliseconds / 1e3 for *_, milliseconds in RECORDED]
    assert 0.8 < sum(predicted[rest]) / sum(measured[rest]) < 1.25
    assert fit.times.error < 0.25


def test_unusual_steps_do_not_matter() -> None:
    steps = Steps(2)
    fit = StepTimeFit()
    for i in range(2000):
        shape = steps.mixed()
        unusual = 1000.0 if i < 2 or steps.rng.random() < 0.02 else 1.0  # the first steps compile
        fit.add(shape, TRUTH.seconds(*shape) * steps.noise() * unusual)
    shapes = [steps.mixed() for _ in range(200)]
    assert worst_error(fit, TRUTH, shapes) < 0.4
    total = sum(fit.times.seconds(*s) for s in shapes) / sum(TRUTH.seconds(*s) for s in shapes)
    assert 0.9 < total < 1.3  # 2 % of the steps count CLIP times their time


def test_few_steps_are_enough_for_the_scale() -> None:
    steps = Steps(3)
    for count in range(1, 12):
        fit = StepTimeFit()
        for _ in range(count):
            for shape in (steps.decode(), steps.extend()):
                fit.add(shape, TRUTH.seconds(*shape) * steps.noise())
        shapes = [steps.mixed() for _ in range(100)]
        assert worst_error(fit, TRUTH, shapes) < 3.0


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
def test_a_machine_that_changes_its_speed_is_learned(factor: float) -> None:
    steps = Steps(4)
    fit, now = trained(steps, 2000), slower(TRUTH, factor)
    for _ in range(MEMORY + MEMORY // 2):
        shape = steps.mixed()
        fit.add(shape, now.seconds(*shape) * steps.noise())
    shapes = [steps.mixed() for _ in range(200)]
    ratio = sum(fit.times.seconds(*s) for s in shapes) / sum(now.seconds(*s) for s in shapes)
    assert 0.7 < ratio < 1.4


def test_without_prompts_their_coefficients_stay() -> None:
    steps = Steps(5)
    fit = trained(steps, 2000)
    before = fit.times
    for _ in range(10 * MEMORY):
        shape = steps.decode(32)
        fit.add(shape, TRUTH.seconds(*shape) * steps.noise())
    after = fit.times
    assert (after.extend, after.token, after.pair) == (before.extend, before.token, before.pair)
    assert worst_error(fit, TRUTH, [steps.decode(rows) for rows in (8, 32, 64)]) < 0.4


def test_coefficients_that_steps_do_not_tell_apart_scale_together() -> None:
    steps = Steps(6)
    fit = trained(steps, 2000)
    for _ in range(2 * MEMORY):
        fit.add(StepShape(32, 32 * 500), 3.0 * TRUTH.seconds(32, 32 * 500))
    assert worst_error(fit, slower(TRUTH, 3.0), [steps.decode(rows) for rows in (16, 32, 64)]) < 0.5


def test_coefficients_are_never_negative_whatever_comes() -> None:
    steps = Steps(7)
    fit = StepTimeFit()
    for _ in range(3000):
        shape = steps.mixed() if steps.rng.random() < 0.9 else StepShape(steps.rng.randint(0, 1), 0, 0, 0.0)
        fit.add(shape, 10 ** steps.rng.uniform(-9, 5) if steps.rng.random() < 0.9 else steps.rng.choice([0.0, -1.0]))
        values = msgspec.structs.astuple(fit.times)
        assert all(np.isfinite(v) and v >= 0 for v in values), values
        assert fit.times.error <= 1.0
        assert fit.times.seconds(*steps.decode()) > 0


@pytest.mark.parametrize("seconds", [1e-12, 1e-3, 1e6])
def test_prompt_steps_that_take_no_longer_than_decode_steps(seconds: float) -> None:
    fit = StepTimeFit()
    for _ in range(20_000):
        fit.add(StepShape(4, 400), 1e-3)
        fit.add(StepShape(4, 400, 100, 5000.0), seconds)
    assert fit.times.seconds(4, 400) == pytest.approx(1e-3, rel=0.01)
    assert fit.times.seconds(4, 400, 100, 5000.0) == pytest.approx(max(seconds, 1e-3), rel=0.1)


def test_a_step_that_hangs_counts_as_clip_times_its_time() -> None:
    steps = Steps(8)
    once = trained(steps, 1000)
    shape, before = StepShape(8, 4000), once.times.seconds(8, 4000)
    once.add(shape, 1e6)
    for _ in range(8):
        once.add(shape, before)
    assert once.times.seconds(*shape) < before * (1 + 8 * CLIP / MEMORY)


def test_the_same_steps_give_the_same_model() -> None:
    assert trained(Steps(9), 500).times == trained(Steps(9), 500).times


def test_the_model_travels() -> None:
    times = trained(Steps(10), 100).times
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(times), type=StepTimes) == times


@pytest.mark.parametrize("chunk", [3, 1024])
def test_the_shape_of_a_step_counts_each_of_its_tokens_once(chunk: int) -> None:
    h = Harness(num_slots=256, max_running_requests=8, chunked_prefill_size=chunk, depth=1)
    for i in range(6):
        h.add(f"r{i}", list(range(1 + i, 12 + 2 * i)), max_tokens=5, ignore_eos=True)
        h.turn()
    h.drain()
    assert {step.mode for step in h.steps} == {1, 2}
    for step in h.steps:
        lengths = unpack_i32(step.seq_lens).tolist()
        new = [1] * len(lengths) if step.mode == DECODE else unpack_i32(step.extend_lens).tolist()
        behind = [(n, length) for n, length in zip(new, lengths, strict=True) if n == 1 and length > 1]
        chunks = [(n, length) for n, length in zip(new, lengths, strict=True) if not (n == 1 and length > 1)]
        pairs = sum(position + 1 for n, length in chunks for position in range(length - n, length))
        assert step_shape(step) == (
            len(behind), sum(length for _, length in behind), sum(n for n, _ in chunks), pairs
        )  # fmt: skip


def test_a_step_ends_when_the_runner_says_so() -> None:
    """In a loop that computes steps itself, the first of two is answered only after the second has been computed."""
    h = Harness(num_slots=64, depth=2)
    h.add("r", [1, 2, 3], max_tokens=40, ignore_eos=True)
    fit, now = StepTimeFit(), 0.0
    h.submit()
    h.commit()
    for _ in range(10):
        h.submit()
        shape = h.batches[-1].shape
        first, second = now, now + 1.0
        now += 2.0
        fit.answered(shape, first, 1.0, now)
        fit.answered(shape, second, 1.0, now)
    assert fit.times.seconds(1, 8) == pytest.approx(1.0, rel=0.01)
    assert fit.times.error < 0.01


def test_the_scheduler_learns_from_its_own_clock() -> None:
    """Each step's time runs from its decision or from the previous answer, whichever is later."""
    h = Harness(num_slots=512, max_running_requests=8, max_context=256, depth=2)
    for i in range(8):
        h.add(f"r{i}", [1 + i, 2, 3], max_tokens=100, ignore_eos=True)
    while h.scheduler.active or h.scheduler.waiting:
        while len(h.inflight) < 2 and h.submit():
            pass
        assert h.inflight
        h.now += TRUTH.seconds(*step_shape(h.inflight[0].step))
        h.commit()
    h.take()
    h.now += 100.0  # idle
    h.add("late", [7, 7, 7], max_tokens=2, ignore_eos=True)
    h.submit()
    h.now += TRUTH.seconds(*step_shape(h.inflight[0].step))
    h.commit()
    times = h.scheduler.step_time.times
    assert times.seconds(8, 8 * 50) == pytest.approx(TRUTH.seconds(8, 8 * 50), rel=0.01)
    assert times.error < 0.05


def test_every_step_is_predicted_to_take_time() -> None:
    """Steps whose time is proportional to their context leave nothing for the step itself."""
    fit = StepTimeFit()
    for i in range(400):
        rows, context = 1 + i % 7, 1000 + 997 * (i % 50)
        fit.add(StepShape(rows, context), 1e-6 * (context - 90 * rows - 300))
    assert fit.times.seconds(1, 0) > 0.0
