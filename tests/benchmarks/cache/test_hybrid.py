"""Counts of prompt tokens that a hybrid model computes: the real scheduler, other engines' rules, and the optimum."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from benchmarks.cache.hybrid import POLICIES, hit_rates, plot
from benchmarks.cache.hybrid_engine import HybridEngine
from benchmarks.cache.hybrid_workloads import chats, fork
from benchmarks.cache.state_optimum import Arc, best_value, optimum
from benchmarks.cache.state_rules import VLLM, SGLang

CASES = {
    "fork8": (fork(8, 4096, 200, groups=1, hinted=True), 0.166, 0.355, 0.285),
    "fork2": (fork(2, 1500, 700, groups=1, hinted=True), 0.659, 1.0, 1.0),
    "chat": (chats(answer=120), 0.065, 0.400, 0.204),
}


@pytest.mark.parametrize("name", CASES)
def test_workloads_of_the_design_reach_their_counts(name: str) -> None:
    requests, ours, vllm, sglang = CASES[name]
    assert HybridEngine(4096).run(requests) == pytest.approx(ours, abs=6e-4)
    assert VLLM().run(requests) == pytest.approx(vllm, abs=6e-4)
    assert SGLang().run(requests) == pytest.approx(sglang, abs=6e-4)
    assert optimum(requests) <= ours + 6e-4


def test_branches_together_need_no_hint() -> None:
    requests = fork(8, 4096, 200, groups=1)
    assert HybridEngine(4096, rows=8).run(requests, together=8) == pytest.approx(optimum(requests))


def test_the_optimum_is_the_best_choice_of_arcs() -> None:
    rng = random.Random(0)
    for _ in range(40):
        times, capacity = 6, rng.randint(1, 3)
        arcs = []
        for _ in range(7):
            start = rng.randrange(times - 1)
            arcs.append(Arc(start, rng.randint(start + 1, times - 1), rng.randint(1, 9)))
        fits = (
            sum(arc.value for arc in chosen)
            for count in range(8)
            for chosen in itertools.combinations(arcs, count)
            if all(sum(arc.start <= gap < arc.end for arc in chosen) <= capacity for gap in range(times))
        )
        assert best_value(arcs, times, capacity) == max(fits)


def test_the_hit_rate_falls_gracefully_with_the_pool(tmp_path: Path) -> None:
    rates = hit_rates([4, 16, 64])
    ours = [values[0] for _, values in rates]
    assert ours == sorted(ours)
    for _, (radixrt, vllm, sglang, best) in rates:
        assert max(vllm, sglang) < radixrt < best
        assert radixrt > 0.7 * best
    plot(tmp_path / "plot.svg", rates)
    assert all(f">{policy}</text>" in (tmp_path / "plot.svg").read_text() for policy in POLICIES)
