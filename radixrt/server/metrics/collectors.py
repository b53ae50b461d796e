"""Metrics that are read when scraped: of the engine, its processes, replicas, API keys and stored responses."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import get_args

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt._version import __version__
from radixrt.client.engine_client import EngineClient, State
from radixrt.engine import replica_set
from radixrt.messages.client import EngineReady
from radixrt.server.access.tenants import EVERYONE, Accounts
from radixrt.server.answers.response_store import ResponseStore
from radixrt.server.metrics.scheduler import scheduler_metrics, sglang_gauges, used_slots
from radixrt.server.metrics.throughput import Throughput

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


class EngineCollector(Collector):
    """Metrics that exist from the start, and those of the scheduler while it runs."""

    def __init__(self, client: EngineClient, throughput: Throughput) -> None:
        self._client = client
        self._throughput = throughput

    def collect(self) -> Iterator[Metric]:
        client = self._client
        status, stats, info = client.status, client.stats, client.info
        up = float(status.state == "serving")
        yield GaugeMetricFamily("radixrt_up", "1 when the engine is ready and alive.", value=up)
        states = GaugeMetricFamily("radixrt_engine_state", "1 for the state of the engine.", labels=["state"])
        for state in get_args(State):
            states.add_metric([state], float(state == status.state))
        yield states
        restarts = CounterMetricFamily("radixrt_restarts", "Processes started anew, by name.", labels=["process"])
        for name, count in sorted({**dict.fromkeys(client.worker_pids(), 0), **client.restarts}.items()):
            restarts.add_metric([name], count)
        yield restarts
        yield GaugeMetricFamily("radixrt_open_requests", "Requests not yet answered.", value=client.open_requests)
        yield _build_info()
        if info is not None:
            yield from _limits(info)
        if stats is not None:
            yield from scheduler_metrics(stats)
            yield from sglang_gauges(stats, self._throughput.generation_per_s, self._throughput.hit_rate)


@cache
def _versions() -> dict[str, str]:
    return {"version": __version__, "python": platform.python_version(), "torch": version("torch")}


def _build_info() -> Metric:
    info = GaugeMetricFamily("radixrt_build_info", "1; versions are its labels.", labels=list(_versions()))
    info.add_metric(list(_versions().values()), 1)
    return info


def _limits(info: EngineReady) -> Iterator[Metric]:
    device = GaugeMetricFamily("radixrt_engine_info", "1; its labels say on what.", labels=["model", "device", "dtype"])
    device.add_metric([info.model, info.device, info.dtype], 1)
    yield device
    for name, text, value in (
        ("max_running_requests", "Requests in a batch, at most.", info.max_running_requests),
        ("max_model_len", "Longest sequence, in tokens.", info.context_length),
    ):
        yield GaugeMetricFamily(f"radixrt_{name}", text, value=value)


class ProcessesCollector(Collector):
    """One series for each process, by its name; a process that has just died has none."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"radixrt_process_{name}", text, labels=["process"])

        cpu = CounterMetricFamily("radixrt_process_cpu_seconds", "Processor time, by process.", labels=["process"])
        memory = gauge("resident_memory_bytes", "Resident memory, by process; pages that several map count for each.")
        threads = gauge("threads", "Threads, by process.")
        files = gauge("open_fds", "Open file descriptors, by process.")
        started = gauge("start_time_seconds", "Start of each process, in seconds since 1970.")
        for name, pid in {"main": os.getpid(), **self._client.worker_pids()}.items():
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    values = (process.memory_info().rss, process.num_threads(), process.num_fds())
                    began = process.create_time()
            except psutil.Error:
                continue
            cpu.add_metric([name], times.user + times.system)
            for family, value in zip((memory, threads, files), values, strict=True):
                family.add_metric([name], value)
            started.add_metric([name], began)
        yield from (cpu, memory, threads, files, started)


class ReplicasCollector(Collector):
    """One series for each replica, with the label `replica`; those of its scheduler fall to zero when that restarts."""

    def __init__(self, replicas: replica_set.ReplicaSet) -> None:
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
        prefills = counter("prefills", "Prompts that it has computed for other replicas.")
        roles = GaugeMetricFamily("radixrt_replica_info", "1; its role is a label.", labels=["replica", "role"])
        found = self._replicas.describe()
        for info in found:
            label = [str(info.replica)]
            for state in get_args(replica_set.State):
                states.add_metric([*label, state], float(state == info.state))
            roles.add_metric([*label, info.role], 1)
            if info.stats is None:
                continue
            for field, family in views.items():
                family.add_metric(label, getattr(info.stats.view, field))
            fences.add_metric(label, info.stats.view.fences)
            prefills.add_metric(label, info.stats.view.prefills)
            if info.stats.stats is not None:
                for field, total in counts.items():
                    total.add_metric(label, getattr(info.stats.stats, field))
                usage.add_metric(label, used_slots(info.stats.stats) / info.stats.stats.slots_total)
        yield from (states, roles, *views.values(), *counts.values(), usage, fences, prefills)
        unbound = max((info.stats.unbound for info in found if info.stats is not None), default=0)
        text = "Requests that wait in the router because no replica takes new ones."
        yield GaugeMetricFamily("radixrt_router_unbound_requests", text, value=unbound)


class AccountsCollector(Collector):
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
        for name, account in list(self._accounts.by_name.items()):
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


class ResponsesCollector(Collector):
    """Stored responses of /v1/responses."""

    def __init__(self, stored: ResponseStore) -> None:
        self._stored = stored

    def collect(self) -> Iterator[Metric]:
        count, size, dropped = len(self._stored), self._stored.bytes, self._stored.dropped
        yield GaugeMetricFamily("radixrt_stored_responses", "Stored responses.", value=count)
        yield GaugeMetricFamily("radixrt_stored_response_bytes", "Bytes that they count for.", value=size)
        yield CounterMetricFamily("radixrt_stored_responses_dropped", "Those dropped as the oldest.", value=dropped)
