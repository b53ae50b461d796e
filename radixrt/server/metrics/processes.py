"""Memory, processor time, threads and open files of the engine's processes, read when scraped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt.client.engine_client import EngineClient


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
