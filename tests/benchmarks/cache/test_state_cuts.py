"""Requests of the benchmark leave the states that its table names, without a step for them."""

from __future__ import annotations

from benchmarks.cache.state_cuts import CASES, NOWHERE, device
from radixrt.parts.states.checkpoints import MIN_GAP


def test_states_inside_prompts_cost_no_steps() -> None:
    with device("tiny-hybrid", 1) as made:
        for case in CASES:
            without, kept = (made.serve(case, min_gap, 0) for min_gap in (NOWHERE, MIN_GAP))
            assert (without.steps, kept.steps) == (1, 1), case.name
            assert kept.kept - without.kept == (2 if case.shared else 1), case.name
