"""Metrics of the engine as a whole: its state, versions, and the scheduler's snapshot; read when scraped."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt._version import __version__
from radixrt.client.engine_client import EngineClient, State
from radixrt.messages.client import EngineReady
from radixrt.server.metrics.scheduler import scheduler_metrics, sglang_gauges
from radixrt.server.throughput import Throughput


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
