"""The suite itself."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from tests.conftest import GC_THRESHOLDS, LONGEST

ROOT = Path(__file__).parents[1]


def test_the_longest_files_exist() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


def test_processes_of_the_suite_keep_bytecode() -> None:
    assert not sys.dont_write_bytecode
    child = subprocess.run([sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)"], timeout=60)
    assert child.returncode == 0


def test_garbage_is_collected_apart_from_what_collecting_tests_has_made() -> None:
    assert gc.isenabled()
    assert gc.get_threshold() == GC_THRESHOLDS
    assert gc.get_freeze_count() > 10_000
