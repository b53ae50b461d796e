"""Routers by name: the engine's own, the baselines, and the engine's with other prices, which only the simulator runs.

`wait` has the own predicted wait for a price, and divides no forks: what a choice costs the others counts nothing.

`moves` is the router of an engine with host tiers, whose replicas get prefixes from each other
(`radixrt.router.transfers`); `priced` is the router of an engine without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.fleet.baselines import BASELINES, FleetRouter
from benchmarks.fleet.device import Device
from radixrt.config.roles import Role
from radixrt.parts.tiers.policy import PEER
from radixrt.router.placement import Placement
from radixrt.router.prices import wait_s
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


NO_LIMIT_S = 1e9
VARIANTS: dict[str, Callable[[], Placement]] = {
    "wait": OwnWait,
    "moves": lambda: Placement(moves=True),
    "priced": Placement,
}
"""Placements of the policies that are the engine's own router, or this router with other prices."""
POLICIES: tuple[str, ...] = (*BASELINES, *VARIANTS)


def make_router(policy: str, replicas: int, device: Device, roles: Sequence[Role] = ()) -> FleetRouter:
    """Return a new router of one of POLICIES. The engine's own knows nothing of the speed of its empty replicas, which
    neither die nor stall: a long step is no silence.

    Args:
        roles: of each replica, for the engine's own router; default: both.
    """
    if policy in BASELINES:
        return BASELINES[policy](replicas)
    limits: dict[str, Any] = {"request_timeout_s": NO_LIMIT_S, "stall_s": NO_LIMIT_S}
    router = Router(placement=VARIANTS[policy](), context_length=device.context_length, **limits)
    sizes = (device.num_slots, device.max_running_requests, device.chunked_prefill_size)
    everything: Role = "both"
    for replica, role in enumerate(roles or [everything] * replicas):
        router.add_replica(replica, ReplicaInfo(*sizes, max_gap_s=device.max_gap_ms / 1e3, role=role), 0.0)
        router.placement.loads[replica].fetch_token_s = {PEER: device.move_s}
    return router
