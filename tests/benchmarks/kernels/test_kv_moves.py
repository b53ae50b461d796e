"""The benchmark of moves runs on the CPU, and prints a rate for each copy."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.kernels import kv_moves


def test_prints_a_rate_for_each_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "cpu", "--shape", "smollm2", "--moves", "2", "--files", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["kv_moves", *arguments])
    kv_moves.main()
    printed = capsys.readouterr().out
    for what in ("link: memory to memory", "out, scattered slots", "in, consecutive slots", "to the file"):
        assert re.search(rf"\| {what} +\| [0-9.]+ ", printed), what
    assert not list(tmp_path.iterdir())
