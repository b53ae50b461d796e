"""Metrics of the scheduler: its latest snapshot, read when scraped.

A counter falls back to zero when the scheduler is started anew, which Prometheus' `rate` allows for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from radixrt.messages.histogram import Histogram
from radixrt.messages.scheduler_stats import (
    GrammarStats,
    LoadStats,
    MediaStats,
    MoveStats,
    ProgramStats,
    SchedulerStats,
    StateStats,
    TierStats,
)

_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "prefix_cache_queries": ("prompt_tokens", "Prompt tokens that were looked up in the prefix cache."),
    "prefix_cache_hits": ("cached_tokens", "Those of them that it had."),
    "cached_tokens": ("cached_tokens", "Prompt tokens found in the prefix cache; the same as prefix_cache_hits."),
    "generation_tokens": ("generated_tokens", "Tokens generated."),
    "evicted_tokens": ("evicted_tokens", "Tokens evicted from the prefix cache."),
    "num_preemptions": ("retractions", "Times that a running request was put back to waiting for lack of slots."),
    "finished": ("finished", "Requests that have ended, in the scheduler."),
    "refused": ("refused", "Requests refused because the queue was full or their predicted wait too long."),
}
"""Name without prefix -> field of `SchedulerStats`, and help text. Names that vLLM has too mean the same there."""

_MOVES = {
    "out": ("out", "host"),
    "in": ("in", "host"),
    "save": ("out", "disk"),
    "load": ("in", "disk"),
    "pull": ("in", "peer"),
}
"""Kind of moves in `TierStats.moves` -> direction, and tier that the keys and values are moved to or from."""


def used_slots(stats: SchedulerStats) -> int:
    """Return the number of slots that requests hold; the others are free, or hold prefixes that may be evicted."""
    return stats.slots_total - stats.slots_free - stats.slots_evictable


def scheduler_metrics(stats: SchedulerStats) -> Iterator[Metric]:
    """Yield all metrics of a snapshot."""
    yield GaugeMetricFamily("radixrt_num_requests_waiting", "Requests waiting for admission.", value=stats.waiting)
    yield GaugeMetricFamily("radixrt_num_requests_running", "Requests running.", value=stats.running)
    usage = used_slots(stats) / stats.slots_total
    yield GaugeMetricFamily("radixrt_kv_cache_usage_perc", "Part of the KV pool in use, from 0 to 1.", value=usage)
    slots = GaugeMetricFamily("radixrt_kv_slots", "Token slots of the KV pool by state.", labels=["state"])
    in_tree_or_free = stats.slots_free + stats.slots_evictable + stats.slots_protected
    slots.add_metric(["free"], stats.slots_free)
    slots.add_metric(["evictable"], stats.slots_evictable)
    slots.add_metric(["protected"], stats.slots_protected)
    slots.add_metric(["private"], stats.slots_total - in_tree_or_free)
    yield slots
    yield GaugeMetricFamily("radixrt_kv_slots_capacity", "Token slots of the KV pool.", value=stats.slots_total)
    if stats.states is not None:
        yield from _state_metrics(stats.states)
    if stats.tiers is not None:
        yield from _tier_metrics(stats, stats.tiers)
    if stats.media is not None:
        yield from _media_metrics(stats.media)
    for name, (field, help_text) in _COUNTERS.items():
        yield CounterMetricFamily(f"radixrt_{name}", help_text, value=getattr(stats, field))
    steps = CounterMetricFamily("radixrt_steps", "Model steps by mode.", labels=["mode"])
    steps.add_metric(["extend"], stats.extend_steps)
    steps.add_metric(["decode"], stats.decode_steps)
    yield steps
    seconds = CounterMetricFamily("radixrt_step_seconds", "Time spent on steps by part of the loop.", labels=["part"])
    seconds.add_metric(["schedule"], stats.schedule_s)
    seconds.add_metric(["runner"], stats.runner_s)
    seconds.add_metric(["commit"], stats.commit_s)
    yield seconds
    if stats.step_tokens is not None:
        yield _histogram("iteration_tokens_total", "Tokens that a step computes.", stats.step_tokens)
    if stats.token_gaps is not None:
        text = "Time between two sampled tokens of a request, in the scheduler."
        yield _histogram("inter_token_latency_seconds", text, stats.token_gaps)
    yield from _recovery_metrics(stats)
    if stats.load is not None:
        yield from _load_metrics(stats.load)
    yield from _constraint_metrics(stats)
    if stats.programs is not None:
        yield from _program_metrics(stats.programs)


def _state_metrics(stats: StateStats) -> Iterator[Metric]:
    slots = GaugeMetricFamily("radixrt_state_slots", "State slots of recurrent layers by state.", labels=["state"])
    slots.add_metric(["free"], stats.free)
    slots.add_metric(["cached"], stats.cached)
    slots.add_metric(["private"], stats.total - stats.free - stats.cached)
    yield slots
    yield GaugeMetricFamily("radixrt_state_slots_capacity", "State slots of recurrent layers.", value=stats.total)
    text = "States of recurrent layers evicted from the prefix cache."
    yield CounterMetricFamily("radixrt_evicted_states", text, value=stats.evicted)
    text = "Prompt tokens with cached keys and values, computed again because the nearest state was before them."
    yield CounterMetricFamily("radixrt_recomputed_tokens", text, value=stats.recomputed_tokens)


def _tier_metrics(stats: SchedulerStats, tiers: TierStats) -> Iterator[Metric]:
    tokens = GaugeMetricFamily("radixrt_kv_tier_tokens", "Token places of a tier by state.", labels=["tier", "state"])
    for tier, total in tiers.tokens_total.items():
        used = tiers.tokens_used.get(tier, 0)
        tokens.add_metric([tier, "used"], used)
        tokens.add_metric([tier, "free"], total - used)
    yield tokens
    sources = CounterMetricFamily(
        "radixrt_prompt_tokens_by_source", "Prompt tokens by the source of their keys and values.", labels=["source"]
    )
    fetched = sum(tiers.fetched_tokens.values())
    sources.add_metric(["computed"], stats.prompt_tokens - stats.cached_tokens)
    sources.add_metric(["device"], stats.cached_tokens - fetched)
    for tier in dict.fromkeys([*tiers.tokens_total, *tiers.fetched_tokens]):
        sources.add_metric([tier], tiers.fetched_tokens.get(tier, 0))
    yield sources
    yield from _move_metrics({kind: moves for kind, moves in tiers.moves.items() if kind in _MOVES})
    refused = CounterMetricFamily("radixrt_kv_moves_refused", "Moves that did not begin.", labels=["reason"])
    for reason, count in sorted(tiers.refused.items()):
        refused.add_metric([reason], count)
    yield refused


def _media_metrics(stats: MediaStats) -> Iterator[Metric]:
    rows = GaugeMetricFamily("radixrt_encoder_rows", "Rows of the encoder pool by state.", labels=["state"])
    rows.add_metric(["used"], stats.rows_used)
    rows.add_metric(["free"], stats.rows - stats.rows_used)
    yield rows
    images = CounterMetricFamily("radixrt_images", "Images of requests by their encoding.", labels=["encoding"])
    images.add_metric(["computed"], stats.encoded)
    images.add_metric(["reused"], stats.reused)
    yield images


def _move_metrics(moves: dict[str, MoveStats]) -> Iterator[Metric]:
    labels = ["direction", "tier"]
    size = CounterMetricFamily("radixrt_kv_moved_bytes", "Keys and values moved to or from a tier.", labels=labels)
    count = CounterMetricFamily("radixrt_kv_moves", "Moves to or from a tier that ended.", labels=[*labels, "result"])
    seconds = HistogramMetricFamily("radixrt_kv_move_seconds", "Time of a move in the slowest rank.", labels=labels)
    for kind, found in moves.items():
        values = list(_MOVES[kind])
        size.add_metric(values, found.bytes)
        count.add_metric([*values, "finished"], found.finished)
        count.add_metric([*values, "failed"], found.failed)
        if found.seconds is not None:
            seconds.add_metric(values, _buckets(found.seconds), found.seconds.total)
    yield from (size, count, seconds)


def _recovery_metrics(stats: SchedulerStats) -> Iterator[Metric]:
    text = "Times that the ModelRunner was started anew and requests went on."
    yield CounterMetricFamily("radixrt_runner_restarts", text, value=stats.runner_restarts)
    text = "Running requests that went on from their tokens after the cache was lost."
    yield CounterMetricFamily("radixrt_requests_resumed", text, value=stats.resumed)
    text = "Requests computed alone, one after the other, because the ModelRunner died in a step of theirs."
    yield GaugeMetricFamily("radixrt_requests_suspected", text, value=stats.suspects)
    text = "Requests that ended because the ModelRunner died twice while it computed them."
    yield CounterMetricFamily("radixrt_requests_killed_runner", text, value=stats.killers)
    resets = CounterMetricFamily(
        "radixrt_cache_resets", "Times that the prefix cache restarted empty.", labels=["reason"]
    )
    for reason in ("runner_restarted", "step_failed", "flushed", "fenced"):
        resets.add_metric([reason], stats.cache_resets.get(reason, 0))
    yield resets


def _load_metrics(load: LoadStats) -> Iterator[Metric]:
    for name, text, value in (
        (
            "predicted_wait_seconds",
            "Predicted wait for admission of a request that arrives now.",
            load.predicted_wait_s,
        ),
        ("queued_tokens", "Prompt tokens of waiting requests that must be computed.", load.queued_tokens),
        ("queued_output_tokens", "Tokens that waiting requests are expected to sample.", load.queued_output_tokens),
        ("prefill_tokens_per_second", "Predicted rate of a step of prompt tokens.", load.prefill_tokens_per_s),
        ("decode_tokens_per_second", "Predicted rate of steps of the running requests.", load.decode_tokens_per_s),
    ):
        yield GaugeMetricFamily(f"radixrt_{name}", text, value=value)
    times = load.step_times
    if times is not None:
        yield GaugeMetricFamily(
            "radixrt_step_model_error", "Relative error of predicted step times.", value=times.error
        )
        model = GaugeMetricFamily("radixrt_step_model_seconds", "Model of a step's seconds, by part.", labels=["part"])
        for part in ("step", "row", "context", "extend", "token", "pair"):
            model.add_metric([part], getattr(times, part))
        yield model


def _program_metrics(programs: ProgramStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("radixrt_programs", "Programs that are known.", value=programs.programs)
    yield GaugeMetricFamily("radixrt_program_holds", "Nodes kept for programs' next calls.", value=programs.holds)
    yield GaugeMetricFamily("radixrt_program_held_tokens", "Tokens that these count for.", value=programs.held_tokens)
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of requests with a program.", programs.prompt_tokens),
        ("cached_tokens", "Those of them found in the prefix cache.", programs.cached_tokens),
        ("leases", "Prefixes of forks that were kept.", programs.leases),
        ("refused_holds", "Hints ignored because too much was held already.", programs.refused_holds),
        ("releases", "Programs and branches that said that they were done.", programs.releases),
        ("expired", "Programs that fell silent.", programs.expired),
    ):
        yield CounterMetricFamily(f"radixrt_program_{name}", text, value=value)


def _constraint_metrics(stats: SchedulerStats) -> Iterator[Metric]:
    def counter(name: str, text: str, value: float) -> Metric:
        return CounterMetricFamily(f"radixrt_{name}", text, value=value)

    yield GaugeMetricFamily("radixrt_requests_compiling", "Requests without a grammar yet.", value=stats.compiling)
    yield counter("forced_tokens", "Output tokens appended by jump-forward, without sampling.", stats.forced_tokens)
    yield counter("forced_closes", "Outputs closed early so that they are valid.", stats.forced_closes)
    yield counter("grammar_masks", "Grammar masks computed, one for each row and step.", stats.mask_rows)
    yield counter("grammar_mask_seconds", "Time spent computing grammar masks.", stats.mask_s)
    if stats.grammars is not None:
        yield from _grammar_metrics(stats.grammars)


def _grammar_metrics(grammars: GrammarStats) -> Iterator[Metric]:
    if grammars.compile_times is not None:
        text = "Time that it took to compile a constraint, queueing excluded."
        yield _histogram("grammar_compilation_time_seconds", text, grammars.compile_times)
    text = "Compilations ended at their deadline."
    yield CounterMetricFamily("radixrt_grammar_compile_timeouts", text, value=grammars.timeouts)
    hits = CounterMetricFamily("radixrt_grammar_cache_hits", "Constraints found compiled.", labels=["where"])
    hits.add_metric(["memory"], grammars.hits)
    hits.add_metric(["disk"], grammars.disk_hits)
    yield hits
    yield GaugeMetricFamily("radixrt_grammar_cache_bytes", "Grammars kept in memory.", value=grammars.cache_bytes)
    refusals = CounterMetricFamily("radixrt_grammar_refusals", "Constraints refused, by keyword.", labels=["keyword"])
    for keyword, count in sorted(grammars.refusals.items()):
        refusals.add_metric([keyword], count)
    yield refusals


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    return HistogramMetricFamily(f"radixrt_{name}", text, buckets=_buckets(found), sum_value=found.total)


def _buckets(found: Histogram) -> list[tuple[str, int]]:
    """Return the upper bound of each bucket, and the number of values up to the bound."""
    bounds = [*map(str, map(float, found.bounds)), "+Inf"]
    return list(zip(bounds, accumulate(found.counts), strict=True))


def sglang_gauges(stats: SchedulerStats, generation_per_s: float, hit_rate: float) -> Iterator[Metric]:
    """Yield the gauges of SGLang's dashboard that vLLM has under other names, or not at all.

    Args:
        generation_per_s, hit_rate: rate of generated tokens, and part of prompts found in the cache, of late.
    """
    for name, text, value in (
        ("num_running_reqs", "Requests running.", stats.running),
        ("num_queue_reqs", "Requests waiting for admission.", stats.waiting),
        ("num_used_tokens", "Slots of the KV pool in use.", used_slots(stats)),
        ("token_usage", "Part of the KV pool in use, from 0 to 1.", used_slots(stats) / stats.slots_total),
        ("gen_throughput", "Tokens generated per second, of late.", generation_per_s),
        ("cache_hit_rate", "Part of prompt tokens found in the prefix cache, of late.", hit_rate),
    ):
        yield GaugeMetricFamily(f"radixrt_{name}", text, value=value)
