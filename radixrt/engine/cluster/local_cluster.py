"""`LocalCluster`: a Ray cluster on this machine alone, with the lifetime of the engine that started it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import time

from radixrt.config import Config
from radixrt.engine.cluster.driver_process import DriverProcess
from radixrt.engine.cluster.ray_driver import DriverSettings
from radixrt.errors import EngineError

CLOSE_S = 5.0


class LocalCluster:
    """Owner of the driver process that started Ray's processes.

    Args:
        path: file to which the cluster's address and token are written, readable by this user only.

    Raises:
        EngineError: the cluster does not start.
    """

    def __init__(self, config: Config, path: str) -> None:
        timeout_s = config.executor.start_timeout_s
        settings = DriverSettings(
            "local", [], "", timeout_s, log_level=config.server.log_level, log_format=config.server.log_format
        )
        self._process = DriverProcess(settings, outlives_thread=True)
        try:
            self._wait(path, time.monotonic() + timeout_s)
        except BaseException:
            self.close()
            raise

    def _wait(self, path: str, deadline: float) -> None:
        poller = select.poll()
        poller.register(self._process.fileno(), select.POLLIN)
        while time.monotonic() < deadline:
            reports = self._process.reports() if poller.poll(100) else []
            if reports is None:
                raise EngineError(f"the Ray cluster of this machine does not start: {self._process.error}")
            for report in reports:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                    json.dump(report["cluster"], file)
                return
        raise EngineError("the Ray cluster of this machine did not start in time (start_timeout_s)")

    def close(self) -> None:
        """End the cluster."""
        self._process.ask_to_exit()
        if not self._process.reap(CLOSE_S):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def start_local_cluster(config: Config, folder: str) -> tuple[LocalCluster, Config]:
    """Start a cluster; return the cluster, and the config with which an engine joins the cluster.

    Args:
        folder: private folder of the engine.
    """
    path = f"{folder}/cluster"
    cluster = LocalCluster(config, path)
    executor = dataclasses.replace(config.executor, cluster=None, ray_address=f"file:{path}")
    return cluster, dataclasses.replace(config, executor=executor)
