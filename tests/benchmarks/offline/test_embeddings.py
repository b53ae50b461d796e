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


def test_the_same_texts_of_several_lengths_are_embedded_and_generated_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--texts", "9", "--tokens", "80", "--least-tokens", "20", "--runs", "2", "--workloads", "generate", "own"]
    options = ["--shape", "tiny", "--set", "executor=uni", "--set", "num_threads=1"]
    assert main([*options, *sizes, "--json", str(tmp_path / "out.json")]) == 0
    assert "9 texts of 20-80 tokens" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert list(found) == ["generate", "own"]
    tokens = [
        [each["tokens_per_s"] / each["texts_per_s"], len(each["seconds"]), each["computed"]] for each in found.values()
    ]
    assert tokens[0][1:] == tokens[1][1:] == [2, 1.0]
    assert 20 < tokens[0][0] < 80
    assert found["generate"]["to_first"] == 1


@pytest.mark.parametrize("arguments", [["--texts", "0"], ["--runs", "0"], ["--shared", "1.5"]])
def test_mistakes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("least", ["0", "513"])
def test_a_wrong_shortest_length(least: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--least-tokens", least])
    assert "--least-tokens must be from 1 to --tokens" in capsys.readouterr().err
