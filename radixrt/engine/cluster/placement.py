"""Placement of agents in a Ray cluster: one agent for each pipeline stage, on a node with devices for all its ranks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.errors import EngineError

logger = logging.getLogger(__name__)

NOTICE_S = 5.0
"""Seconds after which a log line says what the agents wait for."""
HERE_S = 2.0
"""Seconds that the last agent waits for a place on this machine before any other node is accepted."""


@dataclass(frozen=True)
class AgentRequest:
    """Agents to place.

    Attributes:
        devices: number of devices of each agent. The last agent's stage samples, so this machine is preferred for it.
        resource: Ray's name of a device, "GPU" or "CPU" or a custom one.
    """

    devices: Sequence[int]
    resource: str

    def bundle(self, agent: int) -> dict[str, float]:
        return {self.resource: float(self.devices[agent])}


def fitting_error(request: AgentRequest, nodes: Sequence[dict[str, Any]]) -> str | None:
    """Return why the agents do not fit even into an idle cluster; None if they do.

    Args:
        nodes: as `ray.nodes()` returns them.
    """
    have = sorted((node["Resources"].get(request.resource, 0.0) for node in nodes if node["Alive"]), reverse=True)
    largest = max(request.devices)
    if not have or have[0] < largest:
        return (
            f"no node of the Ray cluster has {largest} {request.resource} for the {largest} ranks of a stage, which "
            f"share a node; its nodes have {', '.join(f'{count:g}' for count in have) or 'none'}. Lower tp, add nodes, "
            "or name another resource (ray_resource); --device cpu takes CPUs"
        )
    room = sum(int(count // largest) for count in have)
    if room < len(request.devices):
        return (
            f"the Ray cluster has room for {room} stages of {largest} {request.resource}, not for "
            f"{len(request.devices)}; lower pp or tp, or add nodes"
        )
    return None


def place_agents(request: AgentRequest, agent_class: type, here: str, timeout_s: float) -> tuple[Any, list[Any]]:
    """Create the placement group and an actor in each of its bundles.

    A bundle is on a single node, and the ranks of a stage share a bundle, so they share a node. Ray packs the group
    onto as few nodes as possible.

    Args:
        agent_class: class of the actors.
        here: this machine's address in the cluster.
        timeout_s: seconds to wait for devices that are in use.

    Returns:
        The group, and handles of the actors.

    Raises:
        EngineError: the devices did not become free in time.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = _placement_group(request, here, timeout_s)
    if group is None:
        raise EngineError(
            fitting_error(request, ray.nodes())  # a node may have left meanwhile
            or f"the devices of the Ray cluster are in use: {sum(request.devices)} {request.resource} did not become "
            f"free within {timeout_s:g} s (start_timeout_s)"
        )
    actors: list[Any] = []
    for index, count in enumerate(request.devices):
        options: dict[str, Any] = {
            "num_cpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        }
        if request.resource == "GPU":
            options["num_gpus"] = count
        elif request.resource == "CPU":
            options["num_cpus"] = count
        else:
            options["resources"] = {request.resource: count}
        actors.append(ray.remote(agent_class).options(**options).remote())
    return group, actors


def _placement_group(request: AgentRequest, here: str, timeout_s: float) -> Any | None:
    """Return a placed group, with the last agent on this machine if there is room; None if none was placed in time."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    bundles = [request.bundle(agent) for agent in range(len(request.devices))]
    tries = [(bundles, timeout_s)]
    own = next((node for node in ray.nodes() if node["Alive"] and node["NodeID"] == _node_id()), None)
    if own is not None and own["Resources"].get(request.resource, 0.0) >= request.devices[-1]:
        tries.insert(0, ([*bundles[:-1], {**bundles[-1], f"node:{here}": 0.001}], min(HERE_S, timeout_s)))
    for wanted, patience_s in tries:
        group = placement_group(wanted, strategy="PACK")
        if group.wait(min(NOTICE_S, patience_s)):
            return group
        if patience_s > NOTICE_S:
            logger.warning("waiting for devices of the Ray cluster, which are in use: %s", wanted)
            if group.wait(patience_s - NOTICE_S):
                return group
        with contextlib.suppress(Exception):
            remove_placement_group(group)
    return None


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
