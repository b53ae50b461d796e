"""Metrics of API keys and of stored responses, read when scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt.server.response_store import ResponseStore
from radixrt.server.tenants import EVERYONE, Accounts


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
