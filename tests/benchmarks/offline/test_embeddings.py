"""The benchmark of embeddings: what is shared is computed once, and the table tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.offline.embeddings import main


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--texts", "6", "--tokens", "80", "--runs", "1", "--json", str(tmp_path / "out.json")]
    assert main(["--shape", "tiny", "--set", "executor=uni", "--set", "num_threads=1", *sizes]) == 0
    text = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [name for name in found if f"| {name}" in text] == ["own", "generate", "shared", "single"]
    computed = [round(found[name]["computed"] * 80 * found[name]["texts"]) for name in found]
    assert computed == [6 * 80, 6 * 80, 60 + 6 * 20, 8 * 80]


@pytest.mark.parametrize("arguments", [["--texts", "0"], ["--runs", "0"], ["--shared", "1.5"]])
def test_mistakes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "must be at least 1" in capsys.readouterr().err
