"""`Prices`: whether a prefix is fetched from a tier or computed, by the measured times of moves and of steps.

Five kinds of moves are priced, each over a link of its own: "out" and "in" between the KV pool and the host tier,
"save" and "load" between the host tier and files, "pull" from the host tier of another replica. A move over a link
takes a time in proportion to its bytes. Moves are cut into pieces of about the same size, so a fixed time per move
needs no term of its own.

Computing is always right, so a price decides about time alone, the time of all requests: a fetch delays the request
that waits for the prefix, while a computation takes its time from every request that the device has to serve. So with
many requests a fetch pays that takes longer than the computation. `benchmarks.cache.tiers` simulates the rule. The
class does no I/O and is deterministic.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

from radixrt.messages.scheduler_stats import StepTimes

OUT, IN, SAVE, LOAD, PULL = KINDS = ("out", "in", "save", "load", "pull")
HOST, DISK, PEER = "host", "disk", "peer"
WAYS = {HOST: (IN,), DISK: (LOAD, IN), PEER: (PULL, IN)}
"""Links by which the keys and values of a tier come into the KV pool, the first one first."""

MOVES = 15
"""Number of moves whose median is the price of a link: a few slow moves (first use of memory, a busy disk) change
nothing, and a link that has become slower is learned after eight moves."""

FORGIVENESS = 0.02
"""Share by which each refused fetch lowers the price of its links. A link is measured by fetches alone, so a price that
was too high would otherwise refuse every later measurement."""


def compute_s(times: StepTimes, start: int, tokens: int) -> float:
    """Return the predicted seconds that the computation of prompt tokens adds to steps.

    Args:
        times: model of the seconds of a step.
        start: position of the first token.
        tokens: number of tokens.
    """
    return times.chunk_seconds(tokens, tokens * (start + (tokens + 1) / 2))


class Prices:
    """See the module's docstring.

    Args:
        token_bytes: bytes of the keys and values of a token in one rank. Ranks move their bytes at the same time.
    """

    def __init__(self, token_bytes: int) -> None:
        self._token_bytes = token_bytes
        self._moves: dict[str, deque[float]] = {kind: deque(maxlen=MOVES) for kind in KINDS}  # seconds of a byte
        self._byte_s = dict.fromkeys(KINDS, 0.0)

    def moved(self, kind: str, num_bytes: int, seconds: float) -> None:
        """Learn from a finished move.

        Args:
            num_bytes: bytes that one rank has moved.
            seconds: time on the link, of the slowest rank.
        """
        moves = self._moves[kind]
        moves.append(seconds / num_bytes)
        self._byte_s[kind] = median_low(moves)

    def rate(self, kind: str) -> float:
        """Return the bytes per second of a link; 0 if no move was measured."""
        return 1.0 / self._byte_s[kind] if self._byte_s[kind] else 0.0

    def fetch_s(self, tier: str, tokens: int, queued_bytes: int = 0) -> float:
        """Return the predicted seconds until tokens of a tier are in the KV pool; 0 before the first measured move.

        Args:
            tier: HOST, DISK or PEER.
            queued_bytes: bytes that the tier's first link moves first.
        """
        ways, num_bytes = WAYS[tier], tokens * self._token_bytes
        return self._byte_s[ways[0]] * queued_bytes + sum(self._byte_s[kind] for kind in ways) * num_bytes

    def fetch_token_s(self) -> dict[str, float]:
        """Return the predicted seconds of one token of each tier; empty before the first measured move into the pool. A
        token of another replica, which runs on an equal device, may have to leave the KV pool there first."""
        if not self._byte_s[IN]:
            return {}
        found = {tier: self.fetch_s(tier, 1) for tier in WAYS}
        found[PEER] += self._byte_s[OUT] * self._token_bytes
        return found

    def pays(self, tier: str, fetch_s: float, compute_s: float, others: int) -> bool:
        """Return True if a fetch is predicted to cost all requests together less time than the computation.

        Args:
            fetch_s: as `fetch_s` returned it for this tier.
            compute_s: seconds of the device for the same tokens.
            others: number of other requests that the device computes, or could compute.
        """
        if fetch_s < compute_s * (1 + others):
            return True
        for kind in WAYS[tier]:
            self._byte_s[kind] *= 1.0 - FORGIVENESS
        return False
