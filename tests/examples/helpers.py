"""Runs an example as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: object, cwd: Path) -> str:
    """Run an example, which must exit with 0, and return its standard output."""
    result = _result(name, *arguments, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(name: str, *arguments: object, cwd: Path) -> str:
    """Run an example that must end with a message instead of a traceback, and return the message."""
    result = _result(name, *arguments, cwd=cwd)
    assert result.returncode != 0, result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    return result.stderr


def _result(name: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)],
        capture_output=True, text=True, timeout=280, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
