"""`StepAllowance`: the pauses that steps may make, from those that they made."""

from __future__ import annotations

from radixrt.runner.step_allowance import MARGIN, StepAllowance

BASE_S, TIMEOUT_S = 10.0, 120.0


def test_the_first_step_has_more_time_only_where_it_may_compile() -> None:
    assert StepAllowance(BASE_S, TIMEOUT_S, compiles=True).of(1) == TIMEOUT_S
    assert StepAllowance(200.0, TIMEOUT_S, compiles=True).of(1) == 200.0
    allowance = StepAllowance(BASE_S, TIMEOUT_S)
    assert allowance.of(1024) == allowance.unknown_s == BASE_S


def test_fast_steps_leave_the_least_allowance() -> None:
    allowance = StepAllowance(BASE_S, TIMEOUT_S)
    allowance.measured(1, 0.002)
    assert allowance.of(1) == BASE_S
    assert allowance.of(700) == BASE_S


def test_a_longer_step_gets_more_time_in_proportion() -> None:
    allowance = StepAllowance(BASE_S, TIMEOUT_S)
    allowance.measured(1, 0.05)  # a layer of a large model on a slow CPU
    assert allowance.of(1024) == MARGIN * 0.05 * 1024
    allowance.measured(1024, 7.0)
    allowance.measured(1024, 6.0)
    assert allowance.of(1100) == MARGIN * 7.0
    assert allowance.of(2) == BASE_S


def test_where_kernels_are_compiled_a_new_size_is_a_first_step() -> None:
    allowance = StepAllowance(BASE_S, TIMEOUT_S, compiles=True)
    allowance.measured(1, 0.002)
    assert allowance.of(64) == TIMEOUT_S
    allowance.measured(64, 3.0)
    assert allowance.of(64) == MARGIN * 3.0
