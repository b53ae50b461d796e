"""Ranks as processes of their own, each running a piece of code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

TIMEOUT_S = 600
"""Only against processes that hang: a loaded machine is slow."""


def run_ranks(code: str, ranks: int, *given: object, environment: Mapping[str, str] | None = None) -> None:
    """Run the code once for each rank, with its rank, their number and what is given as arguments; all must succeed.

    Args:
        environment: beside this process's own.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, (rank, ranks, *given))],
            stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        for process in started:
            _, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, f"exit code {process.returncode}\n{errors}"
    finally:
        for process in started:
            process.kill()
