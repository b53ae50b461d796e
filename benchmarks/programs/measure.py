"""`measured`: a run of some code on a server with an empty cache: its seconds, and tokens as the server counts them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

SETTLE_S = 0.6
"""The scheduler's last snapshot of a burst has come by then."""


@dataclass(frozen=True)
class Side:
    """One run, as the server counted it."""

    wall: float
    prompt: float
    cached: float
    generated: float

    @property
    def computed(self) -> float:
        """Tokens that went through the model."""
        return self.prompt - self.cached + self.generated

    @property
    def hit_rate(self) -> float:
        return self.cached / max(1.0, self.prompt)


def measured(url: str, run: Callable[[], None]) -> Side:
    """The run, on an empty cache."""
    httpx.post(url + "/flush_cache", trust_env=False, timeout=60.0).raise_for_status()
    before = _counters(url)
    start = time.perf_counter()
    run()
    wall = time.perf_counter() - start
    after = _counters(url)

    def spent(name: str) -> float:
        return after[f"radixrt_{name}_total"] - before[f"radixrt_{name}_total"]

    return Side(wall, spent("prompt_tokens"), spent("cached_tokens"), spent("generation_tokens"))


def _counters(url: str) -> dict[str, float]:
    time.sleep(SETTLE_S)
    text = httpx.get(url + "/metrics", trust_env=False, timeout=30.0).raise_for_status().text
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
