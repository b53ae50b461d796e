"""`TierCounters`: counts of the moves of keys and values between memories, for `TierStats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from radixrt.messages.histogram import MOVE_TIMES, Histogram
from radixrt.messages.scheduler_stats import MoveStats, TierStats
from radixrt.parts.tiers.policy import KINDS


@dataclass
class _Moves:
    """Counts of one kind of moves."""

    bytes: int = 0
    finished: int = 0
    failed: int = 0
    seconds: Histogram = field(default_factory=partial(Histogram.empty, MOVE_TIMES))


class TierCounters:
    """See the module's docstring. Kinds of moves are `radixrt.parts.tiers.policy.KINDS`."""

    def __init__(self) -> None:
        self._moves = {kind: _Moves() for kind in KINDS}
        self._refused: Counter[str] = Counter()

    def finished(self, kind: str, num_bytes: int, seconds: float) -> None:
        """Count a move that all ranks have finished.

        Args:
            num_bytes: bytes of all ranks.
            seconds: time on the link, of the slowest rank.
        """
        moves = self._moves[kind]
        moves.bytes += num_bytes
        moves.finished += 1
        moves.seconds.observe(seconds)

    def failed(self, kind: str) -> None:
        """Count a move that a rank could not finish."""
        self._moves[kind].failed += 1

    def refused(self, reason: str) -> None:
        """Count a move that did not begin. `reason` is a word, which metrics show as a label."""
        self._refused[reason] += 1

    def stats(
        self,
        total: Mapping[str, int],
        used: Mapping[str, int],
        fetched: Mapping[str, int],
        token_s: Mapping[str, float] | None = None,
        state_tokens: int = 0,
    ) -> TierStats:
        """Return a snapshot with copies of all counts.

        Args:
            total, used: places by tier, and tokens that the tier keeps.
            fetched: cached prompt tokens that were fetched for a request, by tier.
            token_s, state_tokens: see `TierStats`.
        """
        moves = {
            kind: MoveStats(each.bytes, each.finished, each.failed, each.seconds.copy())
            for kind, each in self._moves.items()
            if each.finished or each.failed
        }
        return TierStats(
            dict(total), dict(used), moves, dict(self._refused), dict(fetched), dict(token_s or {}), state_tokens
        )
