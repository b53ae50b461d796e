"""The overload benchmark: what a row counts, and its simulated table."""

from __future__ import annotations

import pytest

from benchmarks.serving.overload import Call, Objective, Run, arguments, main, simulate

OBJECTIVE = Objective(first_token_s=1.0, between_s=0.1)


def test_a_call_meets_the_objective_by_its_first_token_and_its_pace() -> None:
    assert Call(200, 0.0, (0.9, 1.0, 1.05)).meets(OBJECTIVE)
    assert Call(200, 0.0, (0.9,)).meets(OBJECTIVE)
    assert not Call(200, 0.0, (1.1, 1.2)).meets(OBJECTIVE)
    assert not Call(200, 0.0, (0.5, 0.8)).meets(OBJECTIVE)
    assert not Call(429, 0.0, retry_after_s=1.0).meets(OBJECTIVE)


def test_a_row_counts_what_ended() -> None:
    calls = [Call(200, 0.5, (0.5, 0.6), 0.25), Call(200, 0.5, (2.0, 2.1), 1.0), Call(429, 2.0, retry_after_s=3.0)]
    run = Run(True, 2.0, 8.0, 2.0, calls, unfinished=1)
    assert run.goodput(OBJECTIVE) == 0.5
    assert run.row(OBJECTIVE, best=1.0)[:7] == ("bounded", "2x", "8.0", "0.50", "50%", "25%", "1")
    assert run.row(OBJECTIVE, best=1.0)[10:] == ("0.38", "3 / 3")


def test_the_simulated_table(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--simulated", "--seconds", "6", "--loads", "0.5", "3"]
    main(options)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| bounded") for line in lines) == 2
    assert sum(line.startswith("| unbounded") for line in lines) == 2
    runs = simulate(arguments(options))
    assert not any(call.status == 429 for run in runs if not run.bounded for call in run.calls)
    assert any(call.status == 429 for run in runs if run.bounded for call in run.calls)
