"""Random constraints in a process of their own; see `fuzz.py`, which runs longer by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_constraint_crashes_hangs_or_gives_a_wrong_output(model_folder: Path) -> None:
    command = [sys.executable, "-m", "tests.constrained.fuzz", str(model_folder), "0", "120"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    last = [line for line in done.stdout.splitlines() if line.startswith("[")][-1:]
    assert done.returncode == 0, f"exit code {done.returncode} after {last}\n{done.stderr[-3000:]}"
