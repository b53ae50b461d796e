"""Summary of a load on a server: the block that `vllm bench serve` prints, and its JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WIDTH = 50
HEADINGS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
}


@dataclass
class Outcome:
    """One request. Times are in seconds of one clock, token counts the server's `usage`.

    Attributes:
        start: when it was sent.
        arrivals: when each event with text arrived.
        end: when the answer was complete.
        cached_tokens: None if the server did not report them.
        error: why it failed; None if it succeeded.
        text: the answer.
        status: HTTP status of the answer; 0 without one.
        retry_after_s: seconds after which the server asks a refused request to come back.
        queue_s: time that the request waited in the queue, as /generate reports it.
    """

    start: float
    arrivals: list[float] = field(default_factory=list)
    end: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    error: str | None = None
    text: str = ""
    status: int = 0
    retry_after_s: float = 0.0
    queue_s: float = 0.0

    @property
    def ttft(self) -> float | None:
        """Time from sending to the first event with text; None without one."""
        return self.arrivals[0] - self.start if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Time from the first event with text to the last one, for each output token after the first; None if there
        are none."""
        if not self.arrivals or self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)


def summarize(outcomes: Sequence[Outcome], duration: float) -> dict[str, Any]:
    """Return the figures of a load under the names that `vllm bench serve --save-result` has.

    Args:
        duration: seconds from the first request to the end of the last.

    TTFT runs to the first event with text, TPOT is the rest of the answer divided by its tokens after the first, ITL
    the time between two events. Each of them counts successful requests only.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    ttfts = [outcome.ttft for outcome in good if outcome.ttft is not None]
    tpots = [outcome.tpot for outcome in good if outcome.tpot is not None]
    itls = [b - a for outcome in good for a, b in zip(outcome.arrivals, outcome.arrivals[1:])]
    read, written = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": read,
        "total_cached_tokens": sum(o.cached_tokens or 0 for o in good),
        "total_output_tokens": written,
        "request_throughput": len(good) / duration,
        "output_throughput": written / duration,
        "max_output_tokens_per_s": _peak_output(good),
        "max_concurrent_requests": _peak_open(outcomes),
        "total_token_throughput": (read + written) / duration,
    }
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", itls)):
        figures |= {f"{kind}_{name}_ms": value * 1000 for kind, value in spread(values).items()}
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean, median, std (of the population) and p99, interpolated between values; all 0 without values."""
    if not values:
        return dict.fromkeys(("mean", "median", "std", "p99"), 0.0)
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "std": statistics.pstdev(values),
        "p99": percentile(values, 99),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, 0 to 100, of one value or more, interpolated linearly between the two nearest."""
    return float(np.percentile(values, percent))


def block(figures: dict[str, Any], *, rate: float | None, max_concurrency: int | None) -> str:
    """Format figures as `vllm bench serve` prints them."""
    rows: list[tuple[str, int | float]] = [
        ("Successful requests:", figures["completed"]),
        ("Failed requests:", figures["failed"]),
    ]
    if max_concurrency is not None:
        rows.append(("Maximum request concurrency:", max_concurrency))
    if rate is not None:
        rows.append(("Request rate configured (RPS):", rate))
    rows += [
        ("Benchmark duration (s):", figures["duration"]),
        ("Total input tokens:", figures["total_input_tokens"]),
        ("Total generated tokens:", figures["total_output_tokens"]),
        ("Request throughput (req/s):", figures["request_throughput"]),
        ("Output token throughput (tok/s):", figures["output_throughput"]),
        ("Peak output token throughput (tok/s):", figures["max_output_tokens_per_s"]),
        ("Peak concurrent requests:", float(figures["max_concurrent_requests"])),
        ("Total token throughput (tok/s):", figures["total_token_throughput"]),
    ]
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", *(_row(*row) for row in rows)]
    for name, heading in HEADINGS.items():
        lines.append(f"{heading:-^{WIDTH}}")
        for kind in ("mean", "median", "p99"):
            lines.append(_row(f"{kind.capitalize()} {name.upper()} (ms):", float(figures[f"{kind}_{name}_ms"])))
    return "\n".join([*lines, "=" * WIDTH])


def errors(outcomes: Sequence[Outcome], most: int = 5) -> list[str]:
    """Return the most frequent errors with their numbers, one line each."""
    counts = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    lines = [f"{count} failed: {error}" for error, count in counts.most_common(most)]
    return lines + ([f"and {len(counts) - most} other errors"] if len(counts) > most else [])


def _row(name: str, value: int | float) -> str:
    return f"{name:<40} {value:<10.2f}" if isinstance(value, float) else f"{name:<40} {value:<10}"


def _peak_output(good: Sequence[Outcome]) -> float:
    """Return the most tokens within one second since the start; an event counts as its share of the answer's tokens."""
    if not good:
        return 0.0
    begin = min(outcome.start for outcome in good)
    weights: dict[int, float] = {}
    for outcome in good:
        for at in outcome.arrivals:
            second = int(at - begin)
            weights[second] = weights.get(second, 0.0) + outcome.output_tokens / len(outcome.arrivals)
    return max(weights.values(), default=0.0)


def _peak_open(outcomes: Sequence[Outcome]) -> int:
    changes = sorted([(o.start, 1) for o in outcomes] + [(o.end, -1) for o in outcomes])
    most = running = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
