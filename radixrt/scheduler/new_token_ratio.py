"""`NewTokenRatio`: expected share of their remaining max_tokens that running requests will use.

The estimate follows SGLang: the ratio starts high, decays with each decode step, and jumps back when a retraction shows
that the ratio was too low.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.scheduler.req import Req

CLIP_TOKENS = 4096
"""Upper bound of the expected output of a request with a huge max_tokens or none."""
INITIAL_RATIO = 0.7
MIN_RATIO = 0.1
DECAY_STEPS = 600
"""The ratio decays from INITIAL_RATIO to MIN_RATIO in DECAY_STEPS decode steps, which is close to SGLang's defaults."""


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
            share: share of all rows that are in the step, from 0 to 1.
        """
        self.value = max(self._floor, self.value - share * self._decay)

    def retracted(self, active: Iterable[Req]) -> None:
        """Raise the ratio after a retraction, at least to the share of max_tokens that active requests have used so
        far."""
        used = wanted = 1
        for req in active:
            used += req.num_output + 20
            wanted += min(req.num_output + max(req.remaining, 0), CLIP_TOKENS)
        self.value = min(1.0, max(self._initial, used / wanted))

    def reserve(self, req: Req, computed: int) -> int:
        """Return the number of further slots that a request is expected to take, for its input and its output.

        Args:
            computed: number of the request's tokens that have slots.
        """
        return max(req.known_len - computed, 0) + int(min(max(req.remaining, 0), CLIP_TOKENS) * self.value)

    def reserve_all(self, active: Iterable[Req]) -> int:
        """Return the sum of `reserve` over active requests. The loop is inlined, because every step that admits a
        request calls this."""
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
