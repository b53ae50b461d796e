"""Metrics of requests, observed once for each when it ends: how it ended, how long it took, and how long it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from radixrt.messages.client import ClientRequest, RequestOutput
from radixrt.messages.parts import FINISH_LENGTH, FINISH_STOP, FINISH_TIMEOUT

_LATENCY = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 320.0, 640.0,
)  # fmt: skip
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_TOKENS = (1, 2, 5, *(k * 10**e for e in range(1, 6) for k in (1, 2, 5)))
_COMPLETIONS = (1, 2, 5, 10, 20, 50, 100)

_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("From a request's arrival to its first token.", _LATENCY),
    "request_time_per_output_token_seconds": ("Mean time between tokens of a request, after its first.", _PER_TOKEN),
    "e2e_request_latency_seconds": ("From a request's arrival to its end.", _LATENCY),
    "request_queue_time_seconds": ("From arrival at the scheduler to admission into a batch.", _LATENCY),
    "request_prefill_time_seconds": ("From admission to the first token.", _LATENCY),
    "request_decode_time_seconds": ("From the first token to the last.", _LATENCY),
    "request_inference_time_seconds": ("From admission to the last token.", _LATENCY),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Tokens generated for a request.", _TOKENS),
    "request_max_num_generation_tokens": ("Tokens of the longest completion of an HTTP request.", _TOKENS),
    "request_params_max_tokens": ("max_tokens of requests, or the default of the server.", _TOKENS),
    "request_params_n": ("Completions that an HTTP request asks for.", _COMPLETIONS),
}
"""Histograms by name without prefix, which vLLM has too: help text and bounds."""


@dataclass(slots=True)
class GroupRecord:
    """The completions of one HTTP request: how many there are, how many have not ended, tokens of the longest."""

    size: int
    unfinished: int
    longest: int = 0


@dataclass(slots=True)
class RequestRecord:
    """Times of one request of the engine, as its server sees them, by `time.monotonic`.

    Attributes:
        first_at: time of the first increment; None until then, and for a request with one output, which comes at the
            end, so that the engine's own timings are all there is.
    """

    request: ClientRequest
    group: GroupRecord
    sent_at: float
    first_at: float | None = None


class RequestMetrics:
    """Counters and histograms of requests, in the server's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests that have ended, by reason."
        self._ended = Counter("radixrt_request_success", text, ["finished_reason"], registry=registry)
        for reason in ("stop", "length", "timeout", "abort", "error"):
            self._ended.labels(reason)
        self._histograms = {
            name: Histogram(f"radixrt_{name}", text, buckets=bounds, registry=registry)
            for name, (text, bounds) in _HISTOGRAMS.items()
        }

    def observe(self, record: RequestRecord, last: RequestOutput) -> None:
        """Count a request that has just ended; of those that were not broken off, also times and lengths.

        Args:
            last: its last output.
        """
        if not record.request.computes or last.finish is None:
            return
        reason = last.finish.reason
        self._ended.labels(reason).inc()
        if reason in (FINISH_STOP, FINISH_LENGTH, FINISH_TIMEOUT):
            self._observe_times(record, last)
            self._observe_lengths(record, last)

    def _observe_times(self, record: RequestRecord, last: RequestOutput) -> None:
        now, found, timings = time.monotonic(), self._histograms, last.timings
        found["e2e_request_latency_seconds"].observe(now - record.sent_at)
        tokens = 0 if last.usage is None else last.usage.completion_tokens
        if timings is not None:
            found["request_queue_time_seconds"].observe(timings.queue_s)
            found["request_prefill_time_seconds"].observe(timings.prefill_s)
            found["request_inference_time_seconds"].observe(timings.prefill_s + timings.decode_s)
        if not tokens or timings is None:
            return
        found["request_decode_time_seconds"].observe(timings.decode_s)
        to_first, after = timings.queue_s + timings.prefill_s, timings.decode_s
        if record.first_at is not None:
            to_first, after = record.first_at - record.sent_at, now - record.first_at
        found["time_to_first_token_seconds"].observe(to_first)
        if tokens > 1:
            found["request_time_per_output_token_seconds"].observe(after / (tokens - 1))

    def _observe_lengths(self, record: RequestRecord, last: RequestOutput) -> None:
        found, usage, group = self._histograms, last.usage, record.group
        if usage is None:
            return
        found["request_prompt_tokens"].observe(usage.prompt_tokens)
        sampling = record.request.sampling
        if sampling is None:
            return
        found["request_generation_tokens"].observe(usage.completion_tokens)
        if sampling.max_tokens is not None:
            found["request_params_max_tokens"].observe(sampling.max_tokens)
        group.longest = max(group.longest, usage.completion_tokens)
        group.unfinished -= 1
        if not group.unfinished:
            found["request_max_num_generation_tokens"].observe(group.longest)
            found["request_params_n"].observe(group.size)
