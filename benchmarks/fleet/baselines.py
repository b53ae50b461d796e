"""Routers that the router is compared with. All of them bind a request to a replica at once.

`cache_aware` is the approximate rule of sglang-router 0.3 (`sgl-router/src/policies/cache_aware.rs`, and the defaults
of its command line), with chained hashes of token blocks in place of its tree of characters: the router knows only what
it has sent. If the most loaded replica has over 64 open requests more than the least loaded one, and over 1.5 times as
many, the least loaded one is chosen. Otherwise the replica with the longest known prefix, if that is over 30 % of the
prompt, else the least loaded one. Its tree holds 2**26 characters for each replica, and is cut back to that every
120 s, the oldest first.

`blocks` and `lmetric` know as much of prefixes, and choose by formulas that others publish, as we read them: `blocks`,
Dynamo's with equal weights, the least sum of tokens to compute and tokens that are decoded behind; `lmetric` (arXiv
2603.15202) the least tokens to compute, times requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from radixrt.messages.request import Request
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import Int32Array
from radixrt.router.router import TOKENIZER, Send

CACHE_THRESHOLD, ABS_THRESHOLD, REL_THRESHOLD = 0.3, 64, 1.5
EVICTION_S, MAX_TREE_TOKENS = 120.0, 2**26 // 4
"""Defaults of sglang-router; a token stands for four characters."""
BLOCK = 64


class FleetRouter(Protocol):
    """A router as the simulated fleet drives it."""

    def submit(self, message: Request, now: float) -> None: ...

    def receive(self, replica: int, epoch: int, message: Any, now: float) -> None: ...

    def take(self) -> list[Send]:
        """Messages to send since the last call."""

    def tick(self, now: float) -> object:
        """Called at regular intervals."""


class EagerRouter:
    """Sends each request to the replica that `choose` returns, as soon as it arrives.

    Attributes:
        open: number of open requests of each replica.
    """

    def __init__(self, replicas: int) -> None:
        self.open = [0] * replicas
        self._where: dict[str, int] = {}
        self._outgoing: list[Send] = []

    def choose(self, message: Request, now: float) -> int:
        raise NotImplementedError

    def submit(self, message: Request, now: float) -> None:
        replica = self._where[message.rid] = self.choose(message, now)
        self.open[replica] += 1
        self._outgoing.append(Send(replica, 0, message))

    def receive(self, replica: int, epoch: int, message: Any, now: float) -> None:
        if isinstance(message, TokenBatch):
            for delta in message.deltas:
                if delta.finish is not None:
                    self.open[self._where.pop(delta.rid)] -= 1
            self._outgoing.append(Send(TOKENIZER, 0, message))

    def take(self) -> list[Send]:
        taken, self._outgoing = self._outgoing, []
        return taken

    def tick(self, now: float) -> None:
        pass

    def least_loaded(self) -> int:
        """The replica with the fewest open requests, the first among equals."""
        return min(range(len(self.open)), key=self.open.__getitem__)


class RoundRobin(EagerRouter):
    """One replica after the other."""

    _next = -1

    def choose(self, message: Request, now: float) -> int:
        self._next = (self._next + 1) % len(self.open)
        return self._next


class LeastLoaded(EagerRouter):
    """The replica with the fewest open requests."""

    def choose(self, message: Request, now: float) -> int:
        return self.least_loaded()


class CacheAware(EagerRouter):
    """See the module's docstring."""

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]  # oldest use first
        self._evict_at = EVICTION_S

    def choose(self, message: Request, now: float) -> int:
        hashes = block_hashes(message.tokens(0))
        most, least = max(self.open), min(self.open)
        chosen = self.least_loaded()
        if not (most - least > ABS_THRESHOLD and most > REL_THRESHOLD * least) and hashes:
            matches = [self._match(known, hashes) for known in self._known]
            best = max(range(len(matches)), key=matches.__getitem__)
            if matches[best] > CACHE_THRESHOLD * len(hashes):
                chosen = best
        self._remember(chosen, hashes, now)
        return chosen

    def _remember(self, chosen: int, hashes: list[int], now: float) -> None:
        known = self._known[chosen]
        for each in hashes:
            known[each] = None
            known.move_to_end(each)
        if now >= self._evict_at:
            self._evict_at = now + EVICTION_S
            for known in self._known:
                while len(known) > MAX_TREE_TOKENS // BLOCK:
                    known.popitem(last=False)

    @staticmethod
    def _match(known: OrderedDict[int, None], hashes: list[int]) -> int:
        return next((i for i, each in enumerate(hashes) if each not in known), len(hashes))


class Sticky(CacheAware):
    """A program stays with the replica of its first call, which is the least loaded one."""

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self._programs: dict[str, int] = {}

    def choose(self, message: Request, now: float) -> int:
        if message.envelope.program is None:
            return super().choose(message, now)
        return self._programs.setdefault(message.envelope.program.program, self.least_loaded())


class Blocks(CacheAware):
    """See the module's docstring.

    Attributes:
        queued: tokens to compute of the open requests without output, by replica.
        lengths: sum of the prompts of all open requests, by replica.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self.queued = [0] * replicas
        self.lengths = [0] * replicas
        self._misses: dict[str, int] = {}
        self._prompts: dict[str, int] = {}

    def score(self, replica: int, miss: int) -> float:
        """Return what a request costs that misses so many tokens on a replica; the least is chosen."""
        return self.queued[replica] + miss + self.lengths[replica]

    def choose(self, message: Request, now: float) -> int:
        ids = message.tokens(0)
        hashes = block_hashes(ids)
        misses = [len(ids) - BLOCK * self._match(known, hashes) for known in self._known]
        chosen = min(range(len(misses)), key=lambda replica: self.score(replica, misses[replica]))
        self.queued[chosen] += misses[chosen]
        self.lengths[chosen] += len(ids)
        self._misses[message.rid], self._prompts[message.rid] = misses[chosen], len(ids)
        self._remember(chosen, hashes, now)
        return chosen

    def receive(self, replica: int, epoch: int, message: Any, now: float) -> None:
        if isinstance(message, TokenBatch):
            for rid in (*message.rids, *(delta.rid for delta in message.deltas)):
                self.queued[replica] -= self._misses.pop(rid, 0)
            for delta in message.deltas:
                if delta.finish is not None:
                    self.lengths[replica] -= self._prompts.pop(delta.rid)
        super().receive(replica, epoch, message, now)


class LMetric(Blocks):
    """See the module's docstring."""

    def score(self, replica: int, miss: int) -> float:
        return (self.queued[replica] + miss) * (self.open[replica] + 1)


def block_hashes(ids: Int32Array) -> list[int]:
    """Chained hashes of the whole blocks of a prompt."""
    data, last, hashes = ids.tobytes(), 0, []
    for start in range(0, len(data) - 4 * BLOCK + 1, 4 * BLOCK):
        last = hash((last, data[start : start + 4 * BLOCK]))
        hashes.append(last)
    return hashes


BASELINES: dict[str, Callable[[int], EagerRouter]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "cache_aware": CacheAware,
    "blocks": Blocks,
    "lmetric": LMetric,
    "sticky": Sticky,
}
