"""Test material from outside, read from the folder that RADIXRT_TEST_DATA names; it is not part of the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

DEFAULT = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; skips the test where it is not there."""
    folder = Path(os.environ.get("RADIXRT_TEST_DATA") or DEFAULT)
    path = folder / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {folder}; set RADIXRT_TEST_DATA to the folder that has it")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
