"""The benchmark of constrained rows counts what steps brought, and pairs its runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.structure.constrained_rows import OUTPUT, Run, measure, sampled_tokens, summary
from radixrt.messages.parts import ConstraintInfo


def answer(tokens: int, seconds: float, info: ConstraintInfo | None = None) -> Any:
    return SimpleNamespace(
        token_ids=list(range(tokens)), constraint=info, timings=SimpleNamespace(decode_s=seconds)
    )  # fmt: skip


def test_tokens_that_steps_brought() -> None:
    assert sampled_tokens(answer(256, 1.0)) == 256
    assert sampled_tokens(answer(256, 1.0, ConstraintInfo(forced_tokens=6))) == 250
    assert sampled_tokens(answer(256, 1.0, ConstraintInfo(forced_tokens=6, closing_tokens=2))) == 249


def test_a_run_is_the_median_of_the_rows_that_went_on() -> None:
    found = measure([answer(OUTPUT, 2.55), answer(OUTPUT, 5.1), answer(OUTPUT, 0.255), answer(9, 100.0)])
    assert found == Run(pytest.approx(0.01), 1)  # type: ignore[arg-type]


def test_what_constraints_cost_is_a_median_over_pairs_of_runs() -> None:
    plain, constrained = [Run(0.002, 0), Run(0.004, 0), Run(0.001, 0)], [Run(0.002, 1), Run(0.005, 0), Run(0.0011, 2)]
    assert summary(plain, constrained) == [
        "2.000 (1.000 to 4.000)",
        "2.000 (1.100 to 5.000)",
        "+10.0% (+0.0% to +25.0%)",
        "3",
    ]
