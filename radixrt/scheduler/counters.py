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
    forced_tokens: int = 0
    forced_closes: int = 0
    mask_rows: int = 0
    mask_s: float = 0.0
    hinted_prompt_tokens: int = 0
    hinted_cached_tokens: int = 0
    leases: int = 0
    refused_holds: int = 0
    releases: int = 0
    expired_programs: int = 0
    runner_restarts: int = 0
    resumed: int = 0
    killers: int = 0
    refused: int = 0
    cache_resets: Counter[str] = field(default_factory=Counter)
    token_gaps: Histogram = field(default_factory=partial(Histogram.empty, TOKEN_GAPS))
    step_tokens: Histogram = field(default_factory=partial(Histogram.empty, STEP_TOKENS))
