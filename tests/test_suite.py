"""The suite itself."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[1]


def test_the_longest_files_exist() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []
