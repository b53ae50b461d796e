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
from typing import Any

import psutil
import pytest

from tests.server_process import LIMIT_S, wait_for

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'radixrt[ray]'"
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
    """Two nodes with two devices each. Set `ENVIRONMENT` before."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        made = json.loads(self._process.stdout.readline())
        self.address: str = made["address"]
        self._head: int = made["head"]

    def kill_head(self) -> None:
        """Kill the control plane."""
        os.kill(self._head, signal.SIGKILL)

    def close(self) -> None:
        """End all processes of the cluster, those of nodes that were killed too."""
        all_processes = psutil.Process(self._process.pid).children(recursive=True)
        self._process.communicate(timeout=LIMIT_S)
        for process in all_processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert wait_for(lambda: not any(process.is_running() for process in all_processes))


def main() -> None:
    from ray.cluster_utils import Cluster

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster = Cluster()
    head = cluster.add_node(resources={"device": 2}, include_dashboard=False, **NODE)
    cluster.add_node(resources={"device": 2}, **NODE)
    out.write(json.dumps({"address": cluster.address, "head": head.all_processes["gcs_server"][0].process.pid}) + "\n")
    out.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
