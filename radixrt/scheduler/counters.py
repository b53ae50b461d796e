"""Running totals of the scheduler, for `SchedulerStats`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from radixrt.messages.histogram import STEP_TOKENS, TOKEN_GAPS, Histogram


@dataclass
class Counters:
    """Counts since start; seconds are summed over steps: deciding, waiting for the runner, and committing.

    Attributes:
        token_gaps: seconds between two sampled tokens of a request.
        step_tokens: tokens that each step computes.
        fetched_tokens: those of `cached_tokens` that were fetched from a tier for a request, by tier.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    retractions: int = 0
    finished: int = 0
    extend_steps: int = 0
    decode_steps: int = 0
    schedule_s: float = 0.0
    runner_s: float = 0.0
    commit_s: float = 0.0
    runner_restarts: int = 0
    resumed: int = 0
    cache_resets: Counter[str] = field(default_factory=Counter)
    token_gaps: Histogram = field(default_factory=partial(Histogram.empty, TOKEN_GAPS))
    step_tokens: Histogram = field(default_factory=partial(Histogram.empty, STEP_TOKENS))
    fetched_tokens: Counter[str] = field(default_factory=Counter)
