"""Prometheus metrics: the scheduler's counters, read when scraped, and latencies, measured here once per request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt.client.engine_client import EngineClient, State
from radixrt.messages.client import RequestOutput
from radixrt.messages.scheduler import LoadStats, ProgramStats, SchedulerStats, StateStats
from radixrt.server.response_store import ResponseStore
from radixrt.server.tenants import EVERYONE, Accounts

MAX_IGNORED_NAMES = 50
_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)

_COUNTERS = {
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "cached_tokens": "Prompt tokens found in the prefix cache; over prompt_tokens this is the hit ratio.",
    "generated_tokens": "Tokens generated.",
    "evicted_tokens": "Tokens evicted from the prefix cache.",
    "retractions": "Times that a running request was put back to waiting for lack of slots.",
    "finished": "Requests that have ended, in the scheduler.",
    "refused": "Requests refused because the queue was full or their predicted wait too long.",
}


class _EngineCollector(Collector):
    """`SchedulerStats` as metrics. A counter falls back to zero when the scheduler restarts, as Prometheus expects."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        client = self._client
        status = client.status
        up = float(status.state == "serving")
        yield GaugeMetricFamily("radixrt_up", "1 when the engine is ready and alive.", value=up)
        states = GaugeMetricFamily("radixrt_engine_state", "1 for the state of the engine.", labels=["state"])
        for state in get_args(State):
            states.add_metric([state], float(state == status.state))
        yield states
        restarts = CounterMetricFamily("radixrt_restarts", "Processes started anew, by name.", labels=["process"])
        for name, count in sorted(client.restarts.items()):
            restarts.add_metric([name], count)
        yield restarts
        yield GaugeMetricFamily("radixrt_open_requests", "Requests not yet answered.", value=client.open_requests)
        if client.stats is not None:
            yield from _stats_metrics(client.stats)


