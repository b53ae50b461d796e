"""Routers by name: the engine's own, variants of it, and those that it is compared with."""

from __future__ import annotations

from benchmarks.fleet.baselines import BASELINES, FleetRouter
from benchmarks.fleet.device import Device
from benchmarks.fleet.variants import VARIANTS, own_router


def make_router(policy: str, replicas: int, device: Device) -> FleetRouter:
    """Return a new router of one of POLICIES."""
    if policy in VARIANTS:
        return own_router(device, replicas, VARIANTS[policy])
    return BASELINES[policy](replicas)


POLICIES: tuple[str, ...] = (*BASELINES, *VARIANTS)
