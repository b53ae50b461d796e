"""The limit on the time of one mask, and whose fault a mask is that exceeds the limit."""

from __future__ import annotations

import time

from radixrt.messages.parts import FinishError
from radixrt.sampling_params import SamplingParams

MASK_LIMIT_S = 0.05
"""Longest processor time of one mask, in seconds. A slower mask delays the whole batch, so its request is ended."""
REFERENCE_STEPS = 10_000
REFERENCE_RUNS = 3


def reference_s() -> float:
    """Return the processor time of a small fixed computation on this machine at this moment, in seconds."""
    fastest = float("inf")
    for _ in range(REFERENCE_RUNS):
        started = time.thread_time()
        sum(range(REFERENCE_STEPS))
        fastest = min(fastest, time.thread_time() - started)
    return fastest


class MaskLimit:
    """Judges slow masks. A processor that shares its caches, or whose host takes time from it, computes more slowly
    than it did when this object was made; the client can do nothing about that share of a mask's time."""

    def __init__(self) -> None:
        self._usual_s = reference_s()

    def error(self, sampling: SamplingParams, seconds: float) -> FinishError | None:
        """Return the error of the request whose mask took so much processor time, or None within the limit."""
        if seconds <= MASK_LIMIT_S:
            return None
        slowdown = max(reference_s() / self._usual_s, 1.0)
        limit = f"at most {1e3 * MASK_LIMIT_S:.0f} ms are allowed"
        took = f"one mask of the request's grammar took {1e3 * seconds:.0f} ms; {limit}"
        if seconds <= MASK_LIMIT_S * slowdown:
            reason = f"{took}, and the machine is {slowdown:.1f} times slower than usual; try again"
            return FinishError(reason, code="busy", status=503)
        kind = None if sampling.constraint is None else sampling.constraint.kind
        return FinishError(f"{took}; make {kind or 'the constraint'} simpler", kind, "grammar_too_complex", 400)