def _stats_metrics(stats: SchedulerStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("radixrt_requests_waiting", "Requests waiting for admission.", value=stats.waiting)
    yield GaugeMetricFamily("radixrt_requests_running", "Requests running.", value=stats.running)
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
    for name, help_text in _COUNTERS.items():
        yield CounterMetricFamily(f"radixrt_{name}", help_text, value=getattr(stats, name))
    steps = CounterMetricFamily("radixrt_steps", "Model steps by mode.", labels=["mode"])
    steps.add_metric(["extend"], stats.extend_steps)
    steps.add_metric(["decode"], stats.decode_steps)
    yield steps
    seconds = CounterMetricFamily("radixrt_step_seconds", "Time spent on steps by part of the loop.", labels=["part"])
    seconds.add_metric(["schedule"], stats.schedule_s)
    seconds.add_metric(["runner"], stats.runner_s)
    seconds.add_metric(["commit"], stats.commit_s)
    yield seconds
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
    for reason in ("runner_restarted", "step_failed", "flushed"):
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
    grammars = stats.grammars
    if grammars is None:
        return
    yield counter("grammar_compiles", "Constraints compiled.", grammars.compiles)
    yield counter("grammar_compile_seconds", "Time spent compiling constraints.", grammars.compile_s)
    yield counter("grammar_compile_timeouts", "Compilations ended at their deadline.", grammars.timeouts)
    hits = CounterMetricFamily("radixrt_grammar_cache_hits", "Constraints found compiled.", labels=["where"])
    hits.add_metric(["memory"], grammars.hits)
    hits.add_metric(["disk"], grammars.disk_hits)
    yield hits
    yield GaugeMetricFamily("radixrt_grammar_cache_bytes", "Grammars kept in memory.", value=grammars.cache_bytes)
    refusals = CounterMetricFamily("radixrt_grammar_refusals", "Constraints refused, by keyword.", labels=["keyword"])
    for keyword, count in sorted(grammars.refusals.items()):
        refusals.add_metric([keyword], count)
    yield refusals


class _AccountsCollector(Collector):
    """Use of the server by each API key, by the key's name; nothing on a server without keys."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        open_now = GaugeMetricFamily("radixrt_key_open_requests", "Open requests by API key.", labels=["key"])
        ended = CounterMetricFamily("radixrt_key_requests", "Requests that have ended, by API key.", labels=["key"])
        tokens = CounterMetricFamily("radixrt_key_tokens", "Their tokens, by API key.", labels=["key", "kind"])
        refused = CounterMetricFamily(
            "radixrt_key_refusals", "HTTP requests refused at a limit of their API key.", labels=["key", "limit"]
        )
        for name, account in self._accounts.by_name.items():
            if name == EVERYONE.name:
                continue
            open_now.add_metric([name], account.in_flight)
            ended.add_metric([name], account.ended)
            tokens.add_metric([name, "prompt"], account.prompt_tokens)
            tokens.add_metric([name, "cached"], account.cached_tokens)
            tokens.add_metric([name, "output"], account.output_tokens)
            for limit, count in account.refused.items():
                refused.add_metric([name, limit], count)
        yield from (open_now, ended, tokens, refused)


class _ResponsesCollector(Collector):
    """Stored responses of /v1/responses."""

    def __init__(self, stored: ResponseStore) -> None:
        self._stored = stored

    def collect(self) -> Iterator[Metric]:
        count, size, dropped = len(self._stored), self._stored.bytes, self._stored.dropped
        yield GaugeMetricFamily("radixrt_stored_responses", "Stored responses.", value=count)
        yield GaugeMetricFamily("radixrt_stored_response_bytes", "Bytes that they count for.", value=size)
        yield CounterMetricFamily("radixrt_stored_responses_dropped", "Those dropped as the oldest.", value=dropped)


class Metrics:
    """Metrics of one server, in their own registry."""

    def __init__(self, client: EngineClient, accounts: Accounts, responses: ResponseStore) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(client))
        self.registry.register(_AccountsCollector(accounts))
        self.registry.register(_ResponsesCollector(responses))
        self._http = Counter(
            "radixrt_http_requests", "HTTP requests by route and status.", ["route", "status"], registry=self.registry
        )
        self._completions = Counter(
            "radixrt_completions", "Completions by how they ended.", ["finish_reason"], registry=self.registry
        )
        self._ignored = Counter(
            "radixrt_ignored_fields", "Fields of requests that were ignored.", ["field"], registry=self.registry
        )
        self._ignored_names: set[str] = set()
        self._ttft = Histogram(
            "radixrt_time_to_first_token_seconds",
            "From a request's submission to its first token.",
            buckets=_LATENCY,
            registry=self.registry,
        )
        self._tpot = Histogram(
            "radixrt_time_per_output_token_seconds",
            "Mean time between tokens of a completion, after its first.",
            buckets=_PER_TOKEN,
            registry=self.registry,
        )
        self._e2e = Histogram(
            "radixrt_request_seconds",
            "From a request's submission to its end.",
            buckets=_LATENCY,
            registry=self.registry,
        )

    def count_ignored(self, fields: Sequence[str]) -> None:
        """Count fields of a request that were ignored; names beyond the first `MAX_IGNORED_NAMES` count as "other"."""
        for name in fields:
            if len(self._ignored_names) < MAX_IGNORED_NAMES:
                self._ignored_names.add(name)
            self._ignored.labels(name if name in self._ignored_names else "other").inc()

    def count_http(self, route: str, status: int) -> None:
        self._http.labels(route, str(status)).inc()

    def observe(self, last: RequestOutput, started: float, first_at: float | None) -> None:
        """Record a completion that has just ended.

        Args:
            last: its last delta.
            started: `time.perf_counter()` at its submission.
            first_at: the same at its first delta; None if it was not streamed, so that its one delta came at the
                end and the engine's own timings are all there is.
        """
        now = time.perf_counter()
        assert last.finish is not None
        self._completions.labels(last.finish.reason).inc()
        if last.finish.error is not None:
            return  # refused or broken off: its times say nothing about served requests
        self._e2e.observe(now - started)
        tokens = last.usage.completion_tokens if last.usage is not None else len(last.output_ids) // 4
        if tokens == 0:
            return
        if first_at is not None:
            to_first, after = first_at - started, now - first_at
        elif last.timings is not None:
            to_first, after = last.timings.queue_s + last.timings.prefill_s, last.timings.decode_s
        else:
            return
        self._ttft.observe(to_first)
        if tokens > 1:
            self._tpot.observe(after / (tokens - 1))

    def render(self) -> bytes:
        return generate_latest(self.registry)
