"""`Samples`: the engine's numbers of the last quarter of an hour, one row each second, for plots."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from radixrt.client.engine_client import EngineClient
from radixrt.messages.scheduler_stats import SchedulerStats

KEPT = 900
SAMPLE_S = 1.0

COLUMNS = (
    "at", "running", "waiting", "prompt_tokens", "cached_tokens", "generated_tokens", "evicted_tokens", "free",
    "evictable", "protected", "private", "gap_p50", "gap_p95", "clock",
)  # fmt: skip
"""Members of a row: time in seconds since 1970, gauges, counters, slots, and seconds between two tokens of a request in
the second before (None without tokens), and the tick of the cache's clock."""


class Samples:
    """Rows of COLUMNS. Call `tick` a few times a second.

    Attributes:
        rows: the oldest first.
        count: number of rows so far.
    """

    def __init__(self, client: EngineClient, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self._next = 0.0
        self._gaps: list[int] = []
        self.rows: deque[list[Any]] = deque(maxlen=KEPT)
        self.count = 0

    def tick(self) -> None:
        now, stats = self._clock(), self._client.stats
        if now < self._next or stats is None:
            return
        self._next = now + SAMPLE_S
        held = stats.slots_free + stats.slots_evictable + stats.slots_protected
        self.rows.append(
            [
                round(now, 2), stats.running, stats.waiting, stats.prompt_tokens, stats.cached_tokens,
                stats.generated_tokens, stats.evicted_tokens, stats.slots_free, stats.slots_evictable,
                stats.slots_protected, max(stats.slots_total - held, 0), *self._percentiles(stats),
                stats.cache_clock,
            ]
        )  # fmt: skip
        self.count += 1

    def since(self, count: int) -> list[list[Any]]:
        """Return the rows after the first `count`, as far as they are kept."""
        new = min(self.count - count, len(self.rows))
        return list(self.rows)[len(self.rows) - new :] if new > 0 else []

    def ticks(self) -> list[tuple[int, float]]:
        """Return (tick of the cache's clock, time) of the rows since the clock was last at 0, ascending."""
        found: list[tuple[int, float]] = []
        for row in self.rows:
            if found and row[-1] < found[-1][0]:
                found = []
            if not found or row[-1] > found[-1][0]:
                found.append((row[-1], row[0]))
        return found

    def _percentiles(self, stats: SchedulerStats) -> tuple[float | None, float | None]:
        """Return median and 95th percentile of the gaps since the last row, as upper bounds of their buckets."""
        gaps = stats.token_gaps
        if gaps is None:
            return None, None
        before, self._gaps = self._gaps, list(gaps.counts)
        if len(before) != len(self._gaps) or any(now < then for now, then in zip(self._gaps, before)):
            before = [0] * len(self._gaps)  # a new scheduler counts from 0
        counts = [now - then for now, then in zip(self._gaps, before)]
        total = sum(counts)
        if not total:
            return None, None
        sums, last = list(accumulate(counts)), len(gaps.bounds) - 1  # gaps above all bounds count as the last one
        median, high = (gaps.bounds[min(bisect_left(sums, share * total), last)] for share in (0.5, 0.95))
        return median, high
