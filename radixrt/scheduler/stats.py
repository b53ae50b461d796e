"""`scheduler_stats`: the snapshot of the scheduler that metrics, the router and the page `/ui` show."""

from __future__ import annotations

from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.scheduler.scheduler import Scheduler


def scheduler_stats(core: Scheduler, grammars: GrammarManager, now: float) -> SchedulerStats:
    """Return the snapshot at `now`, a time of `time.monotonic`."""
    c, kv = core.counters, core.kv
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
        compiling=grammars.num_pending,
        forced_tokens=c.forced_tokens,
        forced_closes=c.forced_closes,
        mask_rows=c.mask_rows,
        mask_s=c.mask_s,
        grammars=grammars.stats(),
        programs=core.programs.stats(),
        refused=c.refused,
        load=core.load.stats(now, grammars.num_pending),
        runner_restarts=c.runner_restarts,
        resumed=c.resumed,
        cache_resets=dict(c.cache_resets),
        suspects=core.recovery.num_suspects,
        killers=c.killers,
        cache_clock=kv.cache.clock,
        states=None if kv.states is None else kv.states.stats(c.recomputed_tokens),
        token_gaps=c.token_gaps.copy(),
        step_tokens=c.step_tokens.copy(),
    )
