"""A Ray cluster of two nodes on this machine, in a process of its own: `python -m tests.process.ray_nodes`.

Ray reads its variables when it is imported, so no process of the suite imports it for this.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
from functools import cached_property
from typing import Any

import psutil
import pytest

from radixrt.engine.cluster.driver_process import DriverProcess
from tests.server_process import LIMIT_S, wait_for

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
)
RECONNECT_S = 1
"""Time after the end of Ray's head after which its other processes end; by default a minute."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
}
"""Variables of the cluster, and of whoever joins it."""
NODE: dict[str, Any] = {"num_cpus": 0, "object_store_memory": 80 * 1024 * 1024, "include_log_monitor": False}


class RayNodes:
    """Two nodes with three devices each. Set `ENVIRONMENT` before. They start while the caller does something else, up
    to the first use of `address`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._processes: list[psutil.Process] = []

    @cached_property
    def _made(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        made: dict[str, Any] = json.loads(self._process.stdout.readline())
        self._processes = psutil.Process(self._process.pid).children(recursive=True)
        return made

    @property
    def address(self) -> str:
        """Address of the head, once both nodes are up."""
        address: str = self._made["address"]
        return address

    def kill_head(self) -> None:
        """Kill the control plane."""
        os.kill(self._made["head"], signal.SIGKILL)

    def close(self) -> None:
        """Kill all processes of the cluster, also those whose parents are gone."""
        processes = {*self._processes, *psutil.Process(self._process.pid).children(recursive=True)}
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)
        assert wait_for(lambda: not any(process.is_running() for process in processes))


def next_report(driver: DriverProcess) -> dict[str, Any]:
    """Wait for a single report of a driver."""
    while (reports := driver.reports()) == []:
        pass
    assert reports is not None, driver.error
    (report,) = reports
    return report


def main() -> None:
    from ray.cluster_utils import Cluster

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster = Cluster()
    head = cluster.add_node(resources={"device": 3}, include_dashboard=False, no_monitor=True, **NODE)
    cluster.add_node(resources={"device": 3}, **NODE)
    out.write(json.dumps({"address": cluster.address, "head": head.all_processes["gcs_server"][0].process.pid}) + "\n")
    out.flush()
    sys.stdin.read()
    cluster.shutdown()  # whoever wanted it is gone, and has killed nothing


if __name__ == "__main__":
    main()
