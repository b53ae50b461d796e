"""`Throughput`: rates of the engine over the last seconds, from the snapshots of the scheduler, and their log line."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from radixrt.client.engine_client import EngineClient
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.server.metrics.scheduler import used_slots

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters of the scheduler at a time."""

    at: float
    prompt: int
    cached: int
    generated: int


class Throughput:
    """Rates of one engine. `tick` is to be called a few times a second, by the thread that also reads the rates.

    Args:
        interval_s: seconds between two lines in the log, which are written while there is work, and over which rates
            are measured; 0 for no lines, and rates over INTERVAL_S.
        clock: a monotonic clock, in seconds.

    Attributes:
        prompt_per_s, generation_per_s: tokens a second, of prompts that were admitted and of outputs.
        hit_rate: part of the prompt tokens that the cache had, in the last interval with prompts.
    """

    def __init__(
        self, client: EngineClient, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._logs = interval_s > 0
        self._interval_s = interval_s or INTERVAL_S
        self._clock = clock
        self._samples: deque[_Sample] = deque()
        self._next_sample = 0.0
        self._next_line = 0.0
        self._idle = True  # no work since the last line
        self.prompt_per_s = self.generation_per_s = self.hit_rate = 0.0

    def tick(self) -> None:
        """Take a sample if a second has passed, and log a line if one is due."""
        now = self._clock()
        if now < self._next_sample:
            return
        self._next_sample = now + SAMPLE_S
        stats = self._client.stats
        if stats is None:  # the scheduler is being started
            self._samples = deque([_Sample(now, 0, 0, 0)])  # its counters begin at zero
            self.prompt_per_s = self.generation_per_s = 0.0
            return
        self._measure(_Sample(now, stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens))
        works = bool(stats.running or stats.waiting or stats.compiling or self.prompt_per_s or self.generation_per_s)
        if works and self._idle:
            self._idle = False
            self._next_line = now + self._interval_s - SAMPLE_S  # the work began after the sample before
        if not self._idle and now >= self._next_line:
            self._next_line = now + self._interval_s
            self._idle = not works
            if self._logs and works:
                self._log(stats)

    def _measure(self, sample: _Sample) -> None:
        samples = self._samples
        if samples and sample.generated < samples[-1].generated:
            samples.clear()  # another scheduler, whose counters began at zero
        samples.append(sample)
        while len(samples) > 2 and samples[1].at <= sample.at - self._interval_s:
            samples.popleft()
        first = samples[0]
        seconds = sample.at - first.at
        prompt = sample.prompt - first.prompt
        self.prompt_per_s = prompt / seconds if seconds else 0.0
        self.generation_per_s = (sample.generated - first.generated) / seconds if seconds else 0.0
        if prompt > 0:
            self.hit_rate = (sample.cached - first.cached) / prompt

    def _log(self, stats: SchedulerStats) -> None:
        logger.info(
            "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, "
            "Waiting: %d reqs, KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
            self.prompt_per_s, self.generation_per_s, stats.running, stats.waiting,
            100 * used_slots(stats) / stats.slots_total, 100 * self.hit_rate,
        )  # fmt: skip
