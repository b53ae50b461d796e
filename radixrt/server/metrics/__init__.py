"""Prometheus metrics of one server: the engine's, read when scraped, and those of requests, observed when they end.

Names are those of vLLM's metrics with the prefix `radixrt_` where vLLM has the same quantity. The server is one
process, and the others send it their counts (`SchedulerStats`), so that no files are shared between processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Metric, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from radixrt.client.engine_client import EngineClient
from radixrt.server.access.tenants import Accounts
from radixrt.server.answers.response_store import ResponseStore
from radixrt.server.metrics.collectors import (
    AccountsCollector,
    EngineCollector,
    ProcessesCollector,
    ReplicasCollector,
    ResponsesCollector,
)
from radixrt.server.metrics.requests import RequestMetrics
from radixrt.server.metrics.throughput import Throughput

if TYPE_CHECKING:
    from radixrt.engine.replica_set import ReplicaSet

MAX_IGNORED_NAMES = 50


class Metrics:
    """Metrics of one server, in their own registry. All of them have the label `model_name`, but those of the main
    process by their standard names (`process_...`).

    Attributes:
        requests: metrics of requests.
    """

    def __init__(
        self, client: EngineClient, model_name: str, accounts: Accounts, responses: ResponseStore,
        throughput: Throughput, replicas: ReplicaSet | None = None,
    ) -> None:  # fmt: skip
        self._model_name = model_name
        self._registry = registry = CollectorRegistry()
        registry.register(EngineCollector(client, throughput))
        registry.register(ProcessesCollector(client))
        registry.register(AccountsCollector(accounts))
        registry.register(ResponsesCollector(responses))
        if replicas is not None:
            registry.register(ReplicasCollector(replicas))
        ProcessCollector(registry=registry)
        self.requests = RequestMetrics(registry)
        self._http = Counter(
            "radixrt_http_requests", "HTTP requests by route and status.", ["route", "status"], registry=registry
        )
        self._ignored = Counter(
            "radixrt_ignored_fields", "Fields of requests that were ignored.", ["field"], registry=registry
        )
        self._ignored_names: set[str] = set()

    def count_ignored(self, fields: Sequence[str]) -> list[str]:
        """Count fields of a request that were ignored; names beyond the first `MAX_IGNORED_NAMES` count as "other".

        Returns:
            Those that are counted by name for the first time.
        """
        news = []
        for name in fields:
            if name not in self._ignored_names and len(self._ignored_names) < MAX_IGNORED_NAMES:
                self._ignored_names.add(name)
                news.append(name)
            self._ignored.labels(name if name in self._ignored_names else "other").inc()
        return news

    def count_http(self, route: str, status: int) -> None:
        self._http.labels(route, str(status)).inc()

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format; any thread may call it."""
        labelled = CollectorRegistry()
        labelled.register(_Labelled(self._registry, {"model_name": self._model_name}))
        return generate_latest(labelled)


class _Labelled(Collector):
    """Metrics of a registry with further labels, without the times at which counters were created."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def describe(self) -> list[Metric]:
        return []  # so that registering this does not collect

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            if metric.name.startswith("radixrt_"):
                samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in samples]
            metric.samples = samples
            yield metric
