"""Routers by name: the engine's own, and those that it is compared with."""

from __future__ import annotations

from benchmarks.fleet.baselines import BASELINES, FleetRouter
from benchmarks.fleet.device import Device
from radixrt.router.replica_load import ReplicaInfo
from radixrt.router.router import Router


def priced(replicas: int, device: Device) -> Router:
    """The engine's own router, with empty replicas of whose speed it knows nothing."""
    router = Router(context_length=device.context_length, request_timeout_s=1e9)
    info = ReplicaInfo(device.num_slots, device.max_running_requests, device.chunked_prefill_size)
    for replica in range(replicas):
        router.add_replica(replica, info, 0.0)
    return router


def make_router(policy: str, replicas: int, device: Device) -> FleetRouter:
    """Return a new router of one of POLICIES."""
    return priced(replicas, device) if policy == "priced" else BASELINES[policy](replicas)


POLICIES: tuple[str, ...] = (*BASELINES, "priced")
