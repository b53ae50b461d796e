"""`OutputLengths`: estimates the number of tokens that a request will sample, from requests that have ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

from radixrt.scheduler.new_token_ratio import CLIP_TOKENS

RECENT = 128
"""Number of ended requests that an estimate is made from."""
MIN_SAMPLES = 4
"""With fewer ended requests, every request is expected to use all of its max_tokens, up to CLIP_TOKENS."""


class OutputLengths:
    """Distributions of the share of max_tokens that requests sample: one per power of two of max_tokens, and one for
    all requests together.

    Few requests use all of a large max_tokens, but many use all of a small max_tokens, so a single distribution would
    fit neither. max_tokens is clipped to CLIP_TOKENS.
    """

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}  # by bit length of max_tokens; 0: all

    @property
    def is_known(self) -> bool:
        """True if enough requests have ended for an estimate."""
        return 0 in self._parts and self._parts[0].count >= MIN_SAMPLES

    def ended(self, max_tokens: int, output: int) -> None:
        """Count a request that ended after `output` of at most `max_tokens` tokens."""
        most = min(max_tokens, CLIP_TOKENS)
        if most > 0:
            for key in (0, most.bit_length()):
                self._parts.setdefault(key, _Parts()).add(min(output / most, 1.0))

    def expected(self, max_tokens: int, sampled: int) -> float:
        """Return the expected number of further tokens of a request that has sampled `sampled` tokens. Without data the
        request is expected to use all of its max_tokens."""
        most = min(max_tokens, CLIP_TOKENS)
        if sampled >= most:
            return float(min(max(max_tokens - sampled, 0), 1))
        for key in (most.bit_length(), 0):
            parts = self._parts.get(key)
            if parts is not None and parts.count >= MIN_SAMPLES:
                return parts.further(sampled / most) * most
        return float(most - sampled)


class _Parts:
    """The last RECENT shares of max_tokens, each from 0 to 1."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []  # the same parts

    @property
    def count(self) -> int:
        return len(self._recent)

    def add(self, part: float) -> None:
        self._recent.append(part)
        insort(self._sorted, part)
        if len(self._recent) > RECENT:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def further(self, part: float) -> float:
        """Return the mean of `share - part` over all shares longer than `part`. If no share is longer, return the mean
        share times `1 - part`."""
        longer = self._sorted[bisect_right(self._sorted, part) :]
        if not longer:
            return sum(self._sorted) / len(self._sorted) * (1.0 - part)
        return sum(longer) / len(longer) - part
