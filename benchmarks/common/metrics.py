"""Figures of a server under test, from its /metrics."""

import asyncio
import time
from contextlib import suppress

import httpx
from prometheus_client.parser import text_string_to_metric_families

LABELS = ("mode", "part", "state")
IDLE = {"radixrt_open_requests": 0.0, "radixrt_num_requests_running": 0.0}


def read_metrics(url: str) -> dict[str, float]:
    """Return the samples of a server by name, as `parse_metrics` does.

    Raises:
        httpx.HTTPError: the server did not answer.
    """
    return parse_metrics(
        httpx.get(f"{url}/metrics", trust_env=False, verify=False, timeout=60.0).raise_for_status().text
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Return samples by name, summed over their labels; samples with one of LABELS also by name:label. Buckets of
    histograms are left out."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                continue
            names = [sample.name, *(f"{sample.name}:{sample.labels[each]}" for each in LABELS if each in sample.labels)]
            for name in names:
                found[name] = found.get(name, 0.0) + sample.value
    return found


async def wait_idle(url: str, limit_s: float) -> bool:
    """Wait until the server has no open request; return False if it still has one after the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            found = await asyncio.to_thread(read_metrics, url)
            if {name: found.get(name) for name in IDLE} == IDLE:
                return True
        await asyncio.sleep(0.2)
    return False
