"""Metrics of each replica, with the label `replica`; read when scraped. Without replicas there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt.engine.replica_set import ReplicaSet, State
from radixrt.server.metrics.scheduler import used_slots

_VIEW = {
    "open_requests": ("open", "Requests that the replica was sent and that have not ended."),
    "queued_requests": ("queued", "Requests that wait in the router for this replica."),
    "predicted_wait_seconds": ("predicted_wait_s", "Predicted wait for the first token of a small request."),
}
"""Gauge without prefix -> field of `RouterView`, and help text."""

_STATS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "cached_tokens": ("cached_tokens", "Prompt tokens found in the replica's prefix cache."),
    "generation_tokens": ("generated_tokens", "Tokens generated."),
}
"""Counter without prefix -> field of `SchedulerStats`, and help text."""


class ReplicasCollector(Collector):
    """One series for each replica; those of its scheduler fall to zero when that is started anew."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"radixrt_replica_{name}", text, labels=["replica"])

        def counter(name: str, text: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"radixrt_replica_{name}", text, labels=["replica"])

        states = GaugeMetricFamily("radixrt_replica_state", "1 for its state.", labels=["replica", "state"])
        views = {field: gauge(name, text) for name, (field, text) in _VIEW.items()}
        counts = {field: counter(name, text) for name, (field, text) in _STATS.items()}
        usage = gauge("kv_cache_usage_perc", "Part of the replica's KV pool in use, from 0 to 1.")
        fences = counter("fences", "Times that it was silent for too long, and counted as dead.")
        found = self._replicas.describe()
        for info in found:
            label = [str(info.replica)]
            for state in get_args(State):
                states.add_metric([*label, state], float(state == info.state))
            if info.stats is None:
                continue
            for field, family in views.items():
                family.add_metric(label, getattr(info.stats.view, field))
            fences.add_metric(label, info.stats.view.fences)
            if info.stats.stats is not None:
                for field, total in counts.items():
                    total.add_metric(label, getattr(info.stats.stats, field))
                usage.add_metric(label, used_slots(info.stats.stats) / info.stats.stats.slots_total)
        yield from (states, *views.values(), *counts.values(), usage, fences)
        unbound = max((info.stats.unbound for info in found if info.stats is not None), default=0)
        text = "Requests that wait in the router because no replica takes new ones."
        yield GaugeMetricFamily("radixrt_router_unbound_requests", text, value=unbound)
