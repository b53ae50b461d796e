"""The snapshots of several schedulers as that of one engine."""

from __future__ import annotations

import msgspec

from radixrt.client.fleet_stats import merge_stats
from radixrt.messages.histogram import STEP_TOKENS, Histogram
from radixrt.messages.scheduler_stats import LoadStats, ProgramStats, StateStats
from tests.server.fake_engine import stats


def test_numbers_counts_and_histograms_are_added() -> None:
    steps = Histogram.empty(STEP_TOKENS)
    steps.observe(3)
    one = msgspec.structs.replace(
        stats(), waiting=1, running=2, cache_resets={"flushed": 1}, programs=ProgramStats(programs=4),
        step_tokens=steps, load=LoadStats(2.0, 10, 20, 100.0, 50.0), states=None,
    )  # fmt: skip
    two = msgspec.structs.replace(
        one, cache_resets={"flushed": 1, "fenced": 2}, load=LoadStats(0.5, 1, 2, 10.0, 5.0), programs=None,
        states=StateStats(8, 4, 2, 1, 0),
    )  # fmt: skip
    both = merge_stats([one, two], queued=5)
    assert (both.waiting, both.running, both.slots_total) == (1 + 1 + 5, 4, 2 * one.slots_total)
    assert both.cache_resets == {"flushed": 2, "fenced": 2}
    assert both.programs == ProgramStats(programs=4)
    assert both.states == two.states
    assert both.step_tokens == Histogram(steps.bounds, [2 * n for n in steps.counts], 6.0)
    assert both.load == LoadStats(0.5, 11, 22, 110.0, 55.0), "the wait is the shortest"
    assert merge_stats([one], queued=0) is one
