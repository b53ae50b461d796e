"""Routers by name: the engine's own, the baselines, and the engine's with other prices, which only the simulator runs.

`wait` has the own predicted wait for a price, and divides no forks: what a choice costs the others counts nothing.

`moves` is the whole router in a fleet whose replicas can fetch a prefix from each other, which the engine cannot do
yet: tokens that another replica's events have reported take the time of their transfer instead of that of their
computation, where that is shorter. They take slots, which are priced as those of a miss are. Transfers to one replica
follow each other; requests behind a prefix that is on its way wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.fleet.baselines import BASELINES, FleetRouter
from benchmarks.fleet.device import Device
from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.router.placement import Placement
from radixrt.router.prices import EVICTION, price_s, wait_s
from radixrt.router.replica_load import ReplicaInfo, ReplicaLoad
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.router.router import Router


class OwnWait(Placement):
    """Placement of the policy `wait`."""

    def price_s(self, request: RoutedRequest, load: ReplicaLoad, work: Work, *, is_first: bool = False) -> float:
        return wait_s(load, work, is_first=is_first)

    def _fork_place(
        self, request: RoutedRequest, loads: dict[int, ReplicaLoad], hits: dict[int, int], output: float
    ) -> int | None:
        return None


class Moving(Placement):
    """Placement of the policy `moves`.

    Args:
        token_s: seconds that the keys and values of a token take from one replica to another.
    """

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self.token_s = token_s

    def moved(self, request: RoutedRequest, hit: int, load: ReplicaLoad) -> int:
        """Return the number of tokens to fetch for a request that has a hit of so many tokens on a replica."""
        return max(self.index.longest(request.prefix)[0] - hit, 0) if self.token_s < load.times.token else 0

    def equivalent(self, moved: int, load: ReplicaLoad) -> int:
        """Return the number of tokens whose computation takes as long as that transfer."""
        return round(moved * self.token_s / load.times.token) if moved else 0

    def price_s(self, request: RoutedRequest, load: ReplicaLoad, work: Work, *, is_first: bool = False) -> float:
        moved = self.moved(request, work.length - work.miss, load)
        less = moved - self.equivalent(moved, load)
        price = price_s(load, work._replace(miss=work.miss - less), is_first=is_first)
        if moved and load.free < work.miss:  # what is fetched evicts as much as what is computed
            price += (EVICTION - 1) * less * load.times.token * (len(load.open) + load.queue.size)
        return price

    def _fork_place(
        self, request: RoutedRequest, loads: dict[int, ReplicaLoad], hits: dict[int, int], output: float
    ) -> int | None:
        nearly = {}
        for replica, load in loads.items():
            hit = hits.get(replica, 0)
            moved = self.moved(request, hit, load)
            nearly[replica] = hit + moved - self.equivalent(moved, load)
        return super()._fork_place(request, loads, nearly, output)


class Fetch(NamedTuple):
    """Transfer that a request waits for.

    Attributes:
        length: tokens of its prefix that are there, or have been fetched, when it arrives; 0 if it fetches nothing.
        delay_s: time after which it can begin.
    """

    length: int
    delay_s: float


NOTHING = Fetch(0, 0.0)


class MovingRouter(Router):
    """Router of the policy `moves`.

    Attributes:
        fetches: of requests that have been sent, by id, until the fleet takes them.
    """

    def __init__(self, placement: Moving, **options: float) -> None:
        super().__init__(placement=placement, **options)  # type: ignore[arg-type]
        self._moving = placement
        self._link_free_at: dict[int, float] = {}
        self._arriving: dict[int, dict[int, float]] = {}
        self.fetches: dict[str, Fetch] = {}

    def _send_request(self, request: RoutedRequest, replica: int, load: ReplicaLoad, now: float) -> None:
        hit = request.work.length - request.work.miss
        moved = self._moving.moved(request, hit, load)
        self._fetch(request, replica, hit, moved, now)
        super()._send_request(request, replica, load, now)
        if moved:  # what is fetched is not computed
            less = moved - self._moving.equivalent(moved, load)
            request.work = request.work._replace(miss=request.work.miss - less)
            load.unstarted_tokens -= less

    def _fetch(self, request: RoutedRequest, replica: int, hit: int, moved: int, now: float) -> None:
        hashes = request.prefix.hashes
        arriving = {key: at for key, at in self._arriving.get(replica, {}).items() if at > now}
        self._arriving[replica] = arriving
        ready_at = max((arriving[key] for key in hashes if key in arriving), default=now) if arriving else now
        if moved:
            begin = max(now, self._link_free_at.get(replica, 0.0))
            ready_at = max(ready_at, begin + moved * self._moving.token_s)
            self._link_free_at[replica] = begin + moved * self._moving.token_s
            length = hit + moved
            arriving |= dict.fromkeys(hashes[hit // GRANULE_TOKENS : length // GRANULE_TOKENS], ready_at)
            self.fetches[request.rid] = Fetch(length, ready_at - now)
        elif ready_at > now:
            self.fetches[request.rid] = Fetch(0, ready_at - now)


NO_LIMIT_S = 1e9
VARIANTS: dict[str, Callable[[Device], Placement]] = {
    "wait": lambda device: OwnWait(),
    "moves": lambda device: Moving(device.move_s),
    "priced": lambda device: Placement(),
}
"""Placements of the policies that are the engine's own router, or this router with other prices."""
POLICIES: tuple[str, ...] = (*BASELINES, *VARIANTS)


def make_router(policy: str, replicas: int, device: Device) -> FleetRouter:
    """Return a new router of one of POLICIES. The engine's own knows nothing of the speed of its empty replicas, which
    neither die nor stall: a long step is no silence."""
    if policy in BASELINES:
        return BASELINES[policy](replicas)
    limits: dict[str, Any] = {"request_timeout_s": NO_LIMIT_S, "stall_s": NO_LIMIT_S}
    placement = VARIANTS[policy](device)
    limits["context_length"] = device.context_length
    router: Router
    if isinstance(placement, Moving):
        router = MovingRouter(placement, **limits)
    else:
        router = Router(placement=placement, **limits)
    info = ReplicaInfo(device.num_slots, device.max_running_requests, device.chunked_prefill_size)
    for replica in range(replicas):
        router.add_replica(replica, info, 0.0)
    return router
