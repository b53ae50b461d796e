"""The bound that one GPU's steps give for pipeline stages, and the table."""

from __future__ import annotations

import pytest

from benchmarks.fleet.device import TracedStep
from benchmarks.offline.stages import Measured, bound, report
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import StepShape

TIMES = StepTimes(step=4e-3, row=2e-5, context=1e-7, extend=0.0, token=2.5e-5, pair=0.0)


def steps_of(shapes: list[StepShape]) -> list[TracedStep]:
    return [TracedStep(shape, TIMES.seconds(*shape)) for shape in shapes]


@pytest.mark.parametrize("stages", [2, 4])
def test_prompts_are_bound_by_filling_the_stages(stages: int) -> None:
    """Eight equal steps in each of three runs: 8 / (8 + stages - 1) of as many times as there are stages."""
    steps = steps_of([StepShape(0, 0, 16_384, 0.0)] * 24)
    assert bound(steps, [], stages, 3) == pytest.approx(stages * 8 / (8 + stages - 1))


def test_every_stage_reads_its_weights_for_each_part_of_the_rows() -> None:
    steps, fewer = (steps_of([StepShape(rows, rows * n) for n in range(500, 800)]) for rows in (64, 32))
    one, half = TIMES.seconds(64, 64 * 650), TIMES.seconds(32, 32 * 650)
    assert bound(steps, fewer, 2, 1) == pytest.approx(one / half, rel=0.01)
    assert one / half < 1.6


def test_one_request_gains_nothing() -> None:
    assert bound(steps_of([StepShape(1, length) for length in range(100, 200)]), [], 2, 1) == pytest.approx(
        1.0, rel=0.01
    )


def test_few_steps_need_no_model() -> None:
    assert bound(steps_of([StepShape(64, 64_000)] * 3), [], 2, 1) < 1.0


def test_the_table() -> None:
    found = [
        Measured(setup, workload, [rate * factor], slots, [0.9, 0.953] if setup == "pp 2" else [])
        for workload, rate in (("prefill", 100.0), ("decode64", 10.0))
        for setup, factor, slots in (("one GPU", 1, 1000), ("tp 2", 1.6, 2050), ("pp 2", 1.9, 2100))
    ]
    text = report(found, {"prefill": 1.95, "decode64": 1.3})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert rows[0] == ["workload, tok/s", "one GPU", "tp 2", "pp 2", "bound of stages"]
    assert rows[2:] == [
        ["prefill", "100", "160 (1.60 times)", "190 (1.90 times)", "1.95 times"],
        ["decode64", "10", "16 (1.60 times)", "19 (1.90 times)", "1.30 times"],
        ["KV slots", "1,000", "2,050 (2.05 times)", "2,100 (2.10 times)", "-"],
        ["stages busy, prefill", "-", "-", "90%, 95%", "-"],
        ["stages busy, decode64", "-", "-", "90%, 95%", "-"],
    ]
