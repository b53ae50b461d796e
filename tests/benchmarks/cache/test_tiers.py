"""Simulated tiers: every request is served, moves are counted, and the optimum is no worse than any policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.cache import tiers
from benchmarks.cache.tiers import OPTIMUM, POLICIES, SHAPES, TRACES, Case, run, simulate
from benchmarks.cache.tiers_optimum import PAGE, Pages
from benchmarks.cache.tiers_traces import Call, Session, Wave

SHAPE = SHAPES["8B on H200"]


def call(*pages: int) -> Call:
    """A request of whole pages, each of which holds one token PAGE times, with an output of one token."""
    return Call(np.repeat(np.array(pages, np.int32), PAGE), np.array([9], np.int32))


def test_the_optimum_drops_the_page_whose_next_use_is_farthest() -> None:
    pages = Pages([call(10, 11), call(20), call(30), call(20), call(10, 11)])
    assert pages.working_set() == 3 * PAGE
    assert pages.best_hit_rate(3 * PAGE) == pytest.approx(3 / 7)
    assert pages.best_hit_rate(2 * PAGE) == pytest.approx(2 / 7)
    assert pages.best_hit_rate(0) == 0.0


@pytest.mark.parametrize("trace", TRACES)
def test_traces_are_the_same_each_time_and_their_turns_continue(trace: str) -> None:
    first, second = TRACES[trace](3), TRACES[trace](3)
    assert len(first) == 3
    for a, b in zip(first, second, strict=True):
        for one, other in zip(a.waves, b.waves, strict=True):
            assert one.pause_s == other.pause_s
            assert [c.prompt.tolist() for c in one.calls] == [c.prompt.tolist() for c in other.calls]
        for before, after in zip(a.waves, a.waves[1:], strict=False):
            shared = before.calls[0].prompt
            assert all(np.array_equal(later.prompt[: len(shared)], shared) for later in after.calls[:1])


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_under_each_policy(policy: str) -> None:
    sessions = TRACES["agents"](2)
    result = simulate(SHAPE, sessions, 5400, 43_200, POLICIES[policy])
    assert len(result.order) == len(result.first_s) == 2 * 30
    assert len(result.seconds) == 2
    assert (result.moved["out"] > 0) == (POLICIES[policy] is not None)
    assert result.moved["in"] <= result.cached * SHAPE.token_bytes


def test_a_prefix_comes_back_from_the_host_tier() -> None:
    # The first prompt is evicted before anything is copied.
    waves = [Wave(1.0, [call(*range(first, first + 40))]) for first in (100, 200, 300, 200)]
    result = simulate(SHAPE, [Session(0.0, waves)], 60 * PAGE, 160 * PAGE, POLICIES["cleaner"])
    assert result.moved["in"] == 39 * PAGE * SHAPE.token_bytes
    assert result.cached == 39 * PAGE
    without = simulate(SHAPE, [Session(0.0, waves)], 60 * PAGE)
    assert without.cached == 0
    assert without.first_s[-1] > 2 * result.first_s[-1]


def test_a_policy_finds_no_more_than_the_optimum() -> None:
    rates = {}
    for policy in ("cleaner", "second hit", OPTIMUM):
        cells = run(Case("8B on H200", "agents", 2, 4.0, 1.0, policy))
        rates[policy] = float(cells[0].rstrip("%"))
    # The optimum counts whole pages, the scheduler counts tokens.
    assert max(rates.values()) <= rates[OPTIMUM] + 1.5


def test_plots_show_every_policy_beside_the_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "HOSTS", (1.0, 4.0))
    written = tiers.plot(tmp_path, {"agents": 2})
    assert [path.name for path in written] == ["tiers-agents-hits.svg", "tiers-agents-sessions.svg"]
    for path in written:
        text = path.read_text()
        assert all(policy in text for policy in tiers.PLOTTED)
