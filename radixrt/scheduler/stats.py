"""`scheduler_stats`: the snapshot of the scheduler that metrics, the router and the page `/ui` show."""

from __future__ import annotations

from typing import Any

from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.scheduler.scheduler import Scheduler


def scheduler_stats(core: Scheduler, now: float) -> SchedulerStats:
    """Return the snapshot at `now`, a time of `time.monotonic`."""
    c, kv = core.counters, core.kv
    of_parts: dict[str, Any] = {}
    for stats in core.parts.stats:
        of_parts |= stats(now)
    return SchedulerStats(
        waiting=len(core.waiting),
        running=len(core.active),
        slots_total=kv.allocator.num_slots,
        slots_free=kv.allocator.available(),
        slots_evictable=kv.cache.evictable_size,
        slots_protected=kv.cache.protected_size,
        prompt_tokens=c.prompt_tokens,
        cached_tokens=c.cached_tokens,
        generated_tokens=c.generated_tokens,
        evicted_tokens=kv.cache.evicted_tokens,
        retractions=c.retractions,
        finished=c.finished,
        extend_steps=c.extend_steps,
        decode_steps=c.decode_steps,
        schedule_s=c.schedule_s,
        runner_s=c.runner_s,
        commit_s=c.commit_s,
        runner_restarts=c.runner_restarts,
        resumed=c.resumed,
        cache_resets=dict(c.cache_resets),
        cache_clock=kv.cache.clock,
        states=kv.stats(c.recomputed_tokens),
        token_gaps=c.token_gaps.copy(),
        step_tokens=c.step_tokens.copy(),
        **of_parts,
    )
