"""`NewTokenRatio`: the part of their remaining max_tokens that running requests are expected to use.

Estimated as SGLang does: the ratio starts high, decays while decoding proceeds, and jumps back when a retraction shows
that it was too low.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.scheduler.req import Req

CLIP_TOKENS = 4096
"""Requests with a huge or no max_tokens are expected to stop before this many."""
INITIAL_RATIO = 0.7
MIN_RATIO = 0.1
DECAY_STEPS = 600
"""The ratio decays from the first to the second value in so many decode steps, about as SGLang's defaults have it."""


class NewTokenRatio:
    """See the module's docstring.

    Args:
        conservativeness: factor on the ratio; above 1 for fewer retractions, below 1 for more running requests.
    """

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._floor = min(self._initial, MIN_RATIO * conservativeness)
        self._decay = (self._initial - self._floor) / DECAY_STEPS
        self.value = self._initial

    def decoded(self, share: float = 1.0) -> None:
        """Lower the ratio after a decode step without retraction.

        Args:
            share: part of all rows that the step has.
        """
        self.value = max(self._floor, self.value - share * self._decay)

    def retracted(self, active: Iterable[Req]) -> None:
        """Raise the ratio after a retraction: the others are expected to use at least what they have used so far."""
        used = wanted = 1
        for req in active:
            used += req.num_output + 20
            wanted += min(req.num_output + max(req.remaining, 0), CLIP_TOKENS)
        self.value = min(1.0, max(self._initial, used / wanted))

    def reserve(self, req: Req, computed: int) -> int:
        """Number of slots that a request of which `computed` tokens have slots is expected to take from now on, for the
        rest of its input and for its output."""
        return max(req.known_len - computed, 0) + int(min(max(req.remaining, 0), CLIP_TOKENS) * self.value)

    def reserve_all(self, active: Iterable[Req]) -> int:
        """Sum of `reserve` over active requests, without two calls for each of them: it is made for every step that
        admits a request."""
        value, total = self.value, 0
        for req in active:
            known = req.known_len
            missing = known - req.kv.length
            if missing > 0:
                total += missing
            left = req.max_len - known - req.num_pending
            if left > 0:
                total += int((left if left < CLIP_TOKENS else CLIP_TOKENS) * value)
        return total
