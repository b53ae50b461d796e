"""The comparison of servers by rows of a step, against stand-in servers."""

import json
from pathlib import Path

import pytest

from benchmarks.serving import rows
from tests.benchmarks.serving.test_serving import FAKE


def test_servers_in_turn_get_the_same_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "rows.json"
    options = ["--server", f"a={FAKE}", "--server", f"b={FAKE}", "--rows", "1", "3", "--rounds", "2", "--output", "4"]
    assert rows.main([*options, "--seed", "5", "--json-out", str(record)]) == 0
    rounds = json.loads(record.read_text())["rounds"]
    assert [(each["server"], each["number"]) for each in rounds] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    for each in rounds:
        assert {n: (s["requests"], s["output_tokens"]) for n, s in each["decode"].items()} == {
            "1": (2, 8),
            "3": (6, 24),
        }
        assert each["prefill"]["output_tokens"] == each["prefill"]["requests"] == rows.PROMPTS
    prompts = [each["prefill"]["prompt_tokens"] for each in rounds]
    assert prompts[:2] == [prompts[0]] * 2
    assert prompts[2:] == [prompts[2]] * 2
    printed = capsys.readouterr().out.split("Medians of 2 rounds")[1]
    assert [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")][2:] == ["a", "b"]


def test_a_request_that_fails_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--server", f"a={FAKE}", "--rows", "1", "--output", "4", "--time-limit", "0"]
    assert rows.main(options) == 1
    assert "requests failed" in capsys.readouterr().err
