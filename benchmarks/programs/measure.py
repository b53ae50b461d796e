"""`measured`: a run of some code on a server with an empty cache: its seconds, and tokens as the server counts them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.common.metrics import read_metrics
from benchmarks.common.servers import flush_cache

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
    flush_cache(url)
    before = settled_metrics(url)
    start = time.perf_counter()
    run()
    wall = time.perf_counter() - start
    after = settled_metrics(url)

    def spent(name: str) -> float:
        return after[f"radixrt_{name}_total"] - before[f"radixrt_{name}_total"]

    return Side(wall, spent("prompt_tokens"), spent("cached_tokens"), spent("generation_tokens"))


def settled_metrics(url: str) -> dict[str, float]:
    """Return the server's figures once the last burst is in them."""
    time.sleep(SETTLE_S)
    return read_metrics(url)
