"""How much room a request must find before it is admitted."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.scheduler.req import Req

INITIAL_RATIO = 0.7
MIN_RATIO = 0.1
DECAY_STEPS = 600
CLIP_TOKENS = 4096
"""Requests with a huge or no max_tokens are expected to stop before this many."""


class NewTokenRatio:
    """The part of their remaining max_tokens that running requests are expected to use, as SGLang estimates it: it
    starts careful, decays while decoding goes well, and jumps back when a retraction shows that it was too low."""

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._floor = min(self._initial, MIN_RATIO * conservativeness)
        self._decay = (self._initial - self._floor) / DECAY_STEPS
        self.value = self._initial

    def decoded(self) -> None:
        """A decode step went through without retraction."""
        self.value = max(self._floor, self.value - self._decay)

    def retracted(self, active: Iterable[Req]) -> None:
        """Requests had to be retracted: expect of the others at least what they have used so far, and some more."""
        used = wanted = 1
        for req in active:
            used += req.num_output + 20
            wanted += min(req.num_output + max(req.remaining, 0), CLIP_TOKENS)
        self.value = min(1.0, max(self._initial, used / wanted))

    def reserve(self, req: Req) -> int:
        """Slots that an active or admitted request is expected to take from now on, its uncomputed input included."""
        return max(req.known_len - req.kv_len, 0) + int(min(max(req.remaining, 0), CLIP_TOKENS) * self.value)
