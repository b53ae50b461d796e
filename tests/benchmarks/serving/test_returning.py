"""The benchmark of prompts that return, on servers that answer at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.serving import returning

SERVER = f"{sys.executable} {Path(__file__).parent / 'fake_server.py'} {{port}}"


def test_prompts_are_unique_and_the_same_for_a_seed() -> None:
    texts = returning.prompts(3, 100, 1)
    assert len(set(texts)) == 3
    assert texts == returning.prompts(3, 100, 1) != returning.prompts(3, 100, 2)
    assert {len(text.split()) for text in texts} == {50}


def test_figures_are_medians_of_prompts() -> None:
    cold = [returning.Answer(seconds, "a", 10) for seconds in (1.0, 2.0, 4.0)]
    again = [returning.Answer(seconds, text, 10) for seconds, text in ((0.5, "a"), (0.2, "a"), (0.1, "b"))]
    found = [returning.Returned("s", *pair) for pair in zip(cold, again)]
    cells = [cell.strip() for cell in returning.summary(found).splitlines()[-1].strip("|").split("|")]
    assert cells == ["s", "10", "2,000", "200", "0.10", "2 of 3"]


@pytest.mark.parametrize("scenario", ["restart", "eviction"])
def test_each_server_gets_each_prompt_twice(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--rounds", "2", "--tokens", "20", "--rest", "0", "--server", f"one={SERVER}", "--server", f"two={SERVER}"]
    assert returning.main([scenario, *given]) == 0
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [[cell.strip() for cell in row.strip("|").split("|")][::5] for row in rows] == [
        ["one", "4 of 4"], ["two", "4 of 4"]
    ]  # fmt: skip


def test_a_server_that_does_not_start_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert returning.main(["restart", "--server", f"broken={sys.executable} -c 1"]) == 1
    assert capsys.readouterr().err.startswith("broken: the server ended with 0")
