"""Entry point of the engine's Ray driver, the only process that talks to Ray. The driver places agents in the cluster,
starts processes through the agents, and reports the start and the end of each process. The driver and `DriverProcess`
in the main process exchange lines of JSON over the driver's stdin and stdout.

The driver is a separate process because Ray ends every process that loaded it when the cluster's head is gone for a
minute. The engine then continues without the driver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from radixrt._version import __version__
from radixrt.engine.cluster.node_agent import NodeAgent
from radixrt.engine.cluster.placement import AgentRequest, fitting_error, place_agents
from radixrt.engine.process import report_errors
from radixrt.errors import ConfigError, EngineError
from radixrt.logs import configure_logging

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Longest wait within Ray, in seconds: a process that is blocked in Ray while Ray shuts down crashes."""
CONNECT_S = 5.0
RETRY_S = 5.0
"""Connecting to the cluster's head fails after CONNECT_S seconds and is tried again RETRY_S seconds later."""

AGENT_START_S = 60.0
STOP_S = 2.0


class DriverSettings(msgspec.Struct, frozen=True):
    """First line on stdin.

    Attributes:
        address: "auto", "HOST:PORT", "local" for a new cluster of this machine, or "file:PATH" for the cluster whose
            address `LocalCluster` wrote to that file.
        agents: number of devices of each agent; empty to place no agents.
        resource: Ray's name of the devices.
        timeout_s: seconds that the agents may wait for a place.
        waits_for_cluster: wait up to `timeout_s` for the cluster, which has been reachable before.
        option: name of the option that gave the address, for errors.
    """

    address: str
    agents: list[int]
    resource: str
    timeout_s: float
    waits_for_cluster: bool = False
    option: str = "ray_address"
    log_level: str = "info"
    log_format: str = "text"


class Spawn(msgspec.Struct, frozen=True):
    """Later lines on stdin: processes to start.

    Attributes:
        key: name of the process in reports.
        agent: index of the agent.
        settings: settings of the process. The driver fills in `address`, and, with `rendezvous`, the address of the
            ranks' rendezvous.
        rendezvous: the process is a rank that takes part in the rendezvous. The first of these ranks serves the store.
    """

    key: str
    agent: int
    kind: str
    settings: dict[str, Any]
    rendezvous: bool = False


def connect(address: str, option: str) -> str:
    """Join a cluster, or start a cluster of this machine alone; return this machine's address in the cluster.

    Args:
        option: see `DriverSettings`.

    Raises:
        ConfigError: the cluster cannot be reached.
    """
    if address == "local":
        os.environ.update(own_cluster_environment(os.environ))
    elif address.startswith("file:"):
        joined = json.loads(Path(address.removeprefix("file:")).read_text())
        address = joined["address"]
        os.environ.update(joined["environment"])
    elif address != "auto":
        check_reachable(address, option)
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "radixrt"}
    if address == "local":
        options.update(include_dashboard=False, object_store_memory=80 * 1024 * 1024)
    try:
        # Ray has its workers search the driver's current folder for modules, before the standard library.
        with contextlib.chdir("/"):
            ray.init(address=address, **options)
    except Exception as error:  # of many kinds, some of them private to Ray
        if address == "auto" and isinstance(error, ConnectionError):  # Ray's text would name Ray's options
            raise ConfigError(
                f"no Ray cluster runs on this machine ({option}=auto); start one with `ray start --head`, name another "
                f"with {option}=HOST:PORT, or use {option}=local"
            ) from error
        raise ConfigError(f"Ray cannot be joined ({option}={address}): {error}; is it up?") from error
    warn_without_token(os.environ)
    return str(ray.util.get_node_ip_address())


def connect_again(settings: DriverSettings) -> str:
    """Join a cluster, retrying for up to `timeout_s` seconds while it cannot be reached; otherwise like `connect`."""
    deadline = time.monotonic() + settings.timeout_s
    while True:
        try:
            return connect(settings.address, settings.option)
        except ConfigError as error:
            if time.monotonic() > deadline:
                raise
            logger.warning("waiting for Ray: %s", error)
            time.sleep(RETRY_S)


OWN_VARIABLES = ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


def own_cluster_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a cluster that the engine starts. Whoever reaches Ray's ports can run code, so a
    new token guards the ports, unless the user has set the variables."""
    values = ("0", "token", secrets.token_hex(32))
    return {name: given.get(name, value) for name, value in zip(OWN_VARIABLES, values, strict=True)}


def warn_without_token(environment: Mapping[str, str]) -> None:
    """Log a warning if the joined cluster demands no token. Ray sets the variable where it found a token."""
    if environment.get("RAY_AUTH_MODE", "").lower() != "token":
        logger.warning(
            "this Ray cluster has no token authentication: whoever reaches its ports runs code on its nodes; start it "
            "with RAY_AUTH_MODE=token (docs/ray.md)"
        )


def check_reachable(address: str, option: str) -> None:
    """Raise ConfigError if nothing listens at the address. Ray itself would keep trying for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"{option}={address}: nothing listens there: {error}; give what `ray start --head` printed"
        ) from error


