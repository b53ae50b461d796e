"""The address at which a cluster's nodes reach this machine: Ray knows it, and the scheduler, which does not speak with
Ray, reads it from a file in the engine's folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

from radixrt.errors import EngineError


def write_cluster_host(path: str, host: str) -> None:
    """Write the file; it appears under its name when it is complete."""
    Path(f"{path}.new").write_text(host, encoding="utf-8")
    os.rename(f"{path}.new", path)


def read_cluster_host(path: str, timeout_s: float) -> str:
    """Wait for the file and read it.

    Raises:
        EngineError: it was not written within timeout_s.
    """
    deadline = time.monotonic() + timeout_s
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise EngineError(f"the cluster had no place for the ranks within {timeout_s:g} s (start_timeout_s)")
        time.sleep(0.01)
    return Path(path).read_text(encoding="utf-8")