class Driver:
    """The agents of an engine, and the pending calls to the agents.

    Attributes:
        places: addresses of the agents' nodes.
    """

    def __init__(self, settings: DriverSettings) -> None:
        self._settings = settings
        self._agents: list[Any] = []
        self._group: Any = None
        self._starting: dict[Any, Spawn] = {}
        self._running: dict[Any, Spawn] = {}
        self.places: list[str] = []

    def place(self, host: str) -> None:
        """Place and start the agents.

        Raises:
            ConfigError, EngineError: the cluster is too small, has no room, or another version of radixrt.
        """
        import ray

        request = AgentRequest(self._settings.agents, self._settings.resource)
        if (error := fitting_error(request, ray.nodes())) is not None:
            raise ConfigError(error)
        self._group, self._agents = place_agents(request, NodeAgent, host, self._settings.timeout_s)
        try:
            found = [
                json.loads(text) for text in ray.get([a.describe.remote() for a in self._agents], timeout=AGENT_START_S)
            ]
        except Exception as error:
            raise EngineError(
                f"an agent did not start on a node of the cluster, which needs radixrt: {error}"
            ) from error
        for each in found:
            if each["version"] != __version__:
                raise EngineError(
                    f"node {each['address']} has radixrt {each['version']}, and this one {__version__}; install the "
                    "same on all nodes"
                )
        self.places = [each["address"] for each in found]

    def spawn(self, batch: Sequence[Spawn]) -> None:
        """Have the agents start processes. `reports` returns their starts and ends."""
        import ray

        store: dict[str, Any] = {}
        for each in batch:
            given = {**each.settings, "address": self.places[each.agent]}
            agent = self._agents[each.agent]
            if each.rendezvous:
                if not store:
                    opened = json.loads(ray.get(agent.open_store.remote()))
                    store = {"store_address": given["address"], "store_port": opened["port"]}
                    given["store_descriptor"] = opened["descriptor"]
                given.update(store)
            self._starting[agent.spawn.remote(each.kind, json.dumps(given), os.getcwd())] = each

    def reports(self) -> list[dict[str, Any]]:
        """Return the starts and ends of processes since the last call, after waiting for at most POLL_S."""
        import ray

        pending = [*self._starting, *self._running]
        if not pending:
            time.sleep(POLL_S)
            return []
        done, _ = ray.wait(pending, num_returns=1, timeout=POLL_S)
        return [self._report(ref) for ref in done]

    def _report(self, ref: Any) -> dict[str, Any]:
        import ray

        spawn = self._starting.pop(ref, None)
        each = spawn or self._running.pop(ref)
        try:
            value = ray.get(ref)
        except Exception as error:  # the agent, or its node, is gone
            return {"lost": each.key, "error": str(error).strip().splitlines()[0]}
        if spawn is not None:
            self._running[self._agents[each.agent].wait.remote(value)] = each
            return {"started": each.key, "pid": value}
        return {"ended": each.key, **json.loads(value)}

    def stop(self) -> None:
        """Kill all processes that the agents started."""
        import ray

        with contextlib.suppress(Exception):
            ray.wait([agent.stop.remote() for agent in self._agents], num_returns=len(self._agents), timeout=STOP_S)
        with contextlib.suppress(Exception):
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
            ray.shutdown()


def serve(settings: DriverSettings, out: Any) -> None:
    """Run until stdin closes."""

    def say(line: dict[str, Any]) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    host = connect_again(settings) if settings.waits_for_cluster else connect(settings.address, settings.option)
    driver = Driver(settings)
    if settings.agents:
        driver.place(host)
        say({"placed": {"host": host, "agents": driver.places}})
    else:
        import ray

        environment = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
        say({"cluster": {"address": ray.get_runtime_context().gcs_address, "environment": environment}})
    batches: queue.Queue[list[Spawn] | None] = queue.Queue()
    threading.Thread(target=_read, args=(batches,), daemon=True).start()
    while True:
        with contextlib.suppress(queue.Empty):
            batch = batches.get_nowait()
            if batch is None:
                driver.stop()
                return
            driver.spawn(batch)
        for report in driver.reports():
            say(report)


def _read(batches: queue.Queue[list[Spawn] | None]) -> None:
    for line in sys.stdin:
        batches.put(msgspec.json.decode(line, type=list[Spawn]))
    batches.put(None)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w")
    with report_errors("Ray driver"):
        line = sys.stdin.readline()
        if line:
            settings = msgspec.json.decode(line, type=DriverSettings)
            configure_logging(settings.log_level, "Ray driver", format=settings.log_format)
            serve(settings, out)
    os._exit(0)  # threads of Ray must not keep it


if __name__ == "__main__":
    sys.exit(main())
